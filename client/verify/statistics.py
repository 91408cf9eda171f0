"""Tests of draws against known probabilities; every p-value holds, or errs to the safe side.

Draws of one answer depend on each other, and are tested token by token: each has a distribution that
is known once the tokens before it are (a martingale), so that sums of what was seen minus what was
expected have a known spread, whatever the dependence.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from trtspec.client.verify.distribution import Probabilities

# Below that many expected draws a cell is pooled: the chi-squared limit needs them.
LEAST_EXPECTED = 5.0
POWER = 0.9


@dataclass(frozen=True)
class GTest:
    """Likelihood-ratio statistics of several multinomial samples, and their sum."""

    statistic: float = 0.0
    degrees: int = 0
    draws: int = 0
    # The noncentrality that the noise of the served dtype may add.
    tolerated: float = 0.0

    def __add__(self, other: GTest) -> GTest:
        return GTest(
            self.statistic + other.statistic,
            self.degrees + other.degrees,
            self.draws + other.draws,
            self.tolerated + other.tolerated,
        )

    @property
    def p_value(self) -> float:
        if not self.degrees:
            return 1.0
        from scipy.stats import chi2, ncx2

        if self.tolerated:
            return float(ncx2.sf(self.statistic, self.degrees, self.tolerated))
        return float(chi2.sf(self.statistic, self.degrees))

    def detectable(self, level: float) -> float:
        """Return the total variation that this test, at this level, finds with a power of 0.9.

        A deviation Δ of every sample from p has a noncentrality of N Σ Δ² / p, which is at least
        N (2 TV)² by Cauchy and Schwarz.
        """
        if not self.degrees:
            return 1.0
        from scipy.optimize import brentq
        from scipy.stats import chi2, ncx2

        none = self.tolerated
        critical = ncx2.isf(level, self.degrees, none) if none else chi2.isf(level, self.degrees)

        def lacking(noncentrality: float) -> float:
            return float(ncx2.sf(critical, self.degrees, noncentrality)) - POWER

        needed = brentq(lacking, none + 1e-9, none + 10 * (critical + 100), xtol=0.1)
        return min(1.0, math.sqrt(float(needed) / self.draws) / 2)


def g_test(observed_V: Probabilities, p_V: Probabilities, kl: float = 0.0) -> GTest:
    """Return the G-test of counts against probabilities, with rare cells pooled.

    Williams' correction brings the statistic closer to chi-squared for small counts. Counts where p
    is 0 are put into the pooled cell.

    Args:
        kl: the divergence, in nats, that is put down to noise: N draws add 2 N kl to the noncentrality.
    """
    from scipy.stats import power_divergence

    draws = float(observed_V.sum())
    expected_V = draws * p_V
    large = expected_V >= LEAST_EXPECTED
    observed, expected = list(observed_V[large]), list(expected_V[large])
    rare = (float(observed_V[~large].sum()), float(expected_V[~large].sum()))
    if rare[1] >= LEAST_EXPECTED or not observed:
        observed.append(rare[0])
        expected.append(rare[1])
    else:
        smallest = int(np.argmin(expected))
        observed[smallest] += rare[0]
        expected[smallest] += rare[1]
    cells = len(observed)
    if cells < 2:
        return GTest()
    shares = np.array(expected) / draws
    statistic, _ = power_divergence(observed, draws * shares / shares.sum(), lambda_="log-likelihood")
    correction = 1 + (float((1 / shares).sum()) - 1) / (6 * draws * (cells - 1))
    return GTest(float(statistic) / correction, cells - 1, int(draws), 2 * draws * kl)


def excess_p_value(hits: int, chances: Sequence[float]) -> float:
    """Return how likely so many hits are, each of which had a known chance; small when too many.

    The binomial distribution with the same mean: from one above the mean on, its tail is the heavier
    (Hoeffding 1956).
    """
    from scipy.stats import binom

    mean = float(np.sum(chances))
    if not chances or hits < mean + 1:
        return 1.0
    return float(binom.sf(hits - 1, len(chances), mean / len(chances)))


def mean_p_value(places: Sequence[float]) -> float:
    """Return how likely a mean so far from 1/2 is for numbers that are uniform and independent."""
    from scipy.stats import norm

    if not places:
        return 1.0
    return float(2 * norm.sf(abs(float(np.sum(places)) - len(places) / 2) / math.sqrt(len(places) / 12)))


def correlation_p_value(first: Sequence[float], second: Sequence[float]) -> float:
    """Return how likely so large a correlation is between numbers that are uniform and independent."""
    from scipy.stats import norm

    if not first:
        return 1.0
    # Their own means, so that a distribution that is off does not look like dependence.
    products = (np.asarray(first) - np.mean(first)) * (np.asarray(second) - np.mean(second))
    # Each product has mean 0 and variance 1/144.
    return float(2 * norm.sf(abs(float(products.sum())) * 12 / math.sqrt(len(products))))


def holm_rejected(p_values: Iterable[float], alarm_rate: float) -> list[bool]:
    """Return which hypotheses are rejected, so that any false rejection has at most the alarm rate.

    Holm 1979: the smallest p-value against rate / m, the next against rate / (m - 1), to the first
    that holds.
    """
    p = list(p_values)
    rejected = [False] * len(p)
    for rank, index in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        if p[index] > alarm_rate / (len(p) - rank):
            break
        rejected[index] = True
    return rejected
