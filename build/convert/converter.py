"""One Hugging Face checkpoint converted, streaming, into a TensorRT-LLM or Hugging Face folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trtspec.build.checkpoint import Checkpoint, open_checkpoint
from trtspec.build.convert.formats import FLOATS, FORMATS
from trtspec.build.convert.fp8 import Fp8Scales
from trtspec.build.convert.hf_plan import plan_hf
from trtspec.build.convert.plan import Plan
from trtspec.build.convert.settings import section, settings_of
from trtspec.build.convert.stream import Progress, write_contents, write_files
from trtspec.build.convert.trtllm_plan import plan_trtllm
from trtspec.engines import publish
from trtspec.errors import BuildError, OutputError

# More than this and they wait for the same disk.
MAX_DEFAULT_WORKERS = 4
# What writing a model takes, whatever its size: 25 MB were measured (benchmarks/convert.py).
WRITING_BYTES = 32 << 20

# Values of quant_method whose weights may be FP8; other ways to quantise are not read.
FP8_METHODS = ("modelopt", "compressed-tensors", "fp8")


@dataclass(frozen=True)
class Conversion:
    """What a conversion wrote."""

    output: Path
    format: str
    architecture: str
    dtype: str
    tp: int
    pp: int
    tied: bool | None  # whether head and embedding are one matrix; None: not looked at
    tensors: int
    size_bytes: int
    notes: tuple[str, ...]  # what the user has to know


def convert(
    checkpoint: Checkpoint | Path | str,
    output: Path | str,
    *,
    format: str = "trtllm",
    dtype: str | None = None,
    tp: int = 1,
    pp: int = 1,
    workers: int | None = None,
    fp8: Fp8Scales | None = None,
    complete: Callable[[], Fp8Scales] | None = None,
    progress: Progress | None = None,
) -> Conversion:
    """Convert one checkpoint into a new folder, which appears whole or not at all.

    Args:
        checkpoint: an opened checkpoint, or a Hugging Face folder.
        output: the folder to make; it must not exist.
        format: "trtllm" (config.json and rank{r}.safetensors, TensorRT-LLM 1.2.1) or "hf".
        dtype: float16, bfloat16 or float32; None keeps the checkpoint's own.
        tp: tensor-parallel ranks, pp: pipeline stages; 1 for "hf".
        workers: threads; None takes one for each core, four at most.
        fp8: scales to quantise with; see trtspec.build.quantize.
        complete: asked once the codes are written, which activation scales have no part in; returns
            `fp8` with the true ones.
        progress: called with the source bytes done and in all.

    Raises:
        CheckpointError: the checkpoint cannot be used as it is.
        BuildError: it cannot be converted as asked.
        OutputError: `output` cannot be made. Nothing is left behind in any case.
    """
    if isinstance(checkpoint, Path | str):
        checkpoint = open_checkpoint(Path(checkpoint))
    output = Path(output)
    check_output(output, checkpoint)
    plan = plan_conversion(checkpoint, format, dtype, tp, pp, fp8)
    with publish.publish(output) as folder:
        write_plan(plan, folder, workers=workers, progress=progress)
        if complete:
            final = plan_conversion(checkpoint, format, dtype, tp, pp, complete())
            write_contents(final.weights, folder)
    return Conversion(
        output=output,
        format=format,
        architecture=checkpoint.architecture,
        dtype=plan.dtype,
        tp=tp,
        pp=pp,
        tied=plan.tied,
        tensors=sum(len(file.tensors) for file in plan.weights),
        size_bytes=plan.size_bytes,
        notes=plan.notes,
    )


def plan_conversion(
    checkpoint: Checkpoint,
    format: str,
    dtype: str | None,
    tp: int,
    pp: int,
    fp8: Fp8Scales | None = None,
    vocabulary: int | None = None,
) -> Plan:
    """Return what a conversion would write; everything that can be refused by headers alone is.

    Args:
        vocabulary: rows that embedding and head shall have, of "trtllm"; None: as they are.
    """
    if dtype is not None and dtype not in FLOATS:
        raise BuildError(f"dtype is {dtype!r}, expected one of {', '.join(FLOATS)}")
    with settings_of(checkpoint.path):
        _check_method(checkpoint)
        if format == "trtllm":
            return plan_trtllm(checkpoint, dtype=dtype, tp=tp, pp=pp, fp8=fp8, vocabulary=vocabulary)
    if format != "hf":
        raise BuildError(f"format is {format!r}, expected one of {', '.join(FORMATS)}")
    if (tp, pp) != (1, 1):
        raise BuildError(
            f"--tp {tp} --pp {pp}: a Hugging Face folder is split by its runtime, not here; leave them out"
        )
    return plan_hf(checkpoint, dtype=dtype, fp8=fp8)


def _check_method(checkpoint: Checkpoint) -> None:
    method = section(checkpoint.config, "quantization_config").get("quant_method", "modelopt")
    if method not in FP8_METHODS:
        raise BuildError(
            f"{checkpoint.path}: quantised by {method}; convert an unquantised or FP8 checkpoint"
        )


def check_output(output: Path, checkpoint: Checkpoint) -> None:
    """Raise OutputError where `output` cannot be made."""
    publish.check_output(output)
    if output.resolve().is_relative_to(checkpoint.path.resolve()):
        raise OutputError(
            f"{output}: lies inside {checkpoint.path}, which it is made from; name another folder"
        )


def write_plan(
    plan: Plan, folder: Path, *, workers: int | None = None, progress: Progress | None = None
) -> None:
    """Write everything that a plan holds into a folder that exists."""
    free = shutil.disk_usage(folder).free
    if free < plan.size_bytes:
        raise OutputError(
            f"{folder}: {free:,} bytes free, the conversion needs {plan.size_bytes:,}; free some"
        )
    for name, content in sorted(plan.documents.items()):
        (folder / name).write_bytes(content)
    workers = workers or min(os.cpu_count() or 1, MAX_DEFAULT_WORKERS)
    write_files(plan.weights, folder, workers=workers, progress=progress)
