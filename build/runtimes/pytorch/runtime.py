"""Pairs for TensorRT-LLM's LLM API: checkpoints as they are, cast or FP8, and `llm_args.yaml`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

from pydantic import BaseModel

from trtspec.build.check.drafters import identify
from trtspec.build.check.model_shape import shape_of
from trtspec.build.checkpoint import Checkpoint
from trtspec.build.convert.converter import write_plan
from trtspec.build.convert.hf_plan import plan_hf
from trtspec.build.options import BuildOptions
from trtspec.build.quantize.pair_quantizer import Role, find_scales, quantization_manifest
from trtspec.build.quantize.ready_made import read_fp8
from trtspec.build.quantize.scales import main_float
from trtspec.build.runtimes.job import Built, Job, describe_engine, mended
from trtspec.build.runtimes.pytorch.arguments import llm_arguments, write_arguments
from trtspec.build.runtimes.pytorch.drafter import SPECULATION_OF, Drafter, drafter_of
from trtspec.build.runtimes.pytorch.rope_spelling import spelt_for_both
from trtspec.build.stages import RESUME, Done, NoFacts, Stage
from trtspec.choices import EngineDtype
from trtspec.engines.host import min_sm
from trtspec.engines.llm_api import ARGUMENTS, dialect_of, field_since
from trtspec.engines.manifest import EngineManifest, EngineSettings, HostNeeds, QuantizationManifest
from trtspec.engines.versions import image_with
from trtspec.errors import BuildError, EngineError

# Kinds of checkpoints (trtspec.build.check.drafters) that can be a draft here.
DRAFTERS = frozenset(SPECULATION_OF)

# TensorRT-LLM's own image, for versions that no Triton container has.
RELEASE_IMAGE = "nvcr.io/nvidia/tensorrt-llm/release:{version}"
LOWEST_SM = 80  # Ampere (TensorRT-LLM's support matrix)


class Written(BaseModel):
    """What is known of a model once its checkpoint is written."""

    dtype: EngineDtype
    quantization: QuantizationManifest | None


def faults(options: BuildOptions) -> Sequence[str]:
    """Return what is wrong with the options on this runtime."""
    asked, quantized = options.pytorch, options.quantization
    try:
        one_engine = dialect_of(asked.version).one_engine
    except EngineError as error:
        return [str(error)]
    fp8 = "fp8" in (quantized.target, quantized.draft)
    checks = (
        (options.dtype == "float32", "--runtime pytorch computes in bfloat16 or float16, not float32"),
        (
            fp8 and options.dtype is not None,
            "--dtype with FP8: what stays unquantised keeps its type; leave --dtype out",
        ),
        (
            asked.sampling == "rejection" and not one_engine,
            f"--sampling rejection: TensorRT-LLM {asked.version} has no such choice",
        ),
        *(
            (wanted and since is not None, f"{flag}: from TensorRT-LLM {since} on, not in {asked.version}")
            for wanted, flag, since in (
                (
                    asked.sampling == "rejection",
                    "--sampling rejection",
                    field_since("use_rejection_sampling", asked.version),
                ),
                (asked.penalties, "--penalties", field_since("enable_penalty", asked.version)),
            )
        ),
        (
            asked.sampling == "rejection" and asked.overlap_scheduler,
            "--sampling rejection with --overlap-scheduler: TensorRT-LLM would be greedy; leave one out",
        ),
        (
            asked.free_gpu_memory is not None and not 0 < asked.free_gpu_memory <= 1,
            f"--free-gpu-memory is {asked.free_gpu_memory}, expected a share above 0 and up to 1",
        ),
        (
            quantized.max_kl is not None or quantized.evaluate is not None,
            "--max-kl and --evaluate: quality is measured where engines run, so for --runtime cpu",
        ),
    )
    return [message for wrong, message in checks if wrong]


def stages(job: Job) -> Sequence[Stage]:
    """Return the steps: each checkpoint, then the arguments.

    Raises:
        PairError, EngineError: the models cannot be joined as asked in that version.
        BuildError: a model cannot be quantised here.
    """
    drafter = _drafter(job)
    if wrong := [*_quantization_faults(job, drafter), *_width_faults(job), *_rank_faults(job)]:
        raise BuildError("; ".join(wrong))
    for note in _notes(job, drafter):
        job.report(note)
    checkpoints = [
        Stage(
            name=role,
            run=partial(_write_checkpoint, job, role),
            facts=Written,
            sources=(role,),
            inputs={
                "dtype": job.options.dtype,
                "eos_token_ids": job.found.eos_token_ids,
                **job.options.quantization.inputs(role),
            },
            needs=("tokenizer",),
            place=role,
            memory_bytes=job.options.quantization.memory_bytes(role),
        )
        for role in job.roles
    ]
    text = write_arguments(
        llm_arguments(
            job.options,
            drafter,
            max_seq_len=job.target_seq_len,
            draft=job.draft is not None,
            memory=job.memory,
        ),
        job.options.pytorch.version,
    )
    arguments = Stage("arguments", partial(_write_arguments, text), inputs={"text": text}, place="")
    return [*checkpoints, arguments]


def describe(job: Job, done: Done) -> Built:
    """Return what the manifest shall say."""
    drafter, options = _drafter(job), job.options
    engines = {role: _describe(job, role, drafter, done) for role in job.roles}
    version = options.pytorch.version
    fp8 = any(engine.quantization for engine in engines.values())
    return Built(
        target=engines["target"],
        draft=engines.get("draft"),
        compiled=True,
        repairs=mended(job.found),
        speculation=drafter.speculation.replace("-", "_"),
        versions={"tensorrt_llm": version},
        host_needs=HostNeeds(
            min_sm=min_sm(fp8=fp8) or LOWEST_SM,
            gpus=options.tp * options.pp,
            tensorrt_llm=version,
            container=image_with(tensorrt_llm=version) or RELEASE_IMAGE.format(version=version),
        ),
    )


def _drafter(job: Job) -> Drafter:
    return drafter_of(job.target, job.draft, job.options.pytorch, job.options.max_draft_len)


def _notes(job: Job, drafter: Drafter) -> list[str]:
    """Return what the user has to know before anything is written."""
    notes = []
    if drafter.max_draft_len < job.options.max_draft_len:
        notes.append(f"the drafter proposes at most {drafter.max_draft_len} tokens a round")
    if dialect_of(job.options.pytorch.version).one_engine and job.options.pytorch.sampling == "greedy":
        notes.append("answers will be greedy: requests that ask for temperature, top-k or top-p are refused")
    for role in job.roles:
        if job.options.dtype is None and main_float(job.checkpoint(role)) == "float32":
            notes.append(f"{role}: float32, which TensorRT-LLM does not compute in; cast to bfloat16")
    return notes


def _quantization_faults(job: Job, drafter: Drafter) -> list[str]:
    asked = job.options.quantization
    faults = []
    if asked.draft == "fp8" and not (job.draft and identify(job.draft).stand_alone):
        faults.append("--draft-quantization fp8: the draft is no model of its own; quantise the target only")
    if asked.target == "fp8" and drafter.speculation == "mtp":
        faults.append(
            "--target-quantization fp8: the module for multi-token prediction is not quantised here"
        )
    return faults


def _width_faults(job: Job) -> list[str]:
    """Return why both models' probabilities cannot be compared, which rejection sampling does."""
    if (
        job.options.pytorch.sampling != "rejection"
        or job.draft is None
        or not identify(job.draft).stand_alone
    ):
        return []
    ours, theirs = job.target.vocab_size, job.draft.vocab_size
    if ours == theirs:
        return []
    return [f"--sampling rejection: the vocabularies have {ours:,} and {theirs:,} rows, expected as many"]


