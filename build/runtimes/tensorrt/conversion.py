"""A checkpoint in TensorRT-LLM's layout, quantised where asked: what `trtllm-build` reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast, get_args

from pydantic import BaseModel

from trtspec.build.convert.converter import plan_conversion, write_plan
from trtspec.build.quantize.pair_quantizer import Role, find_scales, quantization_manifest
from trtspec.build.runtimes.job import Job
from trtspec.build.runtimes.tensorrt.planning import (
    PlannedEngine,
    fp8_options,
    split,
    vocabulary,
)
from trtspec.build.stages import RESUME
from trtspec.choices import EngineDtype
from trtspec.engines.manifest import QuantizationManifest
from trtspec.errors import BuildError


class Converted(BaseModel):
    """What is known of a checkpoint once it is written in TensorRT-LLM's layout."""

    dtype: EngineDtype
    quantization: QuantizationManifest | None


def convert_role(
    job: Job, engine: PlannedEngine, folder: Path, tokenizer: Path, go_on: Callable[[], None]
) -> Converted:
    """Write config.json and rank{r}.safetensors of one model into a folder.

    Raises:
        CheckpointError: the weights hold NaN or Inf.
        BuildError: FP8 cannot hold the model, or the engine cannot compute in its dtype.
    """
    role, checkpoint, options = engine.role, job.checkpoint(engine.role), job.options
    dtype = _dtype(engine.model.dtype)
    job.report(f"{role}: {checkpoint.architecture} from {checkpoint.path}")
    asked = Role(role, checkpoint, folder, options.quantization.of(role))
    fp8, calibration = find_scales(
        asked, fp8_options(job), "trtllm", dtype, tokenizer, folder / RESUME, job.report
    )
    plan = plan_conversion(checkpoint, "trtllm", options.dtype, *split(job, role), fp8, vocabulary(job, role))
    for note in plan.notes:
        if note not in engine.notes:
            job.report(f"{role}: {note}")
    write_plan(plan, folder, progress=lambda done, total: go_on())
    return Converted(dtype=dtype, quantization=quantization_manifest(fp8, calibration) if fp8 else None)


def _dtype(name: str) -> EngineDtype:
    if name not in get_args(EngineDtype):
        raise BuildError(f"engines of dtype {name} are not made; give --dtype")
    return cast(EngineDtype, name)
