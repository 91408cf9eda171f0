"""Intervals hold the truth at the rate they state, and tests err as rarely as they say. Seeded."""

from __future__ import annotations

import numpy as np
import pytest
from bench_doubles import arms
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from trtspec.client.bench.acceptance import same_alpha
from trtspec.client.bench.result import Load, Segment, Settings, Trial
from trtspec.client.bench.statistics import (
    Bootstrap,
    holm_adjusted,
    largest_rate,
    signed_rank_p,
    welch_p,
)
from trtspec.client.bench.summary import summarize
from trtspec.theory import definitions, tokens_per_target_call

# Of 300 simulated runs at a rate of 0.95, fewer than 270 would be seen once in 5,000.
RUNS = 300
LEAST = 270


def coverage(hits: list[bool]) -> int:
    assert len(hits) == RUNS
    return sum(hits)


@pytest.mark.parametrize("units", [6, 12, 24])
def test_the_interval_of_a_median_holds_the_truth_at_its_rate(units: int) -> None:
    rng = np.random.default_rng(units)
    hits = []
    for run in range(RUNS):
        values = rng.lognormal(0.0, 0.5, units)  # of median 1
        found = Bootstrap(units, confidence=0.95, seed=run, resamples=400).median(values.tolist())
        hits.append(found.low <= 1.0 <= found.high)
    assert LEAST <= coverage(hits) <= RUNS - 1


def test_the_interval_of_a_median_over_prompts_counts_answers_to_one_prompt_as_one_witness() -> None:
    """Prompts differ by 40 %, answers to the same prompt by 3 %: 72 times, of which 12 are independent."""
    rng = np.random.default_rng(0)
    right, too_sure = [], []
    for run in range(RUNS):
        prompts = np.repeat(rng.normal(0.0, 0.4, 12), 6)
        values = np.exp(prompts + rng.normal(0.0, 0.03, 72)).tolist()
        unit_of = np.repeat(np.arange(12), 6).tolist()
        by_prompt = Bootstrap(12, confidence=0.95, seed=run, resamples=400)
        clustered = by_prompt.quantiles(values, unit_of, (0.5,))[0]
        naive = Bootstrap(72, confidence=0.95, seed=run, resamples=400).median(values)
        right.append(clustered.low <= 1.0 <= clustered.high)
        too_sure.append(naive.low <= 1.0 <= naive.high)
    assert coverage(right) >= LEAST
    assert coverage(too_sure) < LEAST


def test_the_interval_of_a_paired_ratio_holds_the_truth_while_the_machine_drifts() -> None:
    """An arm takes 0.8 of the time; prompts differ by half, blocks by a third, answers by 5 %."""
    rng = np.random.default_rng(1)
    settings = Settings(max_tokens=8, blocks=6, warm_up=0, seed=0)
    hits = {"e2e_s": [], "tokens_per_s": []}
    for _ in range(100):
        trials, segments = [], []
        prompt_s = rng.lognormal(0.0, 0.5, 12)
        for block, drift in enumerate(rng.lognormal(0.0, 0.3, 6)):
            for arm, factor in (("γ=0", 1.0), ("γ=4", 0.8)):
                times = factor * drift * prompt_s * rng.lognormal(0.0, 0.05, 12)
                trials += [Trial(arm, "load", block, n, 0.0, 0.0, t, tokens=8) for n, t in enumerate(times)]
                segments.append(Segment(arm, "load", block, float(times.sum())))
        loads = (Load("load", "closed", concurrency=1),)
        summary = summarize(trials, segments, arms(0, 4), loads, settings, shows_acceptance=False)[1]
        for name, truth in (("e2e_s", 0.8), ("tokens_per_s", 1.25)):
            hits[name].append(summary.ratios[name].low <= truth <= summary.ratios[name].high)
    # Of 100 at a rate of 0.95, fewer than 87 would be seen once in 1,000.
    assert sum(hits["e2e_s"]) >= 87
    assert sum(hits["tokens_per_s"]) >= 87


def test_the_interval_of_a_ratio_of_sums_holds_the_truth() -> None:
    rng = np.random.default_rng(2)
    hits = []
    for run in range(RUNS):
        rates = rng.beta(14, 6, 24)  # of mean 0.7
        sums_UK = np.stack([rng.binomial(200, rates), np.full(24, 200)], axis=1).astype(float)
        bootstrap = Bootstrap(24, confidence=0.95, seed=run, resamples=400)
        found = bootstrap.of_sums(sums_UK, lambda sums: sums[:, 0] / sums[:, 1])
        assert found is not None
        hits.append(found.low <= 0.7 <= found.high)
    assert coverage(hits) >= LEAST


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_quantiles_are_numpys(values: list[float], level: float) -> None:
    found = Bootstrap(len(values), confidence=0.9, seed=0, resamples=20).quantiles(
        values, range(len(values)), (level,)
    )[0]
    assert found.value == pytest.approx(np.quantile(values, level, method="averaged_inverted_cdf"))
    assert min(values) <= found.low <= found.high <= max(values)


