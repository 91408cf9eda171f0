"""A draft that failed is left alone for a while, then tried, by one answer at a time."""

from __future__ import annotations

from itertools import pairwise

from trtspec.triton_repo.speculation.draft_gate import FIRST_PAUSE_S, LONGEST_PAUSE_S, DraftGate


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_draft_may_be_asked_until_it_fails() -> None:
    gate = DraftGate(Clock())
    assert gate.closed_because() == ""
    assert gate.failed("it died")
    assert gate.closed_because() == "it died"


def test_answers_that_fail_together_are_one_failure() -> None:
    clock = Clock()
    gate = DraftGate(clock)
    assert [gate.failed("it died") for _ in range(5)] == [True] + 4 * [False]
    clock.now_s = FIRST_PAUSE_S
    assert gate.closed_because() == ""


def test_after_the_pause_one_answer_tries() -> None:
    clock = Clock()
    gate = DraftGate(clock)
    gate.failed("it died")
    clock.now_s = FIRST_PAUSE_S
    assert [gate.closed_because() for _ in range(3)] == ["", "it died", "it died"]


def test_a_trial_that_works_opens_the_gate() -> None:
    clock = Clock()
    gate = DraftGate(clock)
    gate.failed("it died")
    clock.now_s = FIRST_PAUSE_S
    assert gate.closed_because() == ""
    gate.worked()
    assert gate.closed_because() == ""
    assert gate.failed("again")


def test_pauses_double_up_to_a_bound_and_never_end_for_good() -> None:
    clock = Clock()
    gate = DraftGate(clock)
    gate.failed("it died")
    trials = []
    while len(trials) < 12:
        clock.now_s += 1.0
        if not gate.closed_because():
            trials.append(clock.now_s)
            gate.failed("still dead")
    pauses = [later - earlier for earlier, later in pairwise(trials)]
    assert pauses[:3] == [2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S, 8 * FIRST_PAUSE_S]
    assert pauses[-1] == max(pauses) == LONGEST_PAUSE_S
