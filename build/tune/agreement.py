"""Where a draft agrees with the target's own answers, and the rounds that follow from it for every γ.

The draft reads an answer of the target and says, after each token, what it would have proposed next. In
a greedy round the draft sees just that: tokens that the target kept. So one reading gives the rounds
of every draft length exactly, without taking α to be the same everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtspec.build.tune.intervals import Estimate, proportion, ratio
from trtspec.theory import tokens_per_target_call


def replay(matches: Sequence[bool], num_draft_tokens: int) -> tuple[int, int]:
    """Return how many rounds an answer takes with γ, and how many tokens they bring.

    Only rounds that have room for all of their tokens count: how the last, cut short by the end of
    the answer, would have gone is unknown.
    """
    start = rounds = 0
    while start + num_draft_tokens + 1 <= len(matches):
        proposed = matches[start : start + num_draft_tokens]
        kept = next((k for k, match in enumerate(proposed) if not match), num_draft_tokens)
        start += kept + 1
        rounds += 1
    return rounds, start


@dataclass(frozen=True)
class Agreement:
    """For each prompt of a data set: whether the draft would have proposed each token of the answer."""

    dataset: str
    matches: tuple[tuple[bool, ...], ...]

    @property
    def acceptance(self) -> Estimate:
        """α, the chance that a draft token is kept when all before it were."""
        return proportion([sum(m) for m in self.matches], [len(m) for m in self.matches])

    def tokens_per_target_call(self, num_draft_tokens: int) -> Estimate:
        """Return E for a γ.

        The interval is the wider of two: that of the counted rounds, which is too narrow where few prompts
        happen to go alike, and what the ends of α's make of E. Where answers are too short for rounds of
        that length, E itself follows from α, as if that were the same at every position.
        """
        if not num_draft_tokens:
            return Estimate(1.0, 1.0, 1.0)
        found, most = self.acceptance, num_draft_tokens + 1.0
        low, value, high = (
            tokens_per_target_call(a, num_draft_tokens) for a in (found.low, found.value, found.high)
        )
        rounds, tokens = zip(*(replay(m, num_draft_tokens) for m in self.matches), strict=True)
        if sum(count > 0 for count in rounds) < 2:
            return Estimate(value, low, high)
        counted = ratio(tokens, rounds, least=1.0, most=most)
        return Estimate(
            counted.value,
            max(1.0, min(counted.low, counted.value * low / value)),
            min(most, max(counted.high, counted.value * high / value)),
        )


def pooled(agreements: Sequence[Agreement]) -> Agreement:
    """Return all prompts of several data sets as one."""
    return Agreement("all", tuple(m for agreement in agreements for m in agreement.matches))
