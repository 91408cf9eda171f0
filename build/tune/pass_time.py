"""What a pass of a model takes when each of its sequences gets some tokens more, from passes that were timed.

As long as reading the weights is what takes the time, more tokens cost next to nothing; where arithmetic
takes over, they cost in proportion. Where on that curve a round lies depends on the sequences that share
the pass, which also have a cache each to be read: every number of them has a curve of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np


@dataclass(frozen=True)
class PassTime:
    """Seconds of a pass by the tokens that each sequence gets; straight lines between those timed."""

    rows: tuple[int, ...]  # ascending
    seconds: tuple[float, ...]  # never falling

    def at(self, rows: int) -> float:
        """Return the seconds of a pass; as those of the nearest that was timed, beyond the ends."""
        return float(np.interp(rows, self.rows, self.seconds))


def pass_time(samples: Mapping[int, Sequence[float]]) -> PassTime:
    """Return the curve through the shortest of timed passes, by the tokens that each sequence got.

    Whatever else the machine does only ever adds to a pass. Where it did so to all passes of a kind,
    they do not stay longer than those of more tokens: the curve never falls.
    """
    rows = sorted(samples)
    shortest = [min(samples[count]) for count in rows]
    lowest_from_here = np.minimum.accumulate(shortest[::-1])[::-1]
    return PassTime(tuple(rows), tuple(float(seconds) for seconds in lowest_from_here))


def unrest(samples: Iterable[Sequence[float]]) -> float:
    """Return how much longer than its shortest a pass of a kind usually took, as a share of that."""
    return median(median(took) / min(took) - 1 for took in samples)
