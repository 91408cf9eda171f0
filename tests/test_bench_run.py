"""A run's numbers equal those of the script that answers; its arms are interleaved. Virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from bench_doubles import Script, Scripted, TargetDouble, arms, run_virtually

from trtspec.client import ConnectionFailed, InvalidArgument, ServerBusy, ServerTimes, Speculation
from trtspec.client.bench.plan import Plan, Prompts, arms_of
from trtspec.client.bench.random_tokens import random_prompts
from trtspec.client.bench.result import BenchResult, Bound, Load, Segment, Settings
from trtspec.client.bench.run import Unfinished, arms_in_order, bench_async
from trtspec.theory import acceptance_rate, tokens_per_target_call

PROMPTS = Prompts.of("test", [f"prompt {n}" for n in range(12)])
SETTINGS = Settings(max_tokens=41, blocks=6, warm_up=1, seed=3)
GAMMA = 4
ROUNDS = 10


def script(prompt: object, num_draft_tokens: int | None) -> Scripted:
    """γ = 0: a token each 20 ms. γ = 4: 10 rounds of 50 ms with 4 tokens, of 4 drafted ones 3 accepted."""
    times = ServerTimes(10**9, 2 * 10**9, 3 * 10**9, 10**9 + 400_000_000, engine_ns=300_000_000)
    if not num_draft_tokens:
        return Scripted([(0.1, 1)] + [(0.02, 1)] * 40, ending={"server": times})
    speculation = Speculation(ROUNDS, 40, 30, (10, 10, 10, 0), (10, 10, 10, 10))
    return Scripted([(0.1, 1)] + [(0.05, 4)] * 10, ending={"server": times, "speculation": speculation})


def measure(target: TargetDouble | None = None, **changes: Any) -> BenchResult:
    usual = {"arms": arms(0, GAMMA), "loads": (Load.closed(1),), "prompts": PROMPTS, "settings": SETTINGS}
    return run_virtually(bench_async([target or TargetDouble(script)], Plan(**{**usual, **changes})))


def notes(answers: Script = script, **changes: Any) -> str:
    return "\n".join(measure(TargetDouble(answers), **changes).notes)


def test_the_reports_numbers_are_the_scripts() -> None:
    result = measure(settings=replace(SETTINGS, bound=Bound(e2e_s=0.7)))
    plain, drafted = result.summaries
    assert (plain.requests, plain.failed, plain.tokens) == (72, 0, 72 * 41)
    for summary, whole_s, later_s, gap_s, good in (
        (plain, 0.9, 0.02, 0.02, 0.0),
        (drafted, 0.6, 0.0125, 0.05, 1 / 0.6),
    ):
        expected = {
            "tokens_per_s_per_request": 41 / whole_s,
            "ttft_s": 0.1,
            "itl_chunk_s": gap_s,
            "itl_s": later_s,
            "e2e_s": whole_s,
            "server_s": 0.4,
        }
        for name, value in expected.items():
            for percentile in ("p50", "p90", "p95", "p99"):
                found = getattr(getattr(summary, name), percentile)
                assert (found.value, found.low, found.high) == pytest.approx((value,) * 3), (name, percentile)
        assert summary.tokens_per_s is not None
        assert summary.tokens_per_s.value == pytest.approx(41 / whole_s)
        assert summary.goodput_per_s is not None
        assert summary.goodput_per_s.value == pytest.approx(good)
        assert summary.outside_share is not None
        assert summary.outside_share.value == pytest.approx(1 - 0.4 / whole_s)
        assert summary.orchestration_share is not None
        assert summary.orchestration_share.value == pytest.approx(0.25)


def test_ratios_are_to_the_first_arm() -> None:
    plain, drafted = measure().summaries
    assert plain.ratios == {}
    values = {name: ratio.value for name, ratio in drafted.ratios.items()}
    assert values == pytest.approx(
        {
            "tokens_per_s": 1.5,
            "tokens_per_s_per_request": 1.5,
            "ttft_s": 1.0,
            "itl_s": 0.625,
            "e2e_s": 0.6 / 0.9,
        }
    )


def test_total_throughput_grows_with_concurrency_and_a_requests_does_not() -> None:
    result = measure(loads=(Load.closed(1), Load.closed(4)))
    found = {(one.arm, one.load): one for one in result.summaries}
    alone, four = found["γ=4", "1 at a time"], found["γ=4", "4 at a time"]
    assert alone.tokens_per_s is not None
    assert four.tokens_per_s is not None
    assert four.tokens_per_s.value == pytest.approx(4 * alone.tokens_per_s.value)
    assert four.tokens_per_s_per_request == alone.tokens_per_s_per_request or (
        four.tokens_per_s_per_request is not None
        and four.tokens_per_s_per_request.p50.value == pytest.approx(41 / 0.6)
    )


def test_acceptance_is_r_and_alpha_and_tokens_per_target_call() -> None:
    plain, drafted = measure().summaries
    assert plain.acceptance is None
    found = drafted.acceptance
    assert found is not None
    assert found.rate.value == pytest.approx(0.75)
    assert found.tokens_per_target_call.value == pytest.approx(4.0)
    assert found.mean_draft_tokens == pytest.approx(4.0)
    assert found.by_position == pytest.approx((1.0, 1.0, 1.0, 0.0))
    # α is what the definitions of the theory turn into the same r and E.
    assert acceptance_rate(found.alpha.value, GAMMA) == pytest.approx(0.75)
    assert tokens_per_target_call(found.alpha.value, GAMMA) == pytest.approx(4.0)


def test_acceptance_says_what_share_of_the_tokens_it_speaks_of() -> None:
    """A server that adapts drafts for some answers only; 8 tokens of these come in two rounds."""

    def adapts(prompt: object, num_draft_tokens: int | None) -> Scripted:
        drafted = Speculation(2, 8, 6, (2, 2, 2, 0), (2, 2, 2, 2)) if prompt == "prompt 0" else None
        speculation = drafted or Speculation(0, 0, 0, off_reason="it does not pay")
        return Scripted([(0.1, 8)], ending={"speculation": speculation})

    found = measure(TargetDouble(adapts), arms=arms(0, -1)).summary_of("auto", "1 at a time").acceptance
    assert found is not None
    assert found.share_of_tokens == pytest.approx(1 / 12)


def test_the_tokens_of_a_response_stand_beside_the_gaps() -> None:
    result = measure()
    plain, drafted = (result.summary_of(arm, "1 at a time").tokens_per_response for arm in ("γ=0", "γ=4"))
    assert plain is not None
    assert drafted is not None
    assert (plain.value, drafted.value) == (1, pytest.approx(41 / 11))


def test_a_server_that_counts_neither_rounds_nor_positions_has_r_alone() -> None:
    """As NVIDIA's do."""

    def counts_tokens(prompt: object, num_draft_tokens: int | None) -> Scripted:
        return Scripted([(1.0, 5)], ending={"speculation": Speculation(0, 40, 30)})

    found = measure(TargetDouble(counts_tokens)).summaries[1].acceptance
    assert found is not None
    assert found.rate.value == pytest.approx(0.75)
    assert (found.alpha, found.tokens_per_target_call, found.mean_draft_tokens) == (None, None, None)
    assert found.by_position == ()


