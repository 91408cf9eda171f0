"""Engines of the cpu runtime: Hugging Face checkpoints with an `engine.json`, FP8 where asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path

from pydantic import BaseModel

from trtspec import dtype_noise
from trtspec.build.check.drafters import LANGUAGE_MODELS
from trtspec.build.json_file import write_json
from trtspec.build.options import BuildOptions
from trtspec.build.quantize.pair_quantizer import QuantizedRole, Role, measure_quality, write_role
from trtspec.build.runtimes.job import Built, Job, describe_engine, mended
from trtspec.build.stages import RESUME, Done, Stage
from trtspec.choices import EngineDtype
from trtspec.dtype_noise import served_dtype
from trtspec.engines.fingerprint import fingerprint_of
from trtspec.engines.host import min_sm
from trtspec.engines.manifest import (
    AcceptanceManifest,
    EngineSettings,
    FingerprintManifest,
    HostNeeds,
    QuantizationManifest,
)
from trtspec.errors import TrtspecError

ROLES = ("target", "draft")
DRAFTERS = LANGUAGE_MODELS


class Written(BaseModel):
    """What is known of an engine once its weights are written."""

    quantization: QuantizationManifest | None


class Measured(BaseModel):
    """What quantising the pair cost."""

    quantizations: dict[str, QuantizationManifest]  # by role
    acceptance: AcceptanceManifest | None


def faults(options: BuildOptions) -> Sequence[str]:
    """Return what is wrong with the options on this runtime."""
    wrong = []
    if options.dtype == "float16":
        wrong.append("--runtime cpu computes in float32 or bfloat16, not float16")
    if (options.tp, options.pp) != (1, 1):
        wrong.append("--tp and --pp are for --runtime tensorrt and pytorch")
    return wrong


def stages(job: Job) -> Sequence[Stage]:
    """Return the steps: both models, then what quantising them cost."""
    engines = [
        Stage(
            name=role,
            run=partial(_write_engine, job, role),
            facts=Written,
            sources=(role,),
            inputs={
                "settings": _settings(job, role).model_dump(),
                "eos_token_ids": job.found.eos_token_ids,
                **job.options.quantization.inputs(role),
            },
            needs=("tokenizer",),
            place=role,
            memory_bytes=job.options.quantization.memory_bytes(role),
        )
        for role in ROLES
    ]
    measure = Stage(
        name="quality",
        run=partial(_measure, job),
        facts=Measured,
        inputs={"quantization": asdict(job.options.quantization)},
        needs=("tokenizer", *ROLES),
        sources=ROLES,
    )
    probe = Stage(
        name="fingerprint",
        run=partial(_probe, job),
        facts=FingerprintManifest,
        inputs={"noise": Path(dtype_noise.__file__)},
        needs=("tokenizer", *ROLES),
    )
    return [*engines, measure, *([probe] if job.options.fingerprint else [])]


def describe(job: Job, done: Done) -> Built:
    """Return what the manifest shall say."""
    measured = done.facts("quality", Measured)
    target, draft = (
        describe_engine(
            job.checkpoint(role),
            done.files(role),
            _settings(job, role),
            measured.quantizations.get(role),
        )
        for role in ROLES
    )
    needed_sm = min_sm(fp8=bool(measured.quantizations))
    return Built(
        target=target,
        draft=draft,
        compiled=True,
        repairs=mended(job.found),
        acceptance=measured.acceptance,
        fingerprint=done.facts("fingerprint", FingerprintManifest) if job.options.fingerprint else None,
        host_needs=None if needed_sm is None else HostNeeds(min_sm=needed_sm),
    )


def _settings(job: Job, role: str) -> EngineSettings:
    """Return what an engine is to hold; the narrower model gets the wider one's vocabulary."""
    return EngineSettings(
        dtype=_dtype(job),
        max_seq_len=job.seq_len(role),
        max_batch_size=job.options.max_batch_size,
        max_draft_len=job.options.max_draft_len,
        vocab_size=max(job.checkpoint(name).vocab_size for name in ROLES),
    )


def _dtype(job: Job) -> EngineDtype:
    return job.options.dtype or "float32"


def _write_engine(job: Job, role: str, folder: Path, done: Done) -> Written:
    """Write config.json, generation_config.json, engine.json and weights."""
    checkpoint = job.checkpoint(role)
    job.report(f"{role}: {checkpoint.architecture} from {checkpoint.path}")
    made = write_role(
        _role(job, role, folder),
        job.options.quantization,
        _dtype(job),
        done.folder("tokenizer"),
        folder / RESUME,
        job.report,
        lambda read, total: done.go_on(),
    )
    job.write_generation_config(role, folder)
    write_json(folder / "engine.json", _settings(job, role).model_dump(exclude={"tp", "pp"}))
    return Written(quantization=made.manifest if made else None)


def _probe(job: Job, folder: Path, done: Done) -> FingerprintManifest:
    job.report("fingerprint: running the engines on a few prompts")
    target, draft = (done.folder(role) for role in ROLES)
    dtypes = {
        role: served_dtype(_dtype(job), quantized=done.facts(role, Written).quantization is not None)
        for role in ROLES
    }
    with _named_as_given(job, done):
        return fingerprint_of(target, draft, done.folder("tokenizer"), dtypes)


@contextmanager
def _named_as_given(job: Job, done: Done) -> Iterator[None]:
    """Name in errors about an engine what it was made from: its folder in the store is nobody's to know."""
    try:
        yield
    except TrtspecError as error:
        for role in ROLES:
            folder, said = str(done.folder(role)), str(error)
            if folder in said:
                said = said.replace(f"{folder}: ", "").replace(f"{folder}/", "").replace(folder, "its folder")
                source = job.checkpoint(role).path
                raise type(error)(f"{source}: the {role} cannot be run as built from it: {said}") from error
        raise


def _measure(job: Job, folder: Path, done: Done) -> Measured:
    quantised = [
        QuantizedRole(_role(job, role, done.folder(role)), found)
        for role in ROLES
        if (found := done.facts(role, Written).quantization)
    ]
    target, draft = (_role(job, role, done.folder(role)) for role in ROLES)
    with _named_as_given(job, done):
        quantizations, acceptance = measure_quality(
            target,
            draft,
            quantised,
            job.options.quantization,
            _dtype(job),
            done.folder("tokenizer"),
            job.report,
        )
    return Measured(quantizations=quantizations, acceptance=acceptance)


def _role(job: Job, role: str, folder: Path) -> Role:
    return Role(role, job.checkpoint(role), folder, job.options.quantization.of(role))
