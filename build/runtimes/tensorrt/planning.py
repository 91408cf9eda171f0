"""What becomes of each model of a pair, from headers alone; all that is wrong is said at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trtspec.build.check.model_shape import shape_of
from trtspec.build.convert.converter import plan_conversion
from trtspec.build.quantize.quantizer import Fp8Options, check_options
from trtspec.build.quantize.ready_made import read_fp8
from trtspec.build.quantize.texts import read_texts
from trtspec.build.runtimes.job import Job
from trtspec.build.runtimes.tensorrt.commands import BuildCommand, build_command
from trtspec.build.runtimes.tensorrt.conflicts import (
    PER_TENSOR,
    Model,
    length_faults,
    model_faults,
    token_faults,
)
from trtspec.errors import BuildError

ROLES = ("target", "draft")


@dataclass(frozen=True)
class PlannedEngine:
    """One engine to be made."""

    model: Model
    command: BuildCommand
    checkpoint_bytes: int  # of the converted checkpoint, all ranks
    notes: tuple[str, ...]  # what the user has to know

    @property
    def role(self) -> str:
        return self.model.role

    @property
    def ranks(self) -> int:
        return self.model.tp * self.model.pp


def plan_engines(job: Job) -> tuple[tuple[PlannedEngine, ...], list[str]]:
    """Return both engines, and what keeps them from being made.

    Raises:
        CheckpointError, BuildError: a checkpoint cannot be converted as asked.
    """
    planned = tuple(_plan(job, role) for role in ROLES)
    models = [engine.model for engine in planned]
    faults = model_faults(job.options, models) + length_faults(job.target_seq_len, models)
    faults += token_faults(job.options, planned[0].command.number("max_num_tokens"))
    return planned, list(dict.fromkeys(faults))


def split(job: Job, role: str) -> tuple[int, int]:
    """Return the tensor-parallel ranks and pipeline stages of an engine."""
    options = job.options
    if role == "target":
        return options.tp, options.pp
    return options.tensorrt.draft_tp or options.tp, options.tensorrt.draft_pp or options.pp


def vocabulary(job: Job, role: str) -> int | None:
    """Return the rows of embedding and head that a model gets; None: those that it has.

    TensorRT-LLM wants both models to have logits of one width, and the draft to know every id that the
    target may say. The draft gets the target's: whatever it then proposes, the target decides.
    """
    same = job.target.vocab_size == job.checkpoint("draft").vocab_size
    return None if role == "target" or same else job.target.vocab_size


def fp8_options(job: Job) -> Fp8Options:
    """Return how a model is quantised."""
    asked = job.options.quantization
    return Fp8Options(
        calibrate=asked.calibrate, kv_cache=job.options.tensorrt.kv_cache == "fp8", device=asked.device
    )


def _plan(job: Job, role: str) -> PlannedEngine:
    checkpoint, options = job.checkpoint(role), job.options
    tp, pp = split(job, role)
    ready_made = read_fp8(checkpoint)
    quantised = ready_made is None and job.options.quantization.of(role) == "fp8"
    if quantised:
        check_options(checkpoint, fp8_options(job), "trtllm")
        if isinstance(texts := options.quantization.calibrate, Path):
            read_texts(texts)
    try:
        plan = plan_conversion(checkpoint, "trtllm", options.dtype, tp, pp, ready_made, vocabulary(job, role))
    except BuildError as error:
        own = "; the draft alone is split with --draft-tp and --draft-pp" if role == "draft" else ""
        raise BuildError(f"{role}: {error}{own}") from error
    model = Model(
        role=role,
        architecture=checkpoint.architecture,
        dtype=plan.dtype,
        quantization=ready_made.algorithm if ready_made else PER_TENSOR if quantised else None,
        fp8_cache=bool(ready_made.cache) if ready_made else quantised and fp8_options(job).kv_cache,
        tp=tp,
        pp=pp,
        context=shape_of(checkpoint).context_length or job.target_seq_len,
    )
    command = build_command(model, options, job.target_seq_len)
    return PlannedEngine(model, command, plan.size_bytes, plan.notes + _prompt_note(command))


def _prompt_note(command: BuildCommand) -> tuple[str, ...]:
    tokens, longest = command.number("max_num_tokens"), command.number("max_input_len")
    if tokens >= longest:
        return ()
    return (f"prompts of more than {tokens} tokens need enable_chunked_context when served",)


def notes_of(engines: Sequence[PlannedEngine]) -> list[str]:
    """Return what the user has to know, each said once, with the model it is about."""
    return [f"{engine.role}: {note}" for engine in engines for note in engine.notes]
