"""What a build for TensorRT-LLM would do: the plan and the exact commands, and nothing written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trtspec.build.options import BuildOptions
from trtspec.build.pair import open_job
from trtspec.build.runtimes.job import Job, Report
from trtspec.build.runtimes.tensorrt.planning import PlannedEngine, notes_of, plan_engines
from trtspec.build.runtimes.tensorrt.toolchain import Container, Run
from trtspec.engines.memory.result import MemoryPlan
from trtspec.engines.versions import newest_container
from trtspec.errors import BuildError


@dataclass(frozen=True)
class EnginePreview:
    """One engine that would be made."""

    role: str
    architecture: str
    dtype: str
    quantization: str | None
    tp: int
    pp: int
    checkpoint_bytes: int
    command: Sequence[str]  # CHECKPOINT and ENGINE stand for folders that a build makes for itself


@dataclass(frozen=True)
class Preview:
    """A build that has not been started."""

    engines: Sequence[EnginePreview]
    notes: Sequence[str]
    memory: MemoryPlan | None


def preview(
    target: Path, draft: Path | None, output: Path, options: BuildOptions, *, report: Report = print
) -> Preview:
    """Return what `build` would do, from headers alone.

    Raises as `build` does, except where this machine has no trtllm-build.
    """
    if options.runtime != "tensorrt":
        raise BuildError(f"--runtime {options.runtime} runs no commands, so there is nothing to show")
    job = open_job(target, draft, output, options, report=report)
    engines, wrong = plan_engines(job)
    if wrong:
        raise BuildError("; ".join(wrong))
    return Preview([_preview(job, engine) for engine in engines], notes_of(engines), job.memory)


def _preview(job: Job, engine: PlannedEngine) -> EnginePreview:
    model = engine.model
    return EnginePreview(
        role=model.role,
        architecture=model.architecture,
        dtype=model.dtype,
        quantization=model.quantization,
        tp=model.tp,
        pp=model.pp,
        checkpoint_bytes=engine.checkpoint_bytes,
        command=_command(job, engine),
    )


def _command(job: Job, engine: PlannedEngine) -> Sequence[str]:
    checkpoint, output = Path(f"/CHECKPOINT/{engine.role}"), Path(f"/ENGINE/{engine.role}")
    asked = job.options.tensorrt
    if asked.compile != "container":
        return engine.command.argv(checkpoint, output)
    container = Container(Path("docker"), asked.image or newest_container().image)
    nowhere = Path("/")
    run = Run(engine.command, checkpoint, output, nowhere, nowhere, None, lambda: None)
    return container.argv(run, f"trtspec-{engine.role}")
