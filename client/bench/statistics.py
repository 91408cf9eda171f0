"""Intervals and tests, all by resampling units that are independent of each other, or by ranks.

A unit is a prompt with all its trials, since answers to one prompt resemble each other; where there
are fewer prompts than blocks, and for what is counted once a segment, it is a block. Intervals are
percentiles of the bootstrap. That of a median of n units reaches at most from the smallest to the
largest, which hold the true median with a probability of 1 - 2^(1-n): 0.94 for 5 units, 0.97 for 6.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from trtspec.client.bench.result import Estimate

Array = NDArray[np.float64]
RESAMPLES = 1000
# Numbers of a slab of weighted values that is worked on at once, about 64 MB.
_SLAB = 8_000_000


class Bootstrap:
    """Draws of units, the same for everything that is estimated from them.

    Args:
        units: how many there are.
        confidence: rate at which intervals shall hold the truth.
    """

    def __init__(self, units: int, *, confidence: float, seed: int, resamples: int = RESAMPLES) -> None:
        self._weights_RU = _draws(units, resamples, seed)
        self._units = units
        self._confidence = confidence

    def quantiles(
        self, values: Sequence[float], unit_of: Sequence[int], levels: Sequence[float]
    ) -> tuple[Estimate, ...]:
        """Return quantiles of values that belong to units, any number to each."""
        found = zip(_plain_quantiles(values, levels), self._drawn(values, unit_of, levels).T, strict=True)
        return tuple(estimate(value, drawn, self._confidence) for value, drawn in found)

    def median(self, values: Sequence[float]) -> Estimate:
        """Return the median of one value for each unit."""
        return self.quantiles(values, range(self._units), (0.5,))[0]

    def medians(self, values: Sequence[float]) -> Array:
        """Return the medians that the draws have."""
        return self._drawn(values, range(self._units), (0.5,))[:, 0]

    def of_sums(self, sums_UK: Array, statistic: Callable[[Array], Array]) -> Estimate | None:
        """Return a statistic of sums over units, such as a ratio of two of them; None where there is none.

        Args:
            sums_UK: what each unit adds to each of K sums.
            statistic: of [n, K], returns [n]; not finite where there is none.
        """
        with np.errstate(invalid="ignore", divide="ignore"):
            whole = float(statistic(sums_UK.sum(axis=0, keepdims=True))[0])
            drawn = statistic(self._weights_RU @ sums_UK)
        return estimate(whole, drawn, self._confidence) if math.isfinite(whole) else None

    def _drawn(self, values: Sequence[float], unit_of: Sequence[int], levels: Sequence[float]) -> Array:
        """Return [resamples, levels]."""
        order = np.argsort(values, kind="stable")
        values_N = np.asarray(values, np.float64)[order]
        units_N = np.asarray(unit_of)[order]
        slabs = math.ceil(len(self._weights_RU) * len(values_N) / _SLAB)
        return np.concatenate(
            [
                _weighted_quantiles(values_N, weights_RU[:, units_N], levels)
                for weights_RU in np.array_split(self._weights_RU, slabs)
            ]
        )


@lru_cache(maxsize=64)
def _draws(units: int, resamples: int, seed: int) -> NDArray[np.int64]:
    """Return [resamples, units]: how often each unit was drawn."""
    draws = np.random.default_rng([seed, units]).integers(units, size=(resamples, units))
    return np.stack([np.bincount(draw, minlength=units) for draw in draws])


def estimate(value: float, drawn: Array, confidence: float) -> Estimate:
    """Return a value with the interval that its draws give."""
    known = drawn[np.isfinite(drawn)]
    tails = ((1 - confidence) / 2, (1 + confidence) / 2)
    low, high = np.quantile(known, tails) if known.size else (value, value)
    return Estimate(value, float(low), float(high))


def _plain_quantiles(values: Sequence[float], levels: Sequence[float]) -> list[float]:
    ones = np.ones((1, len(values)), np.int64)
    found: list[float] = _weighted_quantiles(np.sort(np.asarray(values, np.float64)), ones, levels)[
        0
    ].tolist()
    return found


def _weighted_quantiles(values_N: Array, weights_RN: NDArray[np.int64], levels: Sequence[float]) -> Array:
    """Return [R, levels]: quantiles of sorted values; where one falls between two values, their mean."""
    below_RN = np.cumsum(weights_RN, axis=1)
    last = len(values_N) - 1
    found = []
    for level in levels:
        # Rounded, as 0.95 of 20 is not 19 to the last bit.
        aim_R1 = np.round(level * below_RN[:, -1:], 9)
        lower_R = np.minimum((below_RN < aim_R1).sum(axis=1), last)
        upper_R = np.minimum((below_RN <= aim_R1).sum(axis=1), last)
        found.append(np.where(below_RN[:, -1] > 0, (values_N[lower_R] + values_N[upper_R]) / 2, np.nan))
    return np.stack(found, axis=1)


def largest_rate(units: int) -> float:
    """Return the rate at which the smallest and largest of so many units hold the true median."""
    return float(1 - 2.0 ** (1 - units))


def signed_rank_p(differences: Sequence[float]) -> float:
    """Return the p-value of Wilcoxon's signed-rank test: paired differences whose median is 0."""
    if not any(differences):
        return 1.0
    from scipy.stats import wilcoxon

    return float(wilcoxon(differences, zero_method="zsplit", method="auto").pvalue)


def welch_p(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the p-value of Welch's t-test on logarithms: two samples with the same geometric mean.

    Samples with a 0, which has none, are tested as they are.
    """
    has_logs = min(*one, *other, math.inf) > 0
    logs = (np.log(one), np.log(other)) if has_logs else (np.asarray(one), np.asarray(other))
    if min(map(len, logs)) < 2:
        return 1.0
    if max(map(np.ptp, logs)) < 1e-12:  # Nothing to test: every value is the same.
        return float(abs(logs[0][0] - logs[1][0]) < 1e-12)
    from scipy.stats import ttest_ind

    return float(ttest_ind(*logs, equal_var=False).pvalue)


def fisher_p(one: tuple[int, int], other: tuple[int, int]) -> float:
    """Return the p-value of Fisher's exact test: counts of two kinds in the same proportion."""
    from scipy.stats import fisher_exact

    return float(fisher_exact((one, other)).pvalue)


def holm_adjusted(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return p-values adjusted so that all of them together err at most as often as each would alone."""
    adjusted: dict[str, float] = {}
    largest = 0.0
    for rank, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[name]))
        adjusted[name] = largest
    return adjusted
