"""Two results of the same benchmark: which differences are real.

What is compared is paired by prompt: the median over blocks of each prompt's trials, B / A, and the
median of that over prompts. What the machine does during a block hits all its prompts alike, so that
prompts alone would call two runs of the same different: the blocks must differ too, and of the two
p-values the larger counts. Totals are counted once a block, and blocks of two runs have nothing in
common: their medians are divided. `speed_up` is total tokens/s over that of the first arm of the same
run and block, and so keeps out how fast the machine was on the day.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any, Literal

import numpy as np

from trtspec.client._errors import InvalidArgument
from trtspec.client.bench.result import BenchResult, Estimate, Trial
from trtspec.client.bench.statistics import (
    Bootstrap,
    estimate,
    fisher_p,
    holm_adjusted,
    signed_rank_p,
    welch_p,
)
from trtspec.client.bench.summary import PER_REQUEST, by_block, by_prompt, total_tokens_per_s

Verdict = Literal["better", "worse", "no difference"]
# Over prompts and blocks, over blocks alone, or over requests.
Test = Literal["signed rank and Welch", "Welch", "Fisher"]

# Below that many no test of theirs is left of 50 of them.
FEW_PROMPTS = 11
# Below that many a block that is an exception hides almost anything.
FEW_BLOCKS = 6
_MORE_IS_BETTER = {
    "tokens_per_s",
    "tokens_per_s_per_request",
    "speed_up",
    "tokens_per_target_call",
    "answered_share",
}


@dataclass(frozen=True)
class Difference:
    """One metric of one arm under one load, in B over A."""

    arm: str
    load: str
    metric: str
    ratio: Estimate
    test: Test
    units: int
    """Prompts that both have, or blocks or requests of the run that has fewer."""
    p_value: float
    adjusted_p: float
    """Holm's, over all differences."""
    verdict: Verdict

    @property
    def name(self) -> str:
        return f"{self.arm}, {self.load}: {self.metric}"


@dataclass(frozen=True)
class Comparison:
    """All differences; `differences` that are no difference are among them."""

    differences: tuple[Difference, ...]
    level: float
    tolerance: float
    notes: tuple[str, ...] = ()

    @property
    def regressions(self) -> tuple[Difference, ...]:
        return tuple(one for one in self.differences if one.verdict == "worse")

    def as_dict(self) -> dict[str, Any]:
        return {"ok": not self.regressions, **asdict(self)}


def compare(a: BenchResult, b: BenchResult, *, level: float = 0.05, tolerance: float = 0.02) -> Comparison:
    """Return what is different in B.

    Args:
        level: rate at which two runs of the same are called different anywhere.
        tolerance: differences of a smaller share than that are not called; 0.02 is 2 %.

    Raises:
        InvalidArgument: for runs of other prompts, loads or settings, or without an arm in common.
    """
    _refuse_others(a, b)
    confidence = 1 - level
    found = [
        replace(difference, arm=arm, load=load.name)
        for load in a.loads
        for arm in _common_arms(a, b)
        for difference in (
            *_totals(a, b, arm, load.name, confidence),
            *_pairs(a, b, arm, load.name, confidence),
            *_answered(a, b, arm, load.name, confidence),
        )
    ]
    adjusted = holm_adjusted({one.name: one.p_value for one in found})
    found = [replace(one, adjusted_p=adjusted[one.name]) for one in found]
    judged = tuple(replace(one, verdict=_verdict(one, level, tolerance)) for one in found)
    return Comparison(judged, level, tolerance, tuple(_notes(a, b)))


def _verdict(one: Difference, level: float, tolerance: float) -> Verdict:
    if one.adjusted_p >= level or abs(one.ratio.value - 1) < tolerance:
        return "no difference"
    return "better" if (one.ratio.value > 1) == (one.metric in _MORE_IS_BETTER) else "worse"


def _totals(a: BenchResult, b: BenchResult, arm: str, load: str, confidence: float) -> Iterator[Difference]:
    yield from _unpaired("tokens_per_s", _blocks(a, arm, load), _blocks(b, arm, load), confidence)
    base = a.arms[0].name
    if arm != base and base == b.arms[0].name:
        of_a, of_b = (_over(_blocks(result, arm, load), _blocks(result, base, load)) for result in (a, b))
        yield from _unpaired("speed_up", of_a, of_b, confidence)


def _pairs(a: BenchResult, b: BenchResult, arm: str, load: str, confidence: float) -> Iterator[Difference]:
    for metric, number in {**PER_REQUEST, "tokens_per_target_call": _tokens_per_target_call}.items():
        of_a, of_b = (by_prompt(result.trials_of(arm, load), number) for result in (a, b))
        ratios = list(_over(of_b, of_a).values())
        if not ratios:
            continue
        ratio = Bootstrap(len(ratios), confidence=confidence, seed=0).median(ratios)
        usual = {prompt: math.sqrt(of_a[prompt] * of_b[prompt]) for prompt in _over(of_b, of_a)}
        blocks = (by_block(result.trials_of(arm, load), number, usual) for result in (a, b))
        p_value = max(signed_rank_p([math.log(one) for one in ratios]), welch_p(*blocks))
        yield _difference(metric, ratio, "signed rank and Welch", len(ratios), p_value)


