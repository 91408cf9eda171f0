"""Run a program that takes long: what it says goes to a file, and it never outlives the build."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

LOOK_EVERY_S = 0.2
# From asking a program to end until it is killed; trtllm-build has nothing to save.
GRACE_S = 3.0


def run_logged(
    command: Sequence[str],
    log: Path,
    *,
    folder: Path,
    environment: Mapping[str, str],
    go_on: Callable[[], None],
) -> int:
    """Run a command to its end and return its exit code; negative: the signal that ended it.

    Args:
        log: gets both of its streams.
        folder: where it runs.
        go_on: called while it runs; when it raises, as when Ctrl-C does, the program and all that it has
            started are ended.
    """
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return process.wait(LOOK_EVERY_S)
                go_on()
        finally:
            _end_group(process)


def last_lines(log: Path, count: int = 15, longest: int = 300) -> str:
    """Return the end of a log, each line cut to a readable length and indented."""
    lines = log.read_text("utf-8", "replace").splitlines()[-count:]
    return "\n".join(f"  {line.rstrip()[:longest]}" for line in lines)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End a program and its children; those may live on when it has ended by itself."""
    _signal_group(process, signal.SIGTERM)
    patience = time.monotonic() + GRACE_S
    while time.monotonic() < patience:
        if process.poll() is not None and not _signal_group(process, 0):
            return
        time.sleep(0.02)
    _signal_group(process, signal.SIGKILL)
    process.wait()


def _signal_group(process: subprocess.Popen[bytes], number: int) -> bool:
    """Send a signal to a program and its children; return whether there were any. 0 only looks."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return False
    return True