def test_warm_up_is_said_and_not_counted() -> None:
    calls = 0

    def cold(prompt: object, num_draft_tokens: int | None) -> Scripted:
        nonlocal calls
        calls += 1
        return Scripted([(100.0 if calls <= 12 else 1.0, 1)])

    said: list[Segment] = []
    plan = Plan(arms(0), (Load.closed(1),), PROMPTS, replace(SETTINGS, warm_up=1))
    result = run_virtually(bench_async([TargetDouble(cold)], plan, on_segment=said.append))
    assert [segment.block for segment in said] == [-1, *range(6)]
    assert len(result.trials) == 72
    assert {round(trial.e2e_s, 6) for trial in result.trials} == {1.0}


def test_every_arm_runs_once_in_every_block_over_the_same_prompts_in_the_same_order() -> None:
    result = measure(arms=arms(0, 2, 4, -1), loads=(Load.closed(1), Load.open(1.0)))
    for load in ("1 at a time", "1/s"):
        for block in range(6):
            ran = [s.arm for s in result.segments if (s.load, s.block) == (load, block)]
            assert sorted(ran) == sorted(["γ=0", "γ=2", "γ=4", "auto"])
            assert len({order(result, arm, load, block) for arm in ran}) == 1
    assert len({order(result, "γ=0", "1 at a time", block) for block in range(6)}) > 1


def order(result: BenchResult, arm: str, load: str, block: int) -> tuple[tuple[int, float], ...]:
    """Which prompts were asked, and when where that does not hang on the answers."""
    trials = [trial for trial in result.trials_of(arm, load) if trial.block == block]
    return tuple((trial.prompt, trial.due_s if load == "1/s" else 0.0) for trial in trials)