def _answered(a: BenchResult, b: BenchResult, arm: str, load: str, confidence: float) -> Iterator[Difference]:
    """Yield the share of requests that were answered, where some were not: times say nothing of those."""
    trials = [result.trials_of(arm, load) for result in (a, b)]
    if all(trial.ok for found in trials for trial in found):
        return
    prompts = 1 + max(trial.prompt for found in trials for trial in found)
    # Answered and asked in A, then in B.
    sums_UK = np.zeros((prompts, 4))
    for column, found in zip((0, 2), trials, strict=True):
        for trial in found:
            sums_UK[trial.prompt, column : column + 2] += (trial.ok, 1)
    ratio = Bootstrap(prompts, confidence=confidence, seed=0).of_sums(
        sums_UK, lambda sums: (sums[:, 2] / sums[:, 3]) / (sums[:, 0] / sums[:, 1])
    )
    if ratio is None:
        raise InvalidArgument(
            f"{arm}, {load}: found no answers in the first result, or no requests in one; expected some"
        )
    ok_a, all_a, ok_b, all_b = map(int, sums_UK.sum(axis=0))
    p_value = fisher_p((ok_a, all_a - ok_a), (ok_b, all_b - ok_b))
    yield _difference("answered_share", ratio, "Fisher", min(all_a, all_b), p_value)


def _unpaired(
    metric: str, of_a: dict[int, float], of_b: dict[int, float], confidence: float
) -> Iterator[Difference]:
    a, b = list(of_a.values()), list(of_b.values())
    if not (a and b and median(a)):
        return
    ratio = ratio_of_medians(a, b, confidence)
    yield _difference(metric, ratio, "Welch", min(len(a), len(b)), welch_p(a, b))


def ratio_of_medians(a: list[float], b: list[float], confidence: float) -> Estimate:
    """Return median(b) / median(a), each resampled by itself."""
    drawn_a, drawn_b = (
        Bootstrap(len(one), confidence=confidence, seed=seed).medians(one) for seed, one in enumerate((a, b))
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        return estimate(median(b) / median(a), drawn_b / drawn_a, confidence)


def _difference(metric: str, ratio: Estimate, test: Test, units: int, p_value: float) -> Difference:
    return Difference("", "", metric, ratio, test, units, p_value, p_value, "no difference")


def _blocks(result: BenchResult, arm: str, load: str) -> dict[int, float]:
    segments = [one for one in result.segments if (one.arm, one.load) == (arm, load)]
    return total_tokens_per_s(result.trials_of(arm, load), segments)


def _over(above: dict[int, float], below: dict[int, float]) -> dict[int, float]:
    """Return the quotients where both have one that is more than 0."""
    return {key: above[key] / below[key] for key in above if above[key] > 0 and below.get(key, 0) > 0}


def _tokens_per_target_call(trial: Trial) -> float | None:
    found = trial.speculation
    return found.tokens_per_target_call if found and found.rounds else None


def _common_arms(a: BenchResult, b: BenchResult) -> list[str]:
    return [arm.name for arm in a.arms if arm.name in {one.name for one in b.arms}]


def _refuse_others(a: BenchResult, b: BenchResult) -> None:
    parts: dict[str, Callable[[BenchResult], object]] = {
        "prompts": lambda result: (result.prompts.name, result.prompts.sha256[:12]),
        "loads": lambda result: tuple(load.name for load in result.loads),
        "max_tokens": lambda result: result.settings.max_tokens,
        "requests of a segment": lambda result: len(result.trials) // max(1, len(result.segments)),
    }
    for name, part in parts.items():
        found = part(a), part(b)
        same = a.prompts.sha256 == b.prompts.sha256 if name == "prompts" else found[0] == found[1]
        if not same:
            raise InvalidArgument(
                f"{name}: found {_said(found[0])} in the first result and {_said(found[1])} in the second, "
                "expected the same; run both with the same options"
            )
    if not _common_arms(a, b):
        found_arms = [", ".join(arm.name for arm in result.arms) for result in (a, b)]
        raise InvalidArgument(
            f"arms: found {found_arms[0]} in the first result and {found_arms[1]} in the second, expected "
            "one in both"
        )


def _said(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _notes(a: BenchResult, b: BenchResult) -> Iterator[str]:
    for key in ("hardware", "server"):
        before, after = (result.about.get(key, "unknown") for result in (a, b))
        if before != after:
            yield f"{key}: {before} in the first result, {after} in the second"
    failed = [sum(not trial.ok for trial in result.trials) for result in (a, b)]
    if any(failed):
        yield (
            f"{failed[0]} requests failed in the first result, {failed[1]} in the second; times are of the "
            "answered ones, which may be the easier ones"
        )
    prompts = a.prompts.count
    if prompts < FEW_PROMPTS:
        yield (
            f"{prompts} prompts: the signed-rank test has no p-value below {2.0 ** (1 - prompts):.2g}, which "
            "many comparisons hide; ask more prompts"
        )
    blocks = min(result.settings.blocks for result in (a, b))
    if blocks < 2:
        yield f"{blocks} block in one of them: how much blocks differ is unknown, nothing is called"
    elif blocks < FEW_BLOCKS:
        yield f"{blocks} blocks in one of them: a difference must be large to be called; ask for more blocks"
    yield "times also tell how fast the machine was in either run; speed_up does not"
