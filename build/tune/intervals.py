"""Estimates with intervals from tokens that come in clusters: those of one prompt resemble each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A number and the interval that holds the true one, for prompts like these, in 95 % of cases."""

    value: float
    low: float
    high: float

    def scaled(self, factor: float) -> Estimate:
        """Return the estimate of a multiple."""
        return Estimate(self.value * factor, self.low * factor, self.high * factor)


def proportion(hits: Sequence[int], tries: Sequence[int]) -> Estimate:
    """Return the share of hits, given hits and tries of each prompt, of at least two prompts.

    Clopper and Pearson's interval, at the number of independent tries that would vary as much
    (Korn and Graubard 1998). Where all tries ended alike nothing is known of their variance, and
    each prompt counts as one.
    """
    from scipy.stats import beta, t

    share, variance = _ratio(hits, tries)
    total, prompts = sum(tries), sum(count > 0 for count in tries)
    effective: float = prompts if share in (0, 1) else total
    if variance:
        effective = min(share * (1 - share) / variance, total)
    tail = (1 - LEVEL) / 2
    if total > prompts:  # the variance itself is an estimate from so many prompts
        effective *= (t.ppf(tail, total - 1) / t.ppf(tail, prompts - 1)) ** 2
    kept = share * effective
    low = float(beta.ppf(tail, kept, effective - kept + 1)) if share > 0 else 0.0
    high = float(beta.ppf(1 - tail, kept + 1, effective - kept)) if share < 1 else 1.0
    return Estimate(share, low, high)


def ratio(
    numerators: Sequence[float], denominators: Sequence[float], *, least: float, most: float
) -> Estimate:
    """Return the ratio of two sums over at least two prompts, within what it can be.

    The variance is that of the linearised ratio; Student's t for the number of prompts.
    """
    from scipy.stats import t

    value, variance = _ratio(numerators, denominators)
    prompts = sum(count > 0 for count in denominators)
    margin = -float(t.ppf((1 - LEVEL) / 2, prompts - 1)) * math.sqrt(variance)
    return Estimate(value, max(value - margin, least), min(value + margin, most))


def _ratio(numerators: Sequence[float], denominators: Sequence[float]) -> tuple[float, float]:
    """Return the ratio of the sums and its variance between prompts."""
    above = np.asarray(numerators, dtype=float)
    below = np.asarray(denominators, dtype=float)
    prompts = int((below > 0).sum())
    if prompts < 2:
        raise ValueError(f"{prompts} prompts have something to count, an interval needs at least 2")
    value = float(above.sum() / below.sum())
    spread = float(((above - value * below) ** 2).sum())
    return value, prompts / (prompts - 1) * spread / float(below.sum()) ** 2
