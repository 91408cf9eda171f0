"""verify, sampling: a server that is right passes as often as stated, wrong ones do not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from sampling_servers import Fault, SamplingServer, TableReference
from scipy import stats

from trtspec.client.verify import Finding, Noise
from trtspec.client.verify.sampling import SamplingPlan, judge_sampling
from trtspec.client.verify.statistics import GTest, correlation_p_value, excess_p_value, g_test, holm_rejected

PROMPTS = [[token] for token in range(6)]
EXACT = Noise("float32", 1, 1)
QUICK = SamplingPlan(draws=60, tokens=4, concurrency=1)


def findings(fault: Fault, plan: SamplingPlan, prompts: Sequence[Sequence[int]] = PROMPTS) -> list[Finding]:
    client = SamplingServer(fault, plan.seed).client()
    return judge_sampling(client, TableReference(), EXACT, prompts, plan)


def defects(found: Sequence[Finding]) -> list[str]:
    return [finding.name for finding in found if finding.verdict == "defect"]


def test_a_right_server_passes_200_runs_with_no_more_alarms_than_stated() -> None:
    alarms = 0
    for seed in range(200):
        plan = SamplingPlan(draws=40, tokens=3, alarm_rate=0.01, seed=seed, concurrency=1)
        alarms += bool(defects(findings("", plan, PROMPTS[seed % 6 :][:1])))
    # Stated: 2 in 200 on average; 7 or more would come in 1 of 230 such tests.
    assert alarms <= 6


@pytest.mark.parametrize(
    ("fault", "shown_by"),
    [
        ("accept always", "distribution, all prompts"),
        ("wrong residual", "distribution, all prompts"),
        ("same seed every round", "positions"),
        ("temperature ignored", "likely and unlikely tokens"),
        ("top-p for the draft only", "truncation"),
        ("seed ignored", "whole continuations"),
        ("one seed for requests without", "requests without a seed"),
    ],
)
def test_a_server_with_a_fault_fails_and_the_finding_names_the_kind(fault: Fault, shown_by: str) -> None:
    found = defects(findings(fault, SamplingPlan(draws=120, concurrency=1)))
    assert any(shown_by in name for name in found), found


def test_a_report_says_what_it_could_have_found() -> None:
    (total,) = [f for f in findings("", QUICK) if f.name == "distribution, all prompts"]
    assert 0.05 < total.numbers["detectable_tv"] < 0.5
    assert "finds a total variation of" in total.detail


def test_the_stated_power_is_reached() -> None:
    """A deviation of the stated size, of the shape that is hardest to see, is found in 9 of 10 runs."""
    p_V, level, draws = np.full(10, 0.1), 1e-4, 500
    test = g_test(draws * p_V, p_V)
    tv = GTest(0.0, test.degrees, draws).detectable(level)
    wrong_V = p_V + np.repeat([tv / 5, -tv / 5], 5)
    rng = np.random.default_rng(0)
    found = sum(
        g_test(rng.multinomial(draws, wrong_V).astype(float), p_V).p_value < level for _ in range(400)
    )
    # 360 expected; 340 is 3.3 standard deviations below.
    assert found >= 340


@pytest.mark.parametrize("p_V", [np.array([0.5, 0.3, 0.1, 0.05, 0.03, 0.02]), np.geomspace(1, 1e-4, 60)])
def test_the_g_test_keeps_its_level(p_V: np.ndarray) -> None:
    p_V = p_V / p_V.sum()
    rng = np.random.default_rng(1)
    values = [g_test(counts.astype(float), p_V).p_value for counts in rng.multinomial(150, p_V, 1500)]
    for level, most in ((0.05, 0.067), (0.01, 0.018), (0.001, 0.004)):
        assert np.mean(np.array(values) < level) <= most


def test_draws_that_noise_explains_are_no_defect() -> None:
    p_V, rng = np.full(8, 1 / 8), np.random.default_rng(2)
    off_V = p_V * np.exp(rng.normal(0, 0.05, 8))
    counts = rng.multinomial(200_000, off_V / off_V.sum()).astype(float)
    assert g_test(counts, p_V).p_value < 1e-6
    # Few cells can have more than their share of it.
    assert g_test(counts, p_V, kl=0.075**2 / 2).p_value > 0.01


def test_a_certain_token_has_nothing_to_test() -> None:
    assert g_test(np.array([100.0, 0.0]), np.array([1.0, 0.0])) == GTest()
    assert GTest().p_value == 1
    assert GTest().detectable(0.01) == 1


def test_hits_are_compared_with_the_binomial() -> None:
    assert excess_p_value(3, [0.1] * 10) == pytest.approx(stats.binom.sf(2, 10, 0.1))
    assert excess_p_value(1, [0.1] * 10) == 1
    assert excess_p_value(0, []) == 1
    # Unequal chances: the binomial has the heavier tail.
    rng = np.random.default_rng(3)
    chances = np.repeat([0.01, 0.5], 20)
    hits = (rng.random((4000, 40)) < chances).sum(1)
    assert np.mean([excess_p_value(int(k), chances.tolist()) < 0.01 for k in hits]) <= 0.01


def test_independent_places_have_uniform_p_values_and_equal_ones_do_not() -> None:
    rng = np.random.default_rng(4)
    values = [correlation_p_value(*rng.random((2, 300)).tolist()) for _ in range(1000)]
    assert np.mean(np.array(values) < 0.01) == pytest.approx(0.01, abs=0.008)
    row = rng.random(300).tolist()
    assert correlation_p_value(row, row) < 1e-12
    assert correlation_p_value([], []) == 1


def test_holm_stops_at_the_first_that_holds() -> None:
    assert holm_rejected([0.01, 0.04, 0.011, 0.5], 0.04) == [True, False, True, False]
    assert holm_rejected([], 0.05) == []
    assert holm_rejected([0.02, 0.02, 0.02], 0.05) == [False, False, False]


def test_answers_of_another_length_are_a_defect() -> None:
    class Short(SamplingServer):
        def __call__(self, request):  # type: ignore[no-untyped-def]
            request.inputs["max_tokens"][0, 0] -= 1
            return super().__call__(request)

    found = judge_sampling(Short().client(), TableReference(), EXACT, PROMPTS[:1], QUICK)
    assert "length" in defects(found)