def test_the_order_of_arms_is_drawn_and_turned_round_in_the_next_block() -> None:
    all_arms = arms(0, 2, 4, -1)
    orders = [arms_in_order(all_arms, block, seed=5) for block in range(40)]
    for first, second in list(pairwise(orders))[::2]:
        assert first == tuple(reversed(second))
    # Every arm comes equally early: 1.5 others before it on average, so an even drift cancels.
    for arm in all_arms:
        assert sum(order.index(arm) for order in orders) / len(orders) == 1.5
    assert len(set(orders)) > 8


def test_an_even_drift_of_the_machine_does_not_favour_an_arm() -> None:
    """Both arms are equally fast on a machine that becomes three times as slow during the run."""
    calls = 0

    def drifting(prompt: object, num_draft_tokens: int | None) -> Scripted:
        nonlocal calls
        calls += 1
        return Scripted([(1.0 + 2.0 * calls / 300, 1)])

    result = measure(TargetDouble(drifting), settings=replace(SETTINGS, blocks=10))
    ratio = result.summary_of("γ=4", "1 at a time").ratios["e2e_s"]
    # What runs second in every block would be 4 % slower.
    assert ratio.value == pytest.approx(1.0, abs=0.002)


def test_acceptance_of_random_tokens_is_refused_and_cannot_be_computed_from_the_result() -> None:
    prompts = Prompts.of("random", random_prompts(4, 8, seed=0), random_tokens=True)
    result = measure(prompts=prompts)
    assert [summary.acceptance for summary in result.summaries] == [None, None]
    assert all(trial.speculation is None for trial in result.trials)
    assert any("random tokens" in note and "acceptance is not reported" in note for note in result.notes)
    assert result.summaries[1].ratios["tokens_per_s"].value == pytest.approx(1.5)


def test_random_prompts_stay_within_the_vocabulary_and_out_of_its_ends() -> None:
    found = random_prompts(50, 200, seed=1, vocabulary=300)
    ids = {token for prompt in found for token in prompt}
    assert (len(found), {len(prompt) for prompt in found}) == (50, {200})
    assert (min(ids), max(ids)) == (16, 283)
    assert random_prompts(2, 3, seed=1) == random_prompts(2, 3, seed=1)
    with pytest.raises(InvalidArgument, match=r"^random tokens: found a vocabulary of 20"):
        random_prompts(1, 1, seed=0, vocabulary=20)


def test_failed_requests_are_counted_and_noted_and_are_in_no_time() -> None:
    def failing(prompt: object, num_draft_tokens: int | None) -> Scripted:
        error = ServerBusy("busy: full") if prompt == "prompt 0" and num_draft_tokens else None
        return Scripted([(1.0 if error is None else 50.0, 5)], error=error)

    result = measure(TargetDouble(failing))
    summary = result.summary_of("γ=4", "1 at a time")
    assert (summary.requests, summary.failed, summary.tokens) == (72, 6, 66 * 5)
    assert summary.e2e_s is not None
    assert summary.e2e_s.p99.value == pytest.approx(1.0)
    assert any(note == "6 of 144 requests failed, the first with: busy: full" for note in result.notes)


def test_a_server_that_dies_leaves_the_blocks_that_were_whole() -> None:
    asked = 0

    def dying(prompt: object, num_draft_tokens: int | None) -> Scripted:
        nonlocal asked
        asked += 1
        # Warm-up and two blocks of two arms, then half a block.
        error = ConnectionFailed("it is gone") if asked > (3 * 2 + 1) * 12 else None
        return Scripted([(1.0, 5)], error=error)

    target = TargetDouble(dying)
    with pytest.raises(Unfinished, match=r"^stopped in block 3 of 6: it is gone$") as stopped:
        measure(target)
    result = stopped.value.result
    assert isinstance(stopped.value.__cause__, ConnectionFailed)
    assert (result.settings.blocks, len(result.segments), len(result.trials)) == (2, 4, 4 * 12)
    assert [summary.requests for summary in result.summaries] == [24, 24]
    assert result.notes[0] == "stopped in block 3 of 6: it is gone"
    assert target.closed


def test_a_server_that_dies_before_a_block_is_whole_leaves_its_error() -> None:
    with pytest.raises(ConnectionFailed, match="it is gone"):
        measure(TargetDouble(lambda *_: Scripted([(1.0, 5)], error=ConnectionFailed("it is gone"))))


def test_answers_that_differ_between_arms_are_noted() -> None:
    """Two servers of different models, or a draft that changes what is said."""

    def talk(prompt: object, num_draft_tokens: int | None) -> Scripted:
        return Scripted([(1.0, 5)], text="other" if num_draft_tokens and prompt == "prompt 1" else "same")

    assert notes(talk).startswith("1 of 12 prompts had not the same answer from all arms: ")
    assert notes() == ""


