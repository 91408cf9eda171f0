"""Load: how many requests are under way, when they are sent, and what becomes of failures. Virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Generator

import numpy as np
import pytest
from bench_doubles import Scripted, TargetDouble, arms, run_virtually
from scipy.stats import kstest

from trtspec.client import InvalidArgument, RequestRefused, ServerBusy
from trtspec.client.bench.load import Batch, check_load, poisson_times, run_segment
from trtspec.client.bench.result import Load, Segment, Trial
from trtspec.client.bench.targets import Ending, Piece, from_thread

PROMPTS = tuple(f"prompt {n}" for n in range(12))
ARM = arms(3)[0]


def segment(
    target: TargetDouble, load: Load, numbers: tuple[int, ...] = tuple(range(12)), seed: int = 0
) -> tuple[Segment, tuple[Trial, ...]]:
    return run_virtually(run_segment(target, Batch(ARM, load, 0, numbers, 8), PROMPTS, [seed]))


def a_second(prompt: object, num_draft_tokens: object) -> Scripted:
    return Scripted([(0.25, 1), (0.75, 4)])


@pytest.mark.parametrize("concurrency", [1, 3, 12])
def test_a_closed_loop_keeps_so_many_requests_under_way(concurrency: int) -> None:
    target = TargetDouble(a_second)
    found, trials = segment(target, Load.closed(concurrency))
    assert found.wall_s == pytest.approx(12 / concurrency)
    assert max(asked.under_way for asked in target.asked) == concurrency
    by_start = Counter(round(asked.at_s, 6) for asked in target.asked)
    assert set(by_start.values()) == {concurrency}
    assert sorted(trial.prompt for trial in trials) == list(range(12))


def test_a_request_of_a_closed_loop_is_due_when_it_is_sent() -> None:
    _, trials = segment(TargetDouble(a_second), Load.closed(2))
    assert [trial.due_s for trial in trials] == [trial.sent_s for trial in trials]
    assert [trial.ttft_s for trial in trials] == pytest.approx([0.25] * 12)


def test_an_open_loop_sends_at_the_times_that_are_due_whatever_is_under_way() -> None:
    target = TargetDouble(lambda *_: Scripted([(1000.0, 1)]))
    segment(target, Load.open(2.0), seed=7)
    assert [asked.at_s for asked in target.asked] == pytest.approx(poisson_times(2.0, 12, [7]))
    assert [asked.under_way for asked in target.asked] == list(range(1, 13))


def test_waiting_to_be_sent_counts_in_an_open_loop() -> None:
    """A client that is late itself must not make the server look fast."""

    def script(prompt: object, num_draft_tokens: object) -> Scripted:
        # Holds the whole loop up, as a client without a free core does.
        asyncio.get_running_loop().now_s += 2.0  # type: ignore[attr-defined]
        return Scripted([(0.5, 1)])

    _, trials = segment(TargetDouble(script), Load.open(100.0), numbers=(0, 1, 2))
    last = trials[-1]
    assert last.sent_s - last.due_s > 1.9
    assert last.ttft_s == pytest.approx(last.arrivals[0].at_s - last.sent_s + last.sent_s - last.due_s)
    assert last.e2e_s > 2 + 2 + 0.4


def test_the_times_of_an_open_loop_are_those_of_a_poisson_process() -> None:
    times = np.array(poisson_times(4.0, 20_000, [1]))
    gaps = np.diff(times, prepend=0.0)
    # Exponential gaps that do not remember each other, and counts that vary as much as they are large.
    assert kstest(gaps, "expon", args=(0, 0.25)).pvalue > 0.01
    assert abs(np.corrcoef(gaps[:-1], gaps[1:])[0, 1]) < 0.02
    counts = np.histogram(times, bins=np.arange(0, times[-1], 5.0))[0]
    assert counts.var() / counts.mean() == pytest.approx(1.0, abs=0.1)
    assert counts.mean() == pytest.approx(20.0, rel=0.03)


def test_equal_seeds_give_equal_times_and_others_give_others() -> None:
    assert poisson_times(1.0, 5, [1, 2]) == poisson_times(1.0, 5, [1, 2])
    assert poisson_times(1.0, 5, [1, 2]) != poisson_times(1.0, 5, [1, 3])


def test_a_failed_request_is_a_trial_with_its_reason() -> None:
    def script(prompt: object, num_draft_tokens: object) -> Scripted:
        return Scripted([(0.5, 1)], error=ServerBusy("busy: 64 in flight") if prompt == "prompt 3" else None)

    _, trials = segment(TargetDouble(script), Load.closed(4))
    (failed,) = (trial for trial in trials if not trial.ok)
    assert (failed.prompt, failed.error, failed.arrivals) == (3, "busy: 64 in flight", ())
    assert failed.e2e_s == pytest.approx(0.5)


def test_a_segment_in_which_everything_failed_is_an_error() -> None:
    target = TargetDouble(lambda *_: Scripted([], error=ServerBusy("busy: full")))
    with pytest.raises(ServerBusy, match="busy: full"):
        segment(target, Load.closed(4))


def test_what_the_server_refuses_ends_the_segment_at_once_and_all_that_is_under_way() -> None:
    def script(prompt: object, num_draft_tokens: object) -> Scripted:
        if prompt == "prompt 1":
            return Scripted([(0.1, 1)], error=RequestRefused("γ is 3, at most 2"))
        return Scripted([(100.0, 1)])

    target = TargetDouble(script)
    with pytest.raises(RequestRefused, match="γ is 3"):
        segment(target, Load.closed(4))
    assert len(target.asked) == 4
    assert target.under_way == 0


@pytest.mark.parametrize("load", [Load.closed(0), Load.closed(1025), Load.open(0.0), Load.open(float("nan"))])
def test_a_load_that_cannot_be_made_is_refused(load: Load) -> None:
    with pytest.raises(InvalidArgument, match=r"^(concurrency|rate): found .*, expected "):
        check_load(load)


def test_a_blocking_iterator_gives_its_items_from_a_thread_and_its_error() -> None:
    def items() -> Generator[Piece | Ending, None, None]:
        yield from (Piece("a", 1), Piece("b", 2), Ending(3))

    async def collect() -> list[Piece | Ending]:
        return [piece async for piece in from_thread(items)]

    async def fail() -> None:
        async for _ in from_thread(lambda: (Piece() if n else 1 / n for n in (1, 0))):  # type: ignore[misc]
            pass

    assert asyncio.run(collect()) == list(items())
    with pytest.raises(ZeroDivisionError):
        asyncio.run(fail())


def test_a_blocking_iterator_that_nobody_reads_any_more_is_closed() -> None:
    closed = asyncio.Event()
    loops = []

    def items():  # type: ignore[no-untyped-def]
        try:
            while True:
                yield Piece("a", 1)
        finally:
            loops[0].call_soon_threadsafe(closed.set)

    async def take_one() -> None:
        loops.append(asyncio.get_running_loop())
        pieces = from_thread(items)
        await anext(pieces)
        await pieces.aclose()
        await closed.wait()

    asyncio.run(asyncio.wait_for(take_one(), 60))
