"""What comes back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True)
class Delta:
    """What one response adds to the answer."""

    text: str = ""
    token_ids: tuple[int, ...] = ()
    # Of these tokens, from the target's raw logits; empty unless asked for with return_log_probs.
    log_probs: tuple[float, ...] = ()
    # The raw logits [tokens, vocabulary] they were chosen by; None unless asked for with
    # return_generation_logits. Not compared, as an array is neither equal nor unequal to another.
    generation_logits: NDArray[np.float32] | None = field(default=None, compare=False, repr=False)


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

    # 0 from a server that counts tokens only, as NVIDIA's do.
    rounds: int
    proposed: int
    accepted: int
    # [i]: in how many rounds the draft token at position i was kept, and in how many there was one.
    accepted_per_position: tuple[int, ...] = ()
    proposed_per_position: tuple[int, ...] = ()
    # Why the answer, or the rest of it, was written without a draft although one was asked for; or "".
    off_reason: str = ""

    @property
    def acceptance(self) -> float:
        """The share of proposed tokens that the target kept, 0 when none were proposed."""
        return self.accepted / self.proposed if self.proposed else 0.0

    @property
    def mean_draft_tokens(self) -> float:
        """The draft tokens of a round on average: γ, or less near limits and where γ adapts itself."""
        return self.proposed / self.rounds if self.rounds else 0.0

    @property
    def tokens_per_target_call(self) -> float:
        """Tokens that a round brings on average, 1 to γ + 1; 1 when there was none."""
        return 1 + self.accepted / self.rounds if self.rounds else 1.0


@dataclass(frozen=True)
class ServerTimes:
    """When the server did what, in nanoseconds of a clock of its own: only differences mean something."""

    arrival_ns: int
    first_scheduled_ns: int
    first_token_ns: int
    last_token_ns: int
    # How long a call of an engine was under way for it; None where the server does not say.
    engine_ns: int | None = None

    @property
    def queued_s(self) -> float:
        """From arrival until work began."""
        return (self.first_scheduled_ns - self.arrival_ns) / 1e9

    @property
    def first_token_s(self) -> float:
        """From arrival to the first token."""
        return (self.first_token_ns - self.arrival_ns) / 1e9

    @property
    def total_s(self) -> float:
        """From arrival to the last token."""
        return (self.last_token_ns - self.arrival_ns) / 1e9

    @property
    def engine_s(self) -> float | None:
        """How long a call of an engine was under way; the rest of the total is queueing and orchestration."""
        return None if self.engine_ns is None else self.engine_ns / 1e9


@dataclass(frozen=True)
class Timings:
    """How long it took, seen from here: from asking, attempts before the one that succeeded included."""

    # None: nothing came. Of a whole answer that was not streamed, when it was there.
    first_delta_s: float | None
    total_s: float
    # How often was asked.
    attempts: int = 1
    # None where the server does not say.
    server: ServerTimes | None = None


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
    # Empty unless asked for with return_prompt_ids.
    prompt_ids: tuple[int, ...] = ()
    request_id: str = ""
    # [tokens, vocabulary]; as in Delta. None also where there was no token.
    generation_logits: NDArray[np.float32] | None = field(default=None, compare=False, repr=False)
    # Two answers that are equal need not have taken equally long.
    timings: Timings | None = field(default=None, compare=False)
