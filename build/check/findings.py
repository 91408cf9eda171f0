"""What the check of a pair says: one finding per fact, with a stable id, a severity and a repair."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from trtspec.errors import PairError

# error: the pair must not be built. warning: it works after a repair or at a loss. note: good to know.
Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One fact about a pair."""

    id: str  # stable, e.g. "vocab.padding"; scripts may rely on it
    severity: Severity
    message: str  # where: what was found, what was expected
    repair: str  # what to do; "" where there is nothing to do
    repairable: bool = False  # the conversion makes the repair itself and records it


def require_no_errors(findings: Iterable[Finding]) -> None:
    """Raise PairError, with the first error and how many more there are, where a finding is one."""
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        more = f"and {len(errors) - 1} more; " if len(errors) > 1 else ""
        raise PairError(f"{errors[0].message}; {errors[0].repair} ({more}see `trtspec check`)")


def id_ranges(ids: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return the ids as sorted ranges, both ends included."""
    ranges: list[tuple[int, int]] = []
    for i in sorted(ids):
        if ranges and i == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], i)
        else:
            ranges.append((i, i))
    return tuple(ranges)


def some(items: Sequence[str], limit: int = 3) -> str:
    """Return the first few items and how many are left, for a message of one line."""
    more = len(items) - limit
    return ", ".join(items[:limit]) + (f" and {more:,} more" if more > 0 else "")
