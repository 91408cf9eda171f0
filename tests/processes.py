"""What has become of processes that a test did not start itself."""

from __future__ import annotations

import time
from pathlib import Path

PATIENCE_S = 20.0


def ends(pid: int) -> bool:
    """Whether a process is gone, or a zombie, soon: one that was killed still needs a core to end."""
    deadline = time.monotonic() + PATIENCE_S
    while alive := is_alive(pid):
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    return not alive


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"
