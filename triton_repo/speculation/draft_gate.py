"""Keeps a draft engine that failed out of the way for a while, then lets one answer try it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 300.0


class DraftGate:
    """Shared by all answers.

    Each trial doubles the pause until the next; a draft that works opens the gate.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failure = ""
        self._pause_s = FIRST_PAUSE_S
        self._next_trial = 0.0

    def closed_because(self) -> str:
        """Return why the draft must not be asked now; "" when it may be.

        After the pause the first to ask may try; the others wait for what comes of it.
        """
        if not self._failure:
            return ""
        with self._lock:
            if self._clock() < self._next_trial:
                return self._failure
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
            self._next_trial = self._clock() + self._pause_s
            return ""

    @property
    def is_closed(self) -> bool:
        """Whether the draft failed and has not worked since."""
        return bool(self._failure)

    def failed(self, failure: str) -> bool:
        """Close the gate; True if it was open."""
        with self._lock:
            was_open = not self._failure
            self._failure = failure
            if was_open:
                self._pause_s = FIRST_PAUSE_S
                self._next_trial = self._clock() + self._pause_s
            return was_open

    def worked(self) -> None:
        self._failure = ""
