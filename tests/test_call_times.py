"""What the steps of an answer took, by a clock that the test turns."""

from __future__ import annotations

from dataclasses import dataclass, field

from trtspec.triton_repo.speculation.call_times import CallTimes
from trtspec.triton_repo.speculation.draft_length import FixedDraftLength, PlainCall, Round


@dataclass
class Listener(FixedDraftLength):
    """A double of a draft length that keeps what it hears."""

    num_draft_tokens: int = 0

    heard: list[Round | PlainCall] = field(default_factory=list)

    def record_round(self, done: Round) -> None:
        self.heard.append(done)

    def record_plain(self, done: PlainCall) -> None:
        self.heard.append(done)


class Clock:
    """Shows what it was set to."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_rounds_and_plain_calls_are_told_with_their_seconds() -> None:
    clock, listener = Clock(), Listener()
    times = CallTimes(listener, arrival_s=99.0, clock=clock)
    times.begin()  # a round: the draft takes 1 s, the target 4, sending what came 0.5
    clock.now += 1
    times.verify(3)
    clock.now += 4
    times.take(3, accepted=2)
    clock.now += 0.5
    times.begin()  # the target alone: 2 s to its first reply, 6 s for three more
    clock.now += 2
    times.take(1)
    clock.now += 3
    times.take(1)
    clock.now += 3
    times.take(2)
    clock.now += 0.5
    times.begin()  # a second round
    times.verify(2)
    clock.now += 4
    times.take(1, accepted=0)
    times.finish()
    assert listener.heard == [
        Round(3, 2, 3, draft_s=1, target_s=4.5, draft_steady=False, target_steady=False),
        PlainCall(tokens=4, seconds=8.5, steady=True),
        Round(2, 0, 1, draft_s=0, target_s=4, draft_steady=False, target_steady=True),
    ]
    assert times.nanoseconds() == {
        "arrival_time_ns": 99_000_000_000,
        "first_scheduled_time_ns": 100_000_000_000,
        "first_token_time_ns": 105_000_000_000,
        "last_token_time_ns": 118_000_000_000,
        "engine_time_ns": 17_000_000_000,
    }


def test_a_draft_is_steady_after_a_round() -> None:
    listener = Listener()
    times = CallTimes(listener, clock=Clock())
    for _ in range(3):
        times.begin()
        times.verify(2)
        times.take(2, accepted=1)
    times.finish()
    assert [done.draft_steady for done in listener.heard if isinstance(done, Round)] == [False, True, True]


def test_a_step_that_came_to_nothing_is_not_told() -> None:
    listener = Listener()
    times = CallTimes(listener, clock=Clock())
    times.begin()  # the draft fails
    times.begin()
    times.take(0)
    times.finish()
    times.finish()
    assert listener.heard == []
    assert times.nanoseconds()["first_token_time_ns"] == 0
