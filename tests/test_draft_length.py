"""The draft length that adapts: near the best fixed one, never far below none, and never off for good."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from speculation_simulator import MAX_DRAFT_LEN, Simulation, Trace, compare, traces

from trtspec.triton_repo.speculation.adaptive_length import GLANCE_TOKENS, DraftLengths, SharedDraftLength
from trtspec.triton_repo.speculation.draft_length import FixedDraftLength, PlainCall, Round, Step
from trtspec.triton_repo.speculation.throughput import (
    Acceptance,
    Costs,
    Line,
    OwnAcceptance,
    best_draft_length,
)

SEEDS = (0, 1)
TRACES = {trace.name: trace for trace in traces()}


@pytest.mark.parametrize("name", TRACES)
def test_it_is_near_the_best_fixed_length_and_never_far_below_none(name: str) -> None:
    for seed in SEEDS:
        found = compare(TRACES[name], seed)
        assert found.to_best >= 0.95, found
        assert found.to_plain >= 0.97, found


def chosen(trace: Trace) -> list[int]:
    simulation = Simulation(trace, DraftLengths(MAX_DRAFT_LEN).request, seed=0)
    simulation.throughput()
    return simulation.chosen


def test_a_hopeless_draft_is_given_up() -> None:
    steps = chosen(TRACES["constant α=0.0 c=0.5"])
    assert max(steps[10:]) == 1
    # 64 answers of 128 tokens in few more calls than one each: most run without a break.
    assert Counter(steps)[0] < 3 * 64


def test_a_draft_that_was_given_up_comes_back_when_it_pays_again() -> None:
    steps = chosen(TRACES["bad, then good for good"])
    assert Counter(steps[:100])[0] > 40
    late = steps[-200:]
    assert sum(step >= 5 for step in late) > 180


def test_short_answers_never_wait_for_the_end_of_a_chunk() -> None:
    request = DraftLengths(MAX_DRAFT_LEN).request()
    assert request.choose(1) == Step(plain_tokens=1)
    assert request.choose(2) == Step(draft_tokens=1)


@given(limit=st.integers(0, 8), remaining=st.integers(1, 40))
def test_a_fixed_length_is_taken_as_far_as_the_answer_goes(limit: int, remaining: int) -> None:
    step = FixedDraftLength(limit).choose(remaining)
    assert step.draft_tokens == min(limit, remaining - 1)
    assert step.plain_tokens == (0 if step.draft_tokens else remaining)


@given(
    max_draft_len=st.integers(0, 12),
    answers=st.lists(st.lists(st.tuples(st.integers(0, 12), st.floats(0, 1e6)), max_size=30), max_size=8),
)
def test_no_history_makes_a_step_that_cannot_be_taken(max_draft_len, answers) -> None:
    shared = DraftLengths(max_draft_len)
    for history in answers:
        request, remaining = shared.request(), 60
        for kept, seconds in history:
            step = request.choose(remaining)
            assert 0 <= step.draft_tokens <= min(max_draft_len, remaining - 1)
            assert 0 < step.plain_tokens <= remaining if not step.draft_tokens else step.plain_tokens == 0
            tokens = step.plain_tokens or min(kept, step.draft_tokens) + 1
            if step.draft_tokens:
                request.record_round(Round(step.draft_tokens, tokens - 1, tokens, seconds, seconds))
            else:
                request.record_plain(PlainCall(tokens, seconds))
            remaining -= tokens
            if remaining < 1:
                break
        request.close()


def serve(shared: DraftLengths, *, alpha: float, rounds: int) -> SharedDraftLength:
    """One long answer by a target of 1 s and a draft of 0.1 s a token, with even luck."""
    request, luck = shared.request(), 0.5
    for _ in range(rounds):
        step = request.choose(10_000)
        if not step.draft_tokens:
            request.record_plain(PlainCall(step.plain_tokens, step.plain_tokens + 0.1))
            continue
        kept = 0
        while kept < step.draft_tokens:
            luck = (luck + 0.618034) % 1.0
            if luck > alpha:
                break
            kept += 1
        request.record_round(Round(step.draft_tokens, kept, kept + 1, 0.1 * step.draft_tokens, 1.1))
    return request


def test_what_one_request_learnt_the_next_one_knows() -> None:
    shared = DraftLengths(MAX_DRAFT_LEN)
    serve(shared, alpha=0.95, rounds=80).close()
    assert shared.current >= 6
    assert serve(shared, alpha=0.95, rounds=0).choose(1000).draft_tokens >= 6


def test_a_request_that_differs_is_treated_differently() -> None:
    shared = DraftLengths(MAX_DRAFT_LEN)
    good = serve(shared, alpha=0.9, rounds=100)
    hopeless = serve(shared, alpha=0.0, rounds=16)
    assert hopeless.acceptance.factor > 2 * good.acceptance.factor
    assert hopeless.choose(1000).draft_tokens < good.choose(1000).draft_tokens


def test_a_new_load_starts_from_what_is_known_and_all_look_at_the_target_alone() -> None:
    shared = DraftLengths(MAX_DRAFT_LEN)
    serve(shared, alpha=0.9, rounds=50)
    crowd = [shared.request() for _ in range(30)]
    steps = [request.choose(100) for request in crowd]
    assert set(steps) == {steps[0]}
    assert steps[0].plain_tokens in (GLANCE_TOKENS, 2 * GLANCE_TOKENS)
    for request, step in zip(crowd, steps, strict=True):
        # Three times as slow as for one: so far, all else is taken to be as well.
        request.record_plain(PlainCall(step.plain_tokens, 3.0 * step.plain_tokens))
    for request in crowd:
        request.choose(80)
    assert all(request.speculates for request in crowd)


def test_a_target_that_is_slow_because_others_speculate_is_not_taken_to_be_slow() -> None:
    shared = DraftLengths(MAX_DRAFT_LEN)

    def company(num_draft_tokens: int) -> list[SharedDraftLength]:
        requests = [shared.request(FixedDraftLength(num_draft_tokens)) for _ in range(7)]
        for request in requests:
            request.choose(100)
        return requests

    def calls_alone(seconds: float) -> float:
        for _ in range(20):
            one.choose(20)
            one.record_plain(PlainCall(20, seconds))
        return one.level.costs.plain_s

    one = shared.request(FixedDraftLength(0))
    others = company(0)
    assert calls_alone(20.0) == pytest.approx(1.0)
    for other in others:
        other.close()
    company(5)
    assert calls_alone(70.0) == pytest.approx(1.0)


def test_a_budget_saved_at_one_load_is_not_spent_at_another() -> None:
    shared = DraftLengths(MAX_DRAFT_LEN)
    serve(shared, alpha=0.0, rounds=400).close()
    alone = shared.request()
    chunk = alone.choose(10_000).plain_tokens
    crowd = [shared.request() for _ in range(7)]
    for _ in range(100):
        for request in crowd:
            step = request.choose(1000)
            if step.plain_tokens:
                request.record_plain(PlainCall(step.plain_tokens, 50.0 * step.plain_tokens))
            else:
                request.record_round(Round(step.draft_tokens, 0, 1, 5.0, 500.0))
    for request in crowd:
        request.close()
    assert alone.choose(10_000).plain_tokens == chunk


def test_one_slow_call_changes_little() -> None:
    shared = DraftLengths(MAX_DRAFT_LEN)
    request = serve(shared, alpha=0.9, rounds=60)
    before = request.choose(1000).draft_tokens
    request.record_round(Round(before, before, before + 1, 500.0, 500.0))
    assert abs(request.choose(1000).draft_tokens - before) <= 1


def test_many_threads_may_share_it() -> None:
    shared = DraftLengths(MAX_DRAFT_LEN)
    with ThreadPoolExecutor(8) as threads:
        requests = list(threads.map(lambda _: serve(shared, alpha=0.8, rounds=300), range(16)))
    for request in requests:
        request.close()
    assert shared.in_flight == 0
    assert shared.current > 0


# Estimates


def test_tokens_of_a_round_are_those_of_the_formula() -> None:
    for alpha in (0.0, 0.3, 0.8, 1.0):
        costs = Costs()
        costs.target.observe(1, 1.0)
        for length in range(1, 9):
            rates = [alpha] * 8
            best, rate = best_draft_length(costs, rates, 1.0, length)
            expected = max(sum(alpha**i for i in range(k + 1)) for k in range(1, length + 1))
            assert rate == pytest.approx(expected)
            assert 1 <= best <= length


# Best γ and speed-up for c, α with v = 0.03 and o = 0.3, from S = E / (γc + 1 + vγ + o).
@pytest.mark.parametrize(
    ("c", "alpha", "length", "gain"),
    [
        (0.02, 0.6, 5, 1.54),
        (0.05, 0.4, 2, 1.07),
        (0.05, 0.8, 7, 2.24),
        (0.1, 0.6, 3, 1.29),
        (0.1, 0.9, 10, 2.64),
        (0.2, 0.6, 2, 1.11),
        (0.2, 0.8, 4, 1.51),
    ],
)
def test_the_best_length_is_the_one_theory_gives(c: float, alpha: float, length: int, gain: float) -> None:
    costs = Costs()
    for tokens in (1, 4, 8, 2, 6) * 10:
        costs.draft.observe(tokens, c * tokens)
        costs.target.observe(tokens, 1.3 + 0.03 * tokens)
    best, rate = best_draft_length(costs, [alpha] * 20, 1.0, 20)
    assert rate == pytest.approx(gain, abs=0.012)
    assert abs(best - length) <= 1


@given(st.lists(st.tuples(st.integers(1, 16), st.floats(0, 1e3), st.booleans()), min_size=1, max_size=60))
def test_a_line_of_costs_neither_falls_nor_starts_below_nothing(calls) -> None:
    for proportional in (True, False):
        line = Line(proportional=proportional)
        for tokens, seconds, steady in calls:
            line.observe(tokens, seconds, steady=steady)
        assert line.slope >= 0
        assert line.intercept >= -1e-9
        assert line.at(line.x) == pytest.approx(line.y)


def test_before_lengths_differ_a_draft_is_proportional_and_a_target_flat() -> None:
    draft, target = Line(proportional=True), Line(proportional=False)
    for _ in range(5):
        draft.observe(4, 0.4)
        target.observe(4, 1.0)
    assert draft.at(8) == pytest.approx(0.8)
    assert target.at(8) == pytest.approx(1.0)


def test_costs_of_another_load_keep_their_proportions() -> None:
    costs = Costs()
    for tokens in (2, 4) * 20:
        costs.draft.observe(tokens, 0.1 * tokens)
        costs.observe_target(tokens, 1.0 + 0.1 * tokens, steady=True)
        costs.observe_plain(tokens, 1.0 * tokens, steady=True)
    guess = costs.inherited()
    guess.observe_plain(4, 12.0, steady=True)
    assert guess.plain_s == pytest.approx(3 * costs.plain_s, rel=0.01)
    assert guess.target.at(3) == pytest.approx(3 * costs.target.at(3), rel=0.01)
    assert guess.draft.at(3) == pytest.approx(3 * costs.draft.at(3), rel=0.01)
    assert costs.target.at(3) == pytest.approx(1.3, rel=0.01)


def test_what_has_not_been_done_for_a_while_is_soon_learnt_anew() -> None:
    costs = Costs()
    for _ in range(200):
        costs.observe_target(3, 1.0, steady=True)
    for _ in range(300):
        costs.observe_plain(10, 10.0, steady=True)
    for _ in range(12):
        costs.observe_target(3, 2.0, steady=True)
    assert costs.target.at(3) > 1.4


def test_calls_that_had_to_read_first_only_bound_the_cost() -> None:
    line = Line(proportional=False)
    line.observe(3, 50.0, steady=False)
    assert line.at(3) == 50
    line.observe(3, 1.0)
    line.observe(3, 60.0, steady=False)
    assert line.at(3) == pytest.approx(1.0)


def test_acceptance_is_known_by_position() -> None:
    shared = Acceptance(4)
    for i in range(400):
        shared.observe(3, 2 if i % 4 else 1)
    assert shared.rates[0] > 0.97
    assert shared.rates[1] == pytest.approx(0.75, abs=0.05)
    assert shared.rates[2] < 0.05
    # Never tried: what the others have together.
    assert shared.rates[3] == pytest.approx(shared.overall)


def test_a_request_like_the_others_has_no_factor_of_its_own() -> None:
    shared, own = Acceptance(4), OwnAcceptance()
    for i in range(400):
        shared.observe(4, (4, 1, 3, 0)[i % 4])
    for i in range(400):
        own.observe(shared, 4, (4, 1, 3, 0)[i % 4])
    assert own.factor == pytest.approx(1.0, abs=0.2)


def test_requests_with_a_fixed_length_teach_others_and_pay_for_no_probe() -> None:
    shared = DraftLengths(MAX_DRAFT_LEN)
    fixed = shared.request(FixedDraftLength(2))
    for _ in range(200):
        assert fixed.choose(1000) == Step(draft_tokens=2)
        fixed.record_round(Round(2, 2, 3, 0.2, 1.0))
    fixed.close()
    request = shared.request()
    # The target alone has not been seen at this load: a glance at it, and what was learnt serves.
    assert request.choose(1000) == Step(plain_tokens=GLANCE_TOKENS)
    request.record_plain(PlainCall(GLANCE_TOKENS, GLANCE_TOKENS + 0.1))
    steps = []
    for _ in range(60):
        step = request.choose(1000)
        steps.append(step.draft_tokens)
        if step.draft_tokens:
            done = Round(
                step.draft_tokens, step.draft_tokens, step.draft_tokens + 1, 0.1 * step.draft_tokens, 1
            )
            request.record_round(done)
        else:
            request.record_plain(PlainCall(step.plain_tokens, step.plain_tokens + 0.1))
    assert steps.count(8) > 50
