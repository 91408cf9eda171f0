"""What a Triton server can leave behind, and a guard that removes it when its owner is killed.

Every process of a server carries a marker in its environment, and its shared memory has the
marker as prefix, so both are found whoever their parent is by now. Run as a script this file is
the guard; it therefore imports the standard library only.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

VARIABLE = "TRTSPEC_SERVER"
SHARED_MEMORY = Path("/dev/shm")
END_TIMEOUT_S = 10.0
POLL_S = 0.05
GUARD_POLL_S = 0.2


def new_marker() -> str:
    """Return a name no other server on this machine has."""
    return f"trtspec_{secrets.token_hex(6)}_"


def processes(marker: str) -> list[int]:
    """Return the ids of the live processes started with this marker, in whatever group or session."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal() and carries(int(name), marker)]


def carries(pid: int, marker: str) -> bool:
    """Whether this process is alive (not a zombie) and was started with the marker."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # gone, or another user's
        return False
    return f"{VARIABLE}={marker}".encode() in environment.split(b"\0")


def end_processes(marker: str) -> None:
    """Kill every process that carries the marker, and those they start meanwhile; bounded."""
    deadline = time.monotonic() + END_TIMEOUT_S
    none_seen = 0
    # A process shows no environment in the moment of its exec, so none has to be seen twice.
    while none_seen < 2 and time.monotonic() < deadline:
        alive = processes(marker)
        for pid in alive:
            _kill(pid)
        none_seen = 0 if alive else none_seen + 1
        time.sleep(POLL_S)


def remove_shared_memory(marker: str) -> None:
    """Remove the regions whose names start with the marker."""
    for region in SHARED_MEMORY.glob(f"{marker}*"):
        region.unlink(missing_ok=True)


def remove(marker: str, run_directory: Path) -> None:
    """End what still runs, then remove its shared memory and its private folder."""
    end_processes(marker)
    remove_shared_memory(marker)
    shutil.rmtree(run_directory, ignore_errors=True)


def start_guard(marker: str, run_directory: Path) -> subprocess.Popen[bytes]:
    """Start a process that calls `remove` as soon as this one is gone, however it went.

    A parent-death signal would reach the server alone, not its stubs, and would also fire when
    only the starting thread ends. The guard has a session of its own, so Ctrl-C passes it by.
    """
    arguments = [str(os.getpid()), marker, str(run_directory)]
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


def guard(owner: int, marker: str, run_directory: Path) -> None:
    """Wait until the parent is not the owner any more, then remove what the server left."""
    while os.getppid() == owner:
        time.sleep(GUARD_POLL_S)
    remove(marker, run_directory)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    guard(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
