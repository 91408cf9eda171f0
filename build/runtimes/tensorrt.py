"""Engines of TensorRT-LLM 1.2.1: each checkpoint converted, for `trtllm-build` to compile."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import cast, get_args

from pydantic import BaseModel

from trtspec.build.convert.converter import plan_conversion, write_plan
from trtspec.build.options import BuildOptions
from trtspec.build.runtimes.job import Built, Job, describe_engine, mended
from trtspec.build.stages import Done, Stage
from trtspec.engines.manifest import EngineDtype, EngineManifest, EngineSettings
from trtspec.errors import BuildError

ROLES = ("target", "draft")


class Converted(BaseModel):
    """What is known of a checkpoint once it is written in TensorRT-LLM's layout."""

    dtype: EngineDtype


def faults(options: BuildOptions) -> Sequence[str]:
    """Return what is wrong with the options on this runtime."""
    if "fp8" in (options.quantization.target, options.quantization.draft):
        return [
            "--runtime tensorrt with FP8: quantise each model with `trtspec convert --quantization fp8`",
        ]
    return []


def stages(job: Job) -> Sequence[Stage]:
    """Return the steps: both conversions."""
    return [
        Stage(
            name=role,
            run=partial(_convert, job, role),
            facts=Converted,
            sources=(role,),
            inputs={"dtype": job.options.dtype, "tp": job.options.tp, "pp": job.options.pp},
            place=role,
        )
        for role in ROLES
    ]


def describe(job: Job, done: Done) -> Built:
    """Return what the manifest shall say; TensorRT-LLM checkpoints keep their vocabulary's width."""
    target, draft = (_describe_engine(job, role, done) for role in ROLES)
    repairs = tuple(repair for repair in mended(job.found) if repair != "vocab.width")
    return Built(target=target, draft=draft, compiled=False, repairs=repairs)


def _convert(job: Job, role: str, folder: Path, done: Done) -> Converted:
    checkpoint, options = job.checkpoint(role), job.options
    job.report(f"{role}: {checkpoint.architecture} from {checkpoint.path}")
    plan = plan_conversion(checkpoint, "trtllm", options.dtype, options.tp, options.pp)
    for note in plan.notes:
        job.report(f"{role}: {note}")
    write_plan(plan, folder)
    return Converted(dtype=_dtype(plan.dtype))


def _dtype(name: str) -> EngineDtype:
    if name not in get_args(EngineDtype):
        raise BuildError(f"engines of dtype {name} are not made; give --dtype")
    return cast(EngineDtype, name)


def _describe_engine(job: Job, role: str, done: Done) -> EngineManifest:
    checkpoint, options = job.checkpoint(role), job.options
    settings = EngineSettings(
        dtype=done.facts(role, Converted).dtype,
        max_seq_len=job.seq_len(role),
        max_batch_size=options.max_batch_size,
        max_draft_len=options.max_draft_len,
        vocab_size=checkpoint.vocab_size,
        tp=options.tp,
        pp=options.pp,
    )
    return describe_engine(checkpoint, done.folder(role), settings, None)
