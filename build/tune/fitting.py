"""A model of a server's rounds, fitted to a few measured points: what any draft length gives at any load.

A round of a request takes a + b n + (c + d n) γ seconds when n requests are in flight, a token without
a draft e + f n; α has a value for each position. A Bayesian linear regression says how well the points
determine that, which is what the next point is chosen by (`experiment`). Intervals have both in them: what
the times leave open, and how the prompts differ in α.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trtspec.build.tune.intervals import Estimate, proportion
from trtspec.theory import Costs, tokens_by_position, tokens_per_target_call

Floats = NDArray[np.float64]

# How far the quickest of a few runs usually lies from where it belongs, as a share of that.
NOISE = 0.03
# Standard deviations of a normal distribution that hold 95 %.
WIDTH = 1.96
# Of the logarithm of a speed-up. Where points contradict each other nothing is known, and its exponential
# would be too large for a number.
WIDEST = 50.0
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
    # For each prompt, [i]: in how many rounds at least i draft tokens were kept; [0]: how many there were.
    kept: tuple[tuple[int, ...], ...]

    @property
    def rounds(self) -> int:
        return sum(counts[0] for counts in self.kept)

    @property
    def accepted(self) -> int:
        return sum(sum(counts[1:]) for counts in self.kept)


@dataclass(frozen=True)
class Fit:
    """What points determine.

    Args:
        acceptance: α by position.
        overall: α over all positions, with its interval over prompts.
        round_s: seconds of a round of a request, by setting with γ ≥ 1.
        token_s: seconds of a token of a request without a draft, by requests in flight.
    """

    acceptance: tuple[float, ...]
    overall: Estimate
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
        if not setting.num_draft_tokens:
            return Estimate(1.0, 1.0, 1.0)
        plain = Setting(0, setting.concurrency)
        tokens = self.tokens(setting.num_draft_tokens)
        value = tokens.value * self._seconds(plain)[0] / self._seconds(setting)[0]
        spread = WIDTH * math.hypot(self.uncertainty(setting), self.uncertainty(plain))
        low = min(math.hypot(spread, math.log(tokens.value / tokens.low)), WIDEST)
        high = min(math.hypot(spread, math.log(tokens.high / tokens.value)), WIDEST)
        return Estimate(value, value * math.exp(-low), value * math.exp(high))

    def tokens(self, num_draft_tokens: int) -> Estimate:
        """Return E for a γ, as far apart as the α of the ends of its interval put it."""
        value = self.tokens_per_target_call(num_draft_tokens)
        low, middle, high = (
            tokens_per_target_call(acceptance, num_draft_tokens)
            for acceptance in (self.overall.low, self.overall.value, self.overall.high)
        )
        return Estimate(value, value * low / middle, value * high / middle)

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
            return replace(self, round_s={**self.round_s, setting: seconds})
        return replace(self, token_s={**self.token_s, setting.concurrency: seconds})

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
        overall=_overall(samples),
        round_s={setting: taken for setting, taken in seconds.items() if setting.num_draft_tokens},
        token_s={
            setting.concurrency: taken for setting, taken in seconds.items() if not setting.num_draft_tokens
        },
    )


def _acceptance(samples: Mapping[Setting, Sequence[Sample]]) -> tuple[float, ...]:
    """Return α by position: kept there, of all whose predecessors were kept; else as at the one before."""
    found: list[float] = []
    for position in range(max(setting.num_draft_tokens for setting in samples)):
        pairs = [
            (_at(counts, position), _at(counts, position + 1))
            for setting, runs in samples.items()
            if setting.num_draft_tokens > position
            for run in runs
            for counts in run.kept
        ]
        reached, kept = (sum(column) for column in zip(*pairs, strict=True))
        found.append(kept / reached if reached else (found or [0.0])[-1])
    return tuple(found)


def _overall(samples: Mapping[Setting, Sequence[Sample]]) -> Estimate:
    """Return α over all positions, with the interval of prompts like these."""
    drafting = [
        (setting.num_draft_tokens, run)
        for setting, runs in samples.items()
        if setting.num_draft_tokens
        for run in runs
    ]
    prompts = range(max(len(run.kept) for _, run in drafting))
    kept = [sum(sum(run.kept[i][1:]) for _, run in drafting) for i in prompts]
    reached = [sum(sum(run.kept[i][:length]) for length, run in drafting) for i in prompts]
    if sum(count > 0 for count in reached) < 2:
        return Estimate(sum(kept) / max(sum(reached), 1), 0.0, 1.0)
    return proportion(kept, reached)


def _at(counts: Sequence[int], place: int) -> int:
    """Return a count; servers leave out positions that nothing reached."""
    return counts[place] if place < len(counts) else 0


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
