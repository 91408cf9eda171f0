"""When things happened to one answer, and what each of its steps took.

A step is a round, which is a call of the draft and one of the target, or a call of the target alone.
It lasts until the next begins, so that what happens between calls is part of its cost.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from .draft_length import DraftLength, PlainCall, Round
from .throughput import SHORTEST_S


class CallTimes:
    """Hears of the calls of an answer; tells the draft length what the steps cost and brought.

    Times are those of `clock`, in seconds; None for what has not happened.
    """

    def __init__(
        self,
        draft_length: DraftLength,
        *,
        arrival_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # What a token of the last call of the target alone took.
        self.plain_token_s: float | None = None
        self._draft_length = draft_length
        self._clock = clock
        self.arrival_s = clock() if arrival_s is None else arrival_s
        self.first_scheduled_s: float | None = None
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None
        # How long a call of an engine was under way.
        self.engine_s = 0.0
        self._began_s = self._verify_s = self._last_reply_s = 0.0
        # Since when the target has been working on its next reply.
        self._called_s = 0.0
        self._proposed = self._accepted = self._tokens = 0
        # What the engines have read up to the step before this one.
        self._draft_keeps_up = self._target_keeps_up = False

    def nanoseconds(self) -> dict[str, int]:
        """Return the times as outputs have them, 0 for what has not happened.

        Those of NVIDIA's are of a steady clock; `engine_time_ns` is the time calls of engines took.
        """
        times = {
            "arrival_time_ns": self.arrival_s,
            "first_scheduled_time_ns": self.first_scheduled_s,
            "first_token_time_ns": self.first_token_s,
            "last_token_time_ns": self.last_token_s,
            "engine_time_ns": self.engine_s,
        }
        return {name: round((seconds or 0.0) * 1e9) for name, seconds in times.items()}

    def begin(self) -> None:
        """A step begins, and with it the one before is over."""
        now = self._clock()
        self._tell(now)
        self._began_s = self._called_s = now
        self._proposed = self._accepted = self._tokens = 0
        if self.first_scheduled_s is None:
            self.first_scheduled_s = now

    def verify(self, proposed: int) -> None:
        """The draft has answered, and the target is asked."""
        self._verify_s = self._called_s = self._clock()
        self.engine_s += self._verify_s - self._began_s
        self._proposed = proposed

    def take(self, tokens: int, accepted: int = 0) -> None:
        """A reply of the target brings tokens, of which `accepted` were drafted."""
        self._last_reply_s = now = self._clock()
        self.engine_s += now - self._called_s
        self._called_s = now
        self._tokens += tokens
        self._accepted = accepted
        if tokens:
            self.last_token_s = now
            if self.first_token_s is None:
                self.first_token_s = now

    def finish(self) -> None:
        """The answer is over."""
        self._tell(self._clock())
        self._tokens = 0

    def _tell(self, now: float) -> None:
        if not self._tokens:
            return
        if self._proposed:
            done = Round(
                proposed=self._proposed,
                accepted=self._accepted,
                tokens=self._tokens,
                draft_s=self._verify_s - self._began_s,
                target_s=now - self._verify_s,
                draft_steady=self._draft_keeps_up,
                target_steady=self._target_keeps_up,
            )
            self._draft_length.record_round(done)
        else:
            plain = PlainCall(self._tokens, now - self._began_s, steady=self._target_keeps_up)
            self._draft_length.record_plain(plain)
            self.plain_token_s = max((self._last_reply_s - self._began_s) / self._tokens, SHORTEST_S)
        self._draft_keeps_up, self._target_keeps_up = bool(self._proposed), True
