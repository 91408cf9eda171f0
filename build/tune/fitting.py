"""A model of a server's rounds, fitted to a few measured points: what any draft length gives at any load.

A round of a request takes a + b n + (c + d n) γ seconds when n requests are in flight, a token without
a draft e + f n; α has a value for each position. A Bayesian linear regression says how well the points
determine that, which is what the next point is chosen by (`experiment`). Intervals are those of the times:
how often drafts are kept is taken as these prompts have it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trtspec.build.tune.intervals import Estimate
from trtspec.theory import Costs, tokens_by_position

Floats = NDArray[np.float64]

# How far the quickest of a few runs usually lies from where it belongs, as a share of that.
NOISE = 0.03
# Standard deviations of a normal distribution that hold 95 %.
WIDTH = 1.96
# What is thought of a, b, c, d and of e, f before there is a point, in seconds a token without a draft:
# mean and deviation.
ROUND_PRIOR = ((1.0, 0.1, 0.1, 0.02), (1.0, 0.5, 0.5, 0.1))
PLAIN_PRIOR = ((0.9, 0.1), (1.0, 0.5))


@dataclass(frozen=True, order=True)
class Setting:
    """A draft length, and how many requests are in flight."""

    num_draft_tokens: int
    concurrency: int


@dataclass(frozen=True)
class Sample:
    """What requests brought at a setting."""

    tokens: int
    seconds: float  # of the whole, not of a request
    rounds: int
    # [i]: in how many rounds the draft token at position i was kept.
    accepted: tuple[int, ...]


@dataclass(frozen=True)
class Fit:
    """What points determine.

    Args:
        acceptance: α by position.
        round_s: seconds of a round of a request, by setting with γ ≥ 1.
        token_s: seconds of a token of a request without a draft, by requests in flight.
    """

    acceptance: tuple[float, ...]
    round_s: Mapping[Setting, float]
    token_s: Mapping[int, float]

    def tokens_per_target_call(self, num_draft_tokens: int) -> float:
        """Return E for a γ; beyond the last position that was seen, α is as there."""
        known = self.acceptance[:num_draft_tokens]
        return tokens_by_position([*known, *self.acceptance[-1:] * (num_draft_tokens - len(known))])

    def tokens_per_s(self, setting: Setting) -> float:
        """Return the tokens a second of all requests in flight."""
        seconds, _ = self._seconds(setting)
        return setting.concurrency * self.tokens_per_target_call(setting.num_draft_tokens) / seconds

    def speed_up(self, setting: Setting) -> Estimate:
        """Return S over γ = 0 at the same number of requests in flight."""
        plain_s, plain_deviation = self._seconds(Setting(0, setting.concurrency))
        if not setting.num_draft_tokens:
            return Estimate(1.0, 1.0, 1.0)
        round_s, deviation = self._seconds(setting)
        value = self.tokens_per_target_call(setting.num_draft_tokens) * plain_s / round_s
        spread = WIDTH * math.hypot(deviation / round_s, plain_deviation / plain_s)
        return Estimate(value, value * math.exp(-spread), value * math.exp(spread))

    def uncertainty(self, setting: Setting) -> float:
        """Return the standard deviation of the seconds of a round, or of a token at γ = 0, as a share."""
        seconds, deviation = self._seconds(setting)
        return deviation / seconds

    def costs(self, concurrency: int) -> Costs:
        """Return c + v, which a server does not tell apart, as a draft step, and o."""
        plain_s, _ = self._seconds(Setting(0, concurrency))
        one, two = (self._seconds(Setting(length, concurrency))[0] for length in (1, 2))
        return Costs(draft_step=(two - one) / plain_s, round=(2 * one - two) / plain_s - 1)

    def with_believed(self, setting: Setting) -> Fit:
        """Return the fit as if this setting had been measured and were as expected."""
        seconds, _ = self._seconds(setting)
        if setting.num_draft_tokens:
            return Fit(self.acceptance, {**self.round_s, setting: seconds}, self.token_s)
        return Fit(self.acceptance, self.round_s, {**self.token_s, setting.concurrency: seconds})

    def _seconds(self, setting: Setting) -> tuple[float, float]:
        """Return expectation and standard deviation of a round, or of a token at γ = 0."""
        unit = self.token_s[min(self.token_s)]
        if setting.num_draft_tokens:
            rounds = [seconds / unit for seconds in self.round_s.values()]
            rows = [_round_row(known) for known in self.round_s]
            expected, deviation = _regress(rows, rounds, ROUND_PRIOR, _round_row(setting))
        else:
            plain = [seconds / unit for seconds in self.token_s.values()]
            rows = [(1.0, float(flying)) for flying in self.token_s]
            expected, deviation = _regress(rows, plain, PLAIN_PRIOR, (1.0, float(setting.concurrency)))
        # A straight line may fall below zero where nothing was measured.
        return unit * max(expected, 0.01), unit * deviation


def fit(samples: Mapping[Setting, Sequence[Sample]], seconds: Mapping[Setting, float]) -> Fit:
    """Return the fit to points.

    Args:
        samples: all runs of each point, for how often draft tokens were kept.
        seconds: of each point, a round of a request or, at γ = 0, a token.
    """
    return Fit(
        acceptance=_acceptance(samples),
        round_s={setting: taken for setting, taken in seconds.items() if setting.num_draft_tokens},
        token_s={
            setting.concurrency: taken for setting, taken in seconds.items() if not setting.num_draft_tokens
        },
    )


def overall_acceptance(samples: Mapping[Setting, Sequence[Sample]]) -> float:
    """Return α over all positions: kept, of all that were reached."""
    kept, reached = (sum(counts) for counts in zip(*_judged(samples), strict=True))
    return kept / reached if reached else 0.0


def _acceptance(samples: Mapping[Setting, Sequence[Sample]]) -> tuple[float, ...]:
    """Return α by position; where none was reached, as at the one before."""
    found: list[float] = []
    for kept, reached in _judged(samples):
        found.append(kept / reached if reached else (found or [0.0])[-1])
    return tuple(found)


def _judged(samples: Mapping[Setting, Sequence[Sample]]) -> list[tuple[int, int]]:
    """Return by position how many draft tokens were kept, and reached: all before them were kept."""
    longest = max(setting.num_draft_tokens for setting in samples)
    found = [(0, 0)] * longest
    for setting, runs in samples.items():
        for run in runs:
            counts = (run.rounds, *run.accepted, *(0,) * longest)
            for position in range(setting.num_draft_tokens):
                kept, reached = found[position]
                found[position] = kept + counts[position + 1], reached + counts[position]
    return found


def _round_row(setting: Setting) -> tuple[float, ...]:
    length, flying = setting.num_draft_tokens, setting.concurrency
    return (1.0, float(flying), float(length), float(length * flying))


def _regress(
    points: Sequence[Sequence[float]],
    values: Sequence[float],
    prior: tuple[Sequence[float], Sequence[float]],
    asked: Sequence[float],
) -> tuple[float, float]:
    """Return expectation and deviation at `asked` of a linear model with a normal prior and relative noise.

    Where the points lie farther from the line than the noise explains, it is taken to be so much larger.
    """
    mean, deviation = (np.array(part) for part in prior)
    rows_PF, values_P, row_F = np.array(points), np.array(values), np.array(asked)
    noise_P = NOISE * values_P
    precision = np.diag(deviation**-2.0) + (rows_PF / noise_P[:, None] ** 2).T @ rows_PF
    covariance = np.linalg.inv(precision)
    weights = covariance @ (mean / deviation**2 + rows_PF.T @ (values_P / noise_P**2))
    off: Floats = (values_P - rows_PF @ weights) / noise_P
    scale = max(1.0, float(np.sqrt(np.mean(off**2))))
    return float(row_F @ weights), scale * float(np.sqrt(row_F @ covariance @ row_F))
