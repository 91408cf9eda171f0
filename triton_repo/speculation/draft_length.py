"""Which draft length γ the next round of an answer has; 0 leaves the target alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Step:
    """What to do next: a round with draft tokens, or the target alone for some tokens."""

    draft_tokens: int = 0
    plain_tokens: int = 0


@dataclass(frozen=True)
class Round:
    """What a round did. Not steady: the call had tokens to read that it had not written itself."""

    proposed: int
    accepted: int
    tokens: int
    draft_s: float
    target_s: float
    draft_steady: bool = True
    target_steady: bool = True


@dataclass(frozen=True)
class PlainCall:
    """What a call of the target alone did."""

    tokens: int
    seconds: float
    steady: bool = True


class DraftLength(Protocol):
    """Chooses γ for one answer, and hears what came of it."""

    @property
    def off_reason(self) -> str:
        """Why the draft is not asked at present; "" if it is, or was never to be."""

    def choose(self, remaining: int) -> Step: ...

    def record_round(self, done: Round) -> None: ...

    def record_plain(self, done: PlainCall) -> None: ...


class FixedDraftLength:
    """The γ that a request asked for."""

    off_reason = ""

    def __init__(self, num_draft_tokens: int) -> None:
        self._num_draft_tokens = num_draft_tokens

    def choose(self, remaining: int) -> Step:
        # The target adds a token of its own to those it keeps.
        count = min(self._num_draft_tokens, remaining - 1)
        return Step(draft_tokens=count) if count > 0 else Step(plain_tokens=remaining)

    def record_round(self, done: Round) -> None: ...

    def record_plain(self, done: PlainCall) -> None: ...