def test_drawn_quantiles_are_those_of_the_values_drawn_as_often() -> None:
    """Independent of the weights: every draw is written out and given to numpy."""
    rng = np.random.default_rng(3)
    values, unit_of = rng.normal(size=40), rng.integers(0, 5, 40)
    bootstrap = Bootstrap(5, confidence=0.9, seed=9, resamples=50)
    found = bootstrap.quantiles(values.tolist(), unit_of.tolist(), (0.9,))[0]
    drawn = []
    for draw in np.random.default_rng([9, 5]).integers(5, size=(50, 5)):
        written_out = np.concatenate([values[unit_of == unit] for unit in draw])
        drawn.append(np.quantile(written_out, 0.9, method="averaged_inverted_cdf"))
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(drawn, [0.05, 0.95])))


def test_the_largest_rate_is_how_often_smallest_and_largest_enclose_the_median() -> None:
    rng = np.random.default_rng(4)
    for units in (2, 5, 6):
        values = rng.normal(size=(20_000, units))
        enclosed = ((values.min(axis=1) < 0) & (values.max(axis=1) > 0)).mean()
        assert largest_rate(units) == pytest.approx(enclosed, abs=0.01)


@given(st.floats(0.01, 0.99), st.integers(1, 10))
def test_the_same_alpha_everywhere_gives_the_theorys_tokens(alpha: float, gamma: int) -> None:
    accepted = 1000 * (tokens_per_target_call(alpha, gamma) - 1)
    found = same_alpha(np.array([accepted]), np.full((1, gamma), 1000.0))
    assert found[0] == pytest.approx(alpha, abs=1e-9)


def test_the_same_alpha_is_found_where_draft_lengths_differ_between_rounds() -> None:
    rng = np.random.default_rng(5)
    proposed, accepted = np.zeros(8), 0
    for length in rng.integers(1, 9, 20_000):
        kept = int(np.argmin(np.append(rng.random(length) < 0.8, False)))
        proposed[:length] += 1
        accepted += kept
    assert same_alpha(np.array([float(accepted)]), proposed[None])[0] == pytest.approx(0.8, abs=0.01)


def test_nothing_proposed_has_no_alpha() -> None:
    assert np.isnan(same_alpha(np.zeros(1), np.zeros((1, 0)))[0])


def test_holm_is_the_step_down_of_the_textbook() -> None:
    # Holm 1979; by hand: 4 · 0.005, 3 · 0.01, 2 · 0.03, then not less than before.
    found = holm_adjusted({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert found == pytest.approx({"d": 0.02, "a": 0.03, "c": 0.06, "b": 0.06})
    assert holm_adjusted({"a": 0.9, "b": 0.8}) == {"b": 1.0, "a": 1.0}
    assert holm_adjusted({}) == {}


def test_tests_of_equal_things_reject_as_rarely_as_they_say() -> None:
    rng = np.random.default_rng(6)
    signed = [signed_rank_p(rng.normal(0, 1, 16).tolist()) for _ in range(1000)]
    welch = [welch_p(*rng.lognormal(0, 0.2, (2, 6)).tolist()) for _ in range(1000)]
    for p_values in (signed, welch):
        assert np.mean(np.array(p_values) < 0.05) < 0.075
    assert welch_p([1.0, 1.01, 0.99], [1.2, 1.21, 1.19]) == pytest.approx(
        stats.ttest_ind(np.log([1.0, 1.01, 0.99]), np.log([1.2, 1.21, 1.19]), equal_var=False).pvalue
    )


def test_what_is_exactly_equal_or_constant_needs_no_test() -> None:
    assert signed_rank_p([0.0] * 5) == 1.0
    assert welch_p([2.0, 2.0], [2.0, 2.0]) == 1.0
    assert welch_p([2.0, 2.0], [3.0, 3.0]) == 0.0
    assert welch_p([2.0], [3.0, 4.0]) == 1.0


def test_zeros_hide_no_difference() -> None:
    """They have no logarithm, and a p-value that is no number would confuse Holm's order."""
    assert welch_p([10.0, 11.0, 10.5], [0.0, 0.0, 0.1]) < 0.01
    assert welch_p([0.0, 0.0], [0.0, 0.0]) == 1
    assert welch_p([10.0, 10.0], [0.0, 0.0]) == 0


def test_definitions_are_the_theorys_words() -> None:
    assert definitions("r", "E") == {
        "r": 'accepted / proposed draft tokens; what most tools print as "acceptance rate"',
        "E": "tokens a target call, the target's own included: 1 + accepted / rounds",
    }
