"""Which differences between two runs are real; scripted runs in virtual time, seeded."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from bench_results import PROMPTS, noisy, result_of

from trtspec.client import InvalidArgument
from trtspec.client.bench.compare import Comparison, compare
from trtspec.client.bench.result import BenchResult, Load


@pytest.fixture(scope="module")
def before() -> BenchResult:
    return result_of(noisy(1), blocks=6)


@pytest.fixture(scope="module")
def by_chance(before: BenchResult) -> list[Comparison]:
    """Comparisons with runs of the same script, with other noise."""
    return [compare(before, result_of(noisy(seed), blocks=6), tolerance=0.0) for seed in range(2, 22)]


def verdicts(comparison: Comparison) -> dict[tuple[str, str], str]:
    return {(one.arm, one.metric): one.verdict for one in comparison.differences}


def test_a_run_is_no_different_from_itself(before: BenchResult) -> None:
    comparison = compare(before, before)
    assert set(verdicts(comparison).values()) == {"no difference"}
    assert all(one.ratio.value == 1 and one.adjusted_p == 1 for one in comparison.differences)


def test_runs_that_differ_by_chance_are_called_different_as_rarely_as_said(
    by_chance: list[Comparison],
) -> None:
    alarms = sum(any(one.verdict != "no difference" for one in run.differences) for run in by_chance)
    # 1 is expected of 20, each with 12 tests; 5 or more come once in 400.
    assert alarms <= 4


def test_a_machine_that_is_faster_in_some_blocks_is_no_difference_between_runs() -> None:
    """All prompts of a block are hit alike, so that they are no witnesses independent of each other."""
    runs = [result_of(noisy(seed, between_passes=0.3), blocks=6) for seed in range(21)]
    found = [compare(before, after, tolerance=0.0) for before, after in pairwise(runs)]
    alarms = sum(any(one.verdict != "no difference" for one in run.differences) for run in found)
    assert alarms <= 4  # as above


def test_of_one_block_nothing_is_called(before: BenchResult) -> None:
    after = result_of(noisy(2, slower=1.2), blocks=1)
    found = compare(before, after)
    assert set(verdicts(found).values()) == {"no difference"}
    assert any(note.startswith("1 block in one of them") for note in found.notes)


def test_a_slower_draft_is_found_and_the_arm_without_one_is_not_blamed(before: BenchResult) -> None:
    found = compare(before, result_of(noisy(2, slower=1.2), blocks=6))
    said = verdicts(found)
    for metric in ("tokens_per_s", "speed_up", "tokens_per_s_per_request", "itl_s", "e2e_s"):
        assert said["γ=4", metric] == "worse", metric
    assert said["γ=4", "ttft_s"] == "no difference"
    assert {verdict for (arm, _), verdict in said.items() if arm == "γ=0"} == {"no difference"}
    ratios = {(one.arm, one.metric): one.ratio for one in found.differences}
    assert ratios["γ=4", "itl_s"].low <= 1.2 <= ratios["γ=4", "itl_s"].high


def test_what_became_faster_is_better_in_every_direction(before: BenchResult) -> None:
    found = compare(before, result_of(noisy(2, slower=0.8), blocks=6))
    said = verdicts(found)
    assert (said["γ=4", "tokens_per_s"], said["γ=4", "e2e_s"]) == ("better", "better")
    assert found.regressions == ()


def test_acceptance_that_collapsed_is_a_regression(before: BenchResult) -> None:
    found = compare(before, result_of(noisy(2, accepted=1), blocks=6))
    assert "tokens_per_target_call" in {one.metric for one in found.regressions}


def failing(result: BenchResult, share: float, arm: str = "γ=4") -> BenchResult:
    """A result of which that share of an arm's requests failed."""
    mine = [trial for trial in result.trials if trial.arm == arm]
    gone = {id(trial) for trial in mine[: round(share * len(mine))]}
    trials = tuple(replace(one, error="busy") if id(one) in gone else one for one in result.trials)
    return replace(result, trials=trials)


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_requests_that_fail_in_the_second_run_are_a_regression(before: BenchResult, share: float) -> None:
    found = compare(before, failing(before, share))
    assert verdicts(found)["γ=4", "answered_share"] == "worse"
    assert ("γ=0", "answered_share") not in verdicts(found)
    assert any(note.startswith("0 requests failed in the first result") for note in found.notes)
    back = verdicts(compare(failing(before, 0.3), before))
    assert back["γ=4", "answered_share"] == "better"


def test_a_first_run_without_answers_is_nothing_to_compare_with(before: BenchResult) -> None:
    with pytest.raises(InvalidArgument, match=r"^γ=4, 1 at a time: found no answers in the first result"):
        compare(failing(before, 1.0), before)


def test_a_few_more_failures_among_many_are_no_difference(before: BenchResult) -> None:
    found = compare(failing(before, 0.3), failing(before, 0.33))
    assert verdicts(found)["γ=4", "answered_share"] == "no difference"


def test_a_difference_below_the_tolerance_is_not_called(before: BenchResult) -> None:
    after = result_of(noisy(2, slower=1.2), blocks=6)
    assert compare(before, after, tolerance=0.3).regressions == ()


def test_a_p_value_that_is_small_only_alone_is_not_called(by_chance: list[Comparison]) -> None:
    """Of many differences some have a small p-value; what counts is Holm's."""
    differences = [one for run in by_chance for one in run.differences]
    assert any(one.p_value < 0.05 <= one.adjusted_p for one in differences)
    assert all(one.verdict == "no difference" for one in differences if one.adjusted_p >= 0.05)


def test_a_machine_that_is_slower_as_a_whole_changes_times_and_not_the_speed_up(before: BenchResult) -> None:
    script = noisy(2)

    def slower(prompt: object, num_draft_tokens: int | None):  # type: ignore[no-untyped-def]
        answer = script(prompt, num_draft_tokens)  # type: ignore[arg-type]
        return replace(answer, responses=[(1.3 * wait_s, tokens) for wait_s, tokens in answer.responses])

    found = compare(before, result_of(slower, blocks=6))
    said = verdicts(found)
    assert (said["γ=0", "tokens_per_s"], said["γ=4", "tokens_per_s"]) == ("worse", "worse")
    assert said["γ=4", "speed_up"] == "no difference"
    assert any("speed_up does not" in note for note in found.notes)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"prompts": PROMPTS[:-1]}, r"^prompts: found test, .* expected the same"),
        ({"max_tokens": 8}, r"^max_tokens: found 41 in the first result and 8 in the second"),
        ({"loads": (Load.closed(4),)}, r"^loads: found 1 at a time in the first result and 4 at a time in"),
        ({"lengths": (2,)}, r"^arms: found γ=0, γ=4 in the first result and γ=2 in the second"),
    ],
)
def test_runs_of_other_things_are_not_compared(before: BenchResult, other: dict, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        compare(before, result_of(noisy(2), **other))


def test_another_machine_or_server_and_too_few_prompts_are_noted(before: BenchResult) -> None:
    other = replace(before, about={"hardware": "a larger script", "server": "Triton 3"})
    few = replace(before.prompts, count=4)
    notes = "\n".join(compare(replace(before, prompts=few), replace(other, prompts=few)).notes)
    assert "hardware: a script in the first result, a larger script in the second" in notes
    assert "server: unknown in the first result, Triton 3 in the second" in notes
    assert "4 prompts: the signed-rank test has no p-value below 0.12" in notes