def _rank_faults(job: Job) -> list[str]:
    """Return which models cannot be split over the ranks; a draft has those of its target."""
    tp, pp = job.options.tp, job.options.pp
    shapes = {role: shape_of(job.checkpoint(role)) for role in job.roles}
    heads = [
        f"--tp {tp}: the {role}'s heads split over {', '.join(map(str, shape.tensor_parallel))} GPUs"
        for role, shape in shapes.items()
        if not shape.splits_over(tp)
    ]
    # A drafter that is no model of its own is not cut into stages.
    layers = [
        f"--pp {pp}: the {role} has {shape.layers} layers, a stage needs one"
        for role, shape in shapes.items()
        if shape.layers and pp > shape.layers and identify(job.checkpoint(role)).stand_alone
    ]
    return heads + layers


def _write_checkpoint(job: Job, role: str, folder: Path, done: Done) -> Written:
    """Write a model as TensorRT-LLM's PyTorch runtime loads it, with the ids that end a text."""
    checkpoint, options = job.checkpoint(role), job.options
    job.report(f"{role}: {checkpoint.architecture} from {checkpoint.path}")
    dtype = _dtype(checkpoint, options)
    fp8, calibration = find_scales(
        Role(role, checkpoint, folder, options.quantization.of(role)),
        options.quantization.fp8,
        "hf",
        dtype,
        done.folder("tokenizer"),
        folder / RESUME,
        job.report,
    )
    plan = plan_hf(checkpoint, dtype=None if fp8 else _cast(checkpoint, dtype), fp8=fp8)
    documents = {name: text for name, text in plan.documents.items() if name != "generation_config.json"}
    documents["config.json"] = spelt_for_both(documents["config.json"])
    write_plan(replace(plan, documents=documents), folder, progress=lambda read, total: done.go_on())
    job.write_generation_config(role, folder)
    return Written(dtype=dtype, quantization=quantization_manifest(fp8, calibration) if fp8 else None)


def _write_arguments(text: str, folder: Path, done: Done) -> NoFacts:
    (folder / ARGUMENTS).write_text(text, "utf-8")
    return NoFacts()


def _describe(job: Job, role: str, drafter: Drafter, done: Done) -> EngineManifest:
    written, options = done.facts(role, Written), job.options
    settings = EngineSettings(
        dtype=written.dtype,
        max_seq_len=job.seq_len(role),
        max_batch_size=options.max_batch_size,
        max_draft_len=drafter.max_draft_len,
        vocab_size=job.target.vocab_size,
        tp=options.tp,
        pp=options.pp,
    )
    return describe_engine(job.checkpoint(role), done.files(role), settings, written.quantization)


def _dtype(checkpoint: Checkpoint, options: BuildOptions) -> EngineDtype:
    """Return what a model computes in."""
    found = options.dtype or main_float(checkpoint)
    return "bfloat16" if found == "float32" else cast(EngineDtype, found)


def _cast(checkpoint: Checkpoint, dtype: EngineDtype) -> str | None:
    """Return what unquantised weights are cast to; None where they are that already."""
    return None if main_float(checkpoint) == dtype or read_fp8(checkpoint) else dtype
