"""Builds in processes of their own, which can be killed; torch and transformers are loaded once for all."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
import time
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from trtspec.build.options import BuildOptions
from trtspec.errors import TrtspecError

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["trtspec.build.pair", "transformers.models.llama.modeling_llama"])

# Far above what a build takes.
PATIENCE_S = 300.0

# What changes the file system, or who may; the content of weights is written between two of them.
STEPS = {
    "fcntl.flock",
    "os.chmod",
    "os.link",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.utime",
    "shutil.copyfile",
    "shutil.rmtree",
}


@dataclass(frozen=True)
class Build:
    """A build to run in a process; `folder` holds target/ and draft/."""

    folder: Path
    output: Path
    cache: Path
    options: BuildOptions = field(default_factory=lambda: BuildOptions(fingerprint=False))
    # Killed before its n-th step, or when a report begins so; None: not at all.
    kill_at_step: int | None = None
    kill_at_line: str | None = None
    # Waits, when a report begins so, until the file is there.
    pause_at_line: str | None = None
    until: Path | None = None
    largest_file_bytes: int | None = None

    @property
    def log(self) -> Path:
        """What it reports goes there, and "steps N" and its error at its end."""
        return self.output.with_suffix(".log")

    def lines(self) -> list[str]:
        """Return what it has reported so far."""
        return self.log.read_text().splitlines() if self.log.exists() else []


def start(build: Build) -> ForkServerProcess:
    """Start a build; the caller joins it."""
    process = CONTEXT.Process(target=_run, args=(build,))
    process.start()
    return process


def run(build: Build) -> int:
    """Run a build to its end and return its exit code, -9 where it was killed."""
    process = start(build)
    process.join(PATIENCE_S)
    assert process.exitcode is not None
    return process.exitcode


def wait_for_line(build: Build, beginning: str, process: ForkServerProcess) -> None:
    """Wait until a build has reported a line that begins so."""
    while not any(line.startswith(beginning) for line in build.lines()):
        assert process.is_alive(), build.lines()
        time.sleep(0.005)


def _run(build: Build) -> None:
    import torch

    from trtspec.build.pair import build as build_pair

    torch.set_num_threads(1)
    if build.largest_file_bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (build.largest_file_bytes, resource.RLIM_INFINITY))
    steps = 0

    def count(event: str, arguments: object) -> None:
        nonlocal steps
        if event in STEPS:
            steps += 1
            if steps == build.kill_at_step:
                os.kill(os.getpid(), signal.SIGKILL)

    with build.log.open("a", buffering=1) as log:

        def report(line: str) -> None:
            log.write(f"{line}\n")
            if build.kill_at_line and line.startswith(build.kill_at_line):
                os.kill(os.getpid(), signal.SIGKILL)
            while build.pause_at_line and line.startswith(build.pause_at_line):
                assert build.until
                if build.until.exists():
                    break
                time.sleep(0.005)

        sys.addaudithook(count)
        target, draft = build.folder / "target", build.folder / "draft"
        try:
            build_pair(target, draft, build.output, build.options, cache=build.cache, report=report)
        except TrtspecError as error:
            report(f"{type(error).__name__}: {error}")
            sys.exit(1)
        report(f"steps {steps}")
