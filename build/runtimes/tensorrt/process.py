"""Run a program that takes long: what it says goes to a file, and it never outlives the build."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trtspec.build.runtimes.tensorrt import guarded

LOOK_EVERY_S = 0.2


def run_logged(
    command: Sequence[str],
    log: Path,
    *,
    folder: Path,
    environment: Mapping[str, str],
    go_on: Callable[[], None],
    afterwards: Sequence[str] = (),
) -> int:
    """Run a command to its end and return its exit code; negative: the signal that ended it.

    Args:
        log: gets both of its streams.
        folder: where it runs.
        go_on: called while it runs; when it raises, as when Ctrl-C does, the program and all that it has
            started are ended. So they are when this process is killed.
        afterwards: a command to run once the program had to be ended.
    """
    guard = [sys.executable, "-I", "-S", guarded.__file__, json.dumps(list(afterwards))]
    with (
        log.open("wb") as sink,
        subprocess.Popen(
            [*guard, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=sink,
            cwd=folder,
            env=environment,
            start_new_session=True,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(LOOK_EVERY_S)
                    break
                go_on()
        finally:
            process.stdin.close()
            process.wait()
        code = process.stdout.read()
    return int(code) if code else process.returncode


def last_lines(log: Path, count: int = 15, longest: int = 300) -> str:
    """Return the end of a log, each line cut to a readable length and indented."""
    lines = log.read_text("utf-8", "replace").splitlines()[-count:]
    return "\n".join(f"  {line.rstrip()[:longest]}" for line in lines)
