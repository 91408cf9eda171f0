"""What comes back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True)
class Delta:
    """What one response adds to the answer."""

    text: str = ""
    token_ids: tuple[int, ...] = ()
    # Of these tokens, from the target's raw logits; empty unless asked for with return_log_probs.
    log_probs: tuple[float, ...] = ()


@dataclass(frozen=True)
class Usage:
    """How many tokens were read and written."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True)
class Speculation:
    """What the draft model did for this answer.

    A round is a call of the target that checks up to γ draft tokens, keeps some and adds one of its
    own. Calls without a draft are not counted: each brings one token.
    """

    rounds: int
    proposed: int
    accepted: int
    # per_position[i]: in how many rounds the draft token at position i was kept.
    per_position: tuple[int, ...] = ()
    # Why the answer, or the rest of it, was written without a draft although one was asked for; or "".
    off_reason: str = ""

    @property
    def acceptance(self) -> float:
        """The share of proposed tokens that the target kept, 0 when none were proposed."""
        return self.accepted / self.proposed if self.proposed else 0.0

    @property
    def tokens_per_target_call(self) -> float:
        """Tokens that a round brings on average, 1 to γ + 1; 1 when there was none."""
        return 1 + self.accepted / self.rounds if self.rounds else 1.0


@dataclass(frozen=True)
class Generation:
    """A whole answer.

    `finish_reason`, `usage` and `speculation` are None where the server does not report them; one
    made by trtspec does. After an early close, `finish_reason` is "cancelled", the other two are
    None, and the rest is what had come until then.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    finish_reason: FinishReason | None = None
    # The stop string that ended the answer; "" when something else did.
    stop_reason: str = ""
    usage: Usage | None = None
    speculation: Speculation | None = None
    request_id: str = ""
