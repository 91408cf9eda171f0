"""Locks between processes, which the death of their holder releases."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

from trtspec.errors import OutputError

POLL_S = 0.05


class Lock:
    """A lock on a file, which is made and stays: removing it would let two hold a lock of that name.

    Several may share it, or one hold it alone. It belongs to this object, not to the process: two
    threads lock each other out too.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def share(self, waits: Callable[[], None]) -> None:
        """Wait until nobody holds it alone; what this object held before is given up."""
        self._wait(fcntl.LOCK_SH, waits)

    def take(self, waits: Callable[[], None]) -> None:
        """Wait until nobody else holds it; what this object held before is given up."""
        self._wait(fcntl.LOCK_EX, waits)

    def try_to_take(self) -> bool:
        """Take it where nobody else holds it; else return False."""
        return self._try(fcntl.LOCK_EX)

    def close(self) -> None:
        """Release it."""
        os.close(self._descriptor)

    def _wait(self, mode: int, waits: Callable[[], None]) -> None:
        # Polled, so that a thread that waits can be ended.
        while not self._try(mode):
            waits()
            time.sleep(POLL_S)

    def _try(self, mode: int) -> bool:
        try:
            fcntl.flock(self._descriptor, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL):
                raise
            raise OutputError(
                f"{self._file}: this file system has no locks; choose another --cache, or --no-cache"
            ) from None
        return True