def test_a_draft_that_gave_up_is_noted_for_fixed_lengths_only() -> None:
    def gave_up(prompt: object, num_draft_tokens: int | None) -> Scripted:
        speculation = Speculation(0, 0, 0, off_reason="the draft is gone")
        return Scripted([(1.0, 5)], ending={"speculation": speculation})

    assert notes(gave_up) == "72 of 72 answers went on without a draft: the draft is gone"
    assert notes(gave_up, arms=arms(0, -1)) == ""


@pytest.mark.parametrize(("rate_per_s", "arms_named"), [(1.0, ""), (8.0, "γ=0"), (1000.0, "γ=0, γ=4")])
def test_an_open_loop_that_no_server_keeps_up_with_is_noted(rate_per_s: float, arms_named: str) -> None:
    """A server that answers one after the other, in 0.3 s without and 0.1 s with a draft."""
    free_s = 0.0

    def queueing(prompt: object, num_draft_tokens: int | None) -> Scripted:
        nonlocal free_s
        now_s = asyncio.get_running_loop().time()
        free_s = max(free_s, now_s) + (0.1 if num_draft_tokens else 0.3)
        return Scripted([(free_s - now_s, 5)])

    found = notes(queueing, loads=(Load.open(rate_per_s),), requests=60)
    assert ("more than half of the time passed after" in found) == bool(arms_named)
    assert f"({arms_named})" in found or not arms_named


def test_too_few_blocks_for_the_stated_rate_are_noted() -> None:
    found = notes(settings=replace(SETTINGS, blocks=3))
    assert found.startswith("3 blocks: intervals of totals hold the truth at a rate of 0.75 at most")


def test_two_servers_are_asked_in_the_same_run() -> None:
    fast, slow = (
        TargetDouble(lambda *_, s=seconds: Scripted([(s, 10)]), name=name)
        for name, seconds in (("fast", 1.0), ("slow", 3.0))
    )
    plan = Plan(arms_of([slow, fast], (0, 4)), (Load.closed(1),), PROMPTS, SETTINGS)
    result = run_virtually(bench_async([slow, fast], plan))
    assert [arm.name for arm in result.arms] == ["slow γ=0", "slow γ=4", "fast γ=0", "fast γ=4"]
    assert result.summary_of("fast γ=4", "1 at a time").ratios["e2e_s"].value == pytest.approx(1 / 3)
    assert {segment.arm.split()[0] for segment in result.segments[:4]} == {"fast", "slow"}
    assert result.about == {"slow: model": "a script", "fast: model": "a script"}
    assert fast.closed
    assert slow.closed


def test_a_target_that_takes_no_draft_length_has_one_arm() -> None:
    plain = TargetDouble(script, name="openai")
    plain.takes_draft_tokens = False
    found = arms_of([TargetDouble(script, name="ours"), plain], (0, -1, None))
    lengths = {arm.name: arm.num_draft_tokens for arm in found}
    assert lengths == {"ours γ=0": 0, "ours auto": -1, "ours default": None, "openai": None}


def test_a_segment_asks_all_prompts_and_at_least_twice_as_many_requests_as_are_under_way() -> None:
    plan = Plan(arms(0), (Load.closed(1),), PROMPTS, SETTINGS)
    loads = Load.closed(1), Load.closed(64), Load.open(2.0)
    assert [plan.requests_of(load) for load in loads] == [12, 128, 12]
    assert replace(plan, requests=5).requests_of(Load.closed(64)) == 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arms": ()}, r"^arms: found none"),
        ({"arms": arms(2, 2)}, r"^arms: found γ=2, γ=2, expected some, each once"),
        ({"loads": ()}, r"^loads: found none"),
        ({"loads": (Load.closed(10**9),)}, r"^concurrency: found 1000000000, expected 1 to 1024"),
        ({"settings": replace(SETTINGS, blocks=0)}, r"^blocks: found 0, expected at least 1"),
        ({"settings": replace(SETTINGS, confidence=1.0)}, r"^confidence: found 1.0"),
        ({"requests": 0}, r"^requests: found 0"),
        ({"arms": arms(1, server="elsewhere")}, r"^arms: found servers elsewhere, expected double"),
    ],
)
def test_a_plan_that_cannot_be_run_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        measure(**changes)


def test_no_prompts_are_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"^empty\.txt: found no prompts"):
        Prompts.of("empty.txt", [])
