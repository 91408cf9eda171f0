"""One engine compiled with `trtllm-build`, and looked at."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import BaseModel

from trtspec.build.runtimes.job import Job
from trtspec.build.runtimes.tensorrt.built_engine import check_engine
from trtspec.build.runtimes.tensorrt.engine_config import EngineConfig
from trtspec.build.runtimes.tensorrt.planning import PlannedEngine
from trtspec.build.runtimes.tensorrt.process import last_lines
from trtspec.build.runtimes.tensorrt.toolchain import Run, Toolchain, Versions
from trtspec.engines.host import HostFacts
from trtspec.errors import BuildError

# In the folder of an engine that was compiled.
LOG = "trtllm-build.log"


class Compiled(BaseModel):
    """What is known of an engine once it is compiled."""

    config: EngineConfig
    versions: Versions
    sm: int | None  # of the GPU that compiled it


Gpus = tuple[str, ...] | None


def share_gpus(host: HostFacts, ranks: Sequence[int]) -> tuple[Gpus, ...]:
    """Return the GPUs that each engine is compiled on, None for all of them.

    trtllm-build times kernels to choose them, which a second one on the same GPU would spoil: engines are
    compiled side by side only where every rank has a GPU of its own.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    found = [str(i) for i in range(len(host.gpus))] if visible is None else visible.split(",")
    if len(found) < sum(ranks):
        return (None,) * len(ranks)
    starts = [sum(ranks[:i]) for i in range(len(ranks))]
    return tuple(tuple(found[start : start + n]) for start, n in zip(starts, ranks, strict=True))


def compile_role(
    job: Job,
    engine: PlannedEngine,
    toolchain: Toolchain,
    versions: Versions,
    gpus: Gpus,
    sm: int | None,
    checkpoint: Path,
    folder: Path,
    go_on: Callable[[], None],
) -> Compiled:
    """Compile one engine into a folder; its log lies beside the pair until that has worked.

    Raises:
        BuildError: trtllm-build failed, or made another engine than it was asked for.
    """
    log = job.output.parent / f"{job.output.name}.{engine.role}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    ranks = f"{engine.ranks} ranks" if engine.ranks > 1 else "1 rank"
    job.report(f"{engine.role}: trtllm-build {versions.tensorrt_llm} compiles {ranks}; log: {log}")
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="trtspec-", ignore_cleanup_errors=True) as scratch:
        run = Run(engine.command, checkpoint, folder, log, Path(scratch), gpus, go_on)
        code = toolchain.compile(run)
    if code:
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        raise BuildError(f"{engine.role}: trtllm-build {how}; its log is {log} and ends:\n{last_lines(log)}")
    try:
        config = check_engine(
            folder, engine.command, checkpoint, name=engine.role, version=versions.tensorrt_llm
        )
    except BuildError as error:
        raise BuildError(f"{error}; its log is {log} and ends:\n{last_lines(log)}") from error
    shutil.move(log, folder / LOG)
    job.report(f"{engine.role}: compiled in {time.monotonic() - begin:.0f} s")
    return Compiled(config=config, versions=versions, sm=sm)
