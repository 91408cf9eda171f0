"""Run a program that ends, with all that it has started, when its owner ends: even by SIGKILL.

    python -I -S guarded.py AFTERWARDS PROGRAM ARGUMENT…

The owner keeps stdin open. Once that is closed, the program is asked to end, then killed, and AFTERWARDS
(JSON, a command or []) is run. stderr gets both of the program's streams, stdout its exit code where it
has ended by itself. Run as a script, hence of the standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

LOOK_EVERY_S = 0.1
# From asking a program to end until it is killed; trtllm-build has nothing to save.
GRACE_S = 3.0
AFTERWARDS_S = 60.0
NOT_STARTED = 127  # as a shell says it


def main(afterwards: Sequence[str], command: Sequence[str]) -> int:
    """Run the program to its end, or to that of the owner."""
    try:
        program = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True
        )
    except OSError as error:
        sys.stderr.write(f"{command[0]}: cannot be run: {error.strerror}\n")
        return NOT_STARTED
    owned = True
    while owned and program.poll() is None:
        owned = not select.select([sys.stdin], [], [], LOOK_EVERY_S)[0]
    code = program.poll()
    _end_group(program)
    if code is not None:
        sys.stdout.write(str(code))
    elif afterwards:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(afterwards, capture_output=True, check=False, timeout=AFTERWARDS_S)
    return 0


def _end_group(program: subprocess.Popen[bytes]) -> None:
    """End a program and its children; those may live on when it has ended by itself."""
    _signal_group(program, signal.SIGTERM)
    patience = time.monotonic() + GRACE_S
    while time.monotonic() < patience:
        if program.poll() is not None and not _signal_group(program, 0):
            return
        time.sleep(0.02)
    _signal_group(program, signal.SIGKILL)
    program.wait()


def _signal_group(program: subprocess.Popen[bytes], number: int) -> bool:
    """Send a signal to a program and its children; return whether there were any. 0 only looks."""
    try:
        os.killpg(program.pid, number)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1]), sys.argv[2:]))
