"""What follows from α and costs by the formulas alone, for every draft length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtspec.theory import (
    Best,
    Costs,
    acceptance_rate,
    best,
    break_even_acceptance,
    speed_up,
    tokens_per_target_call,
)


@dataclass(frozen=True)
class OutlookRow:
    """What a draft length gives."""

    num_draft_tokens: int
    tokens_per_target_call: float  # E
    acceptance_rate: float | None  # r; None at γ = 0
    speed_up: float  # S
    break_even_acceptance: float | None  # α above which it gains; None at γ = 0, and where none does


@dataclass(frozen=True)
class Outlook:
    """What follows from α and costs."""

    acceptance: float
    costs: Costs
    rows: tuple[OutlookRow, ...]
    best: Best  # of all lengths up to the longest that was to be looked at


def outlook(acceptance: float, costs: Costs, lengths: Sequence[int], longest: int = 0) -> Outlook:
    """Return what each draft length gives, and the best up to the longest."""
    rows = tuple(
        OutlookRow(
            length,
            tokens_per_target_call(acceptance, length),
            acceptance_rate(acceptance, length) if length else None,
            speed_up(acceptance, length, costs),
            break_even_acceptance(length, costs),
        )
        for length in lengths
    )
    return Outlook(acceptance, costs, rows, best(acceptance, costs, max(longest, *lengths)))
