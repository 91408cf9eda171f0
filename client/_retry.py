"""When to ask again, and after how long."""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.client._errors import CallFailed, ConnectionFailed, InvalidArgument, ServerBusy


@dataclass(frozen=True)
class Retry:
    """Asks again while no server took the request or the server was busy; never once it has answered.

    The wait before attempt n + 1 is drawn from the upper half of `first_wait_s` · 2^(n-1), at most
    `longest_wait_s`, so that many callers who failed together do not come back together.

    Args:
        attempts: how often to ask, the first time included; 1: never again.
    """

    attempts: int = 3
    first_wait_s: float = 0.1
    longest_wait_s: float = 2.0

    def __post_init__(self) -> None:
        if self.attempts < 1 or not 0 <= self.first_wait_s <= self.longest_wait_s:
            raise InvalidArgument(
                f"retry: found {self}, expected attempts from 1 and 0 <= first_wait_s <= longest_wait_s"
            )

    def wait_s(self, error: CallFailed, attempt: int, draw: float) -> float | None:
        """Return how long to wait after this attempt, the first being 1; None: do not ask again.

        `draw` is random, from [0, 1).
        """
        if attempt >= self.attempts or not _is_safe(error):
            return None
        # 2^1000 is as long as any wait, and about the largest power that a float holds.
        whole_s: float = min(self.longest_wait_s, self.first_wait_s * 2.0 ** min(attempt - 1, 1000))
        return whole_s * (0.5 + draw / 2)


def _is_safe(error: CallFailed) -> bool:
    """Whether asking again can do no harm and may help. A call that someone cancelled stays so."""
    return isinstance(error, ServerBusy) or (
        isinstance(error, ConnectionFailed) and error.status != "CANCELLED"
    )
