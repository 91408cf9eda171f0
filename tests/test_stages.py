"""Stages run once what they need is made, side by side where they may, and end together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtspec.build.stages import Done, Finished, NoFacts, Stage, Stopped, free_memory_bytes, run_stages

Act = Callable[[Done], None]
ROOM = 100


def stage(name: str, *needs: str, act: Act = lambda done: None, memory_bytes: int | None = 1) -> Stage:
    def run(folder: Path, done: Done) -> NoFacts:
        act(done)
        return NoFacts()

    return Stage(name, run, needs=needs, memory_bytes=memory_bytes)


def make(stage: Stage, done: Done) -> Finished:
    return Finished(Path(stage.name), stage.run(Path(stage.name), done), {"file": stage.name})


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from([None, 1, 60, 1000])), min_size=1, max_size=6))
def test_a_stage_finds_what_it_needs_and_the_memory_is_never_overdrawn(
    shape: list[tuple[int, int | None]],
) -> None:
    taken: dict[str, int | None] = {}
    lock = threading.Lock()

    def act(name: str, needs: tuple[str, ...], memory_bytes: int | None) -> Act:
        def run(done: Done) -> None:
            assert done.holds(needs)
            with lock:
                taken[name] = memory_bytes
                assert len(taken) == 1 or None not in taken.values()
                assert len(taken) == 1 or sum(size or 0 for size in taken.values()) <= ROOM
            with lock:
                del taken[name]

        return run

    stages = []
    for number, (needed, memory_bytes) in enumerate(shape):
        needs = (str(needed),) if needed < number else ()
        name = str(number)
        stages.append(stage(name, *needs, act=act(name, needs, memory_bytes), memory_bytes=memory_bytes))
    done = run_stages(stages, make, memory_bytes=ROOM)
    assert done.holds([stage.name for stage in stages])
    assert done.files(stages[-1].name) == {"file": stages[-1].name}


def test_stages_that_may_run_at_the_same_time() -> None:
    both = threading.Barrier(2, timeout=10)
    pair = [stage(name, act=lambda done: both.wait() and None, memory_bytes=50) for name in "ab"]
    run_stages(pair, make, memory_bytes=ROOM)


def test_a_stage_that_says_no_memory_runs_alone_and_in_the_thread_of_the_build() -> None:
    threads = []
    alone = stage("b", act=lambda done: threads.append(threading.current_thread()), memory_bytes=None)
    run_stages([stage("a"), alone, stage("c")], make, memory_bytes=ROOM)
    assert threads == [threading.main_thread()]


@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()])
def test_an_error_ends_the_stages_beside_it_and_is_the_one_that_is_seen(error: BaseException) -> None:
    ended, started = threading.Event(), threading.Event()

    def long(done: Done) -> None:
        started.set()
        try:
            while True:
                done.go_on()
                time.sleep(0.001)
        except Stopped:
            ended.set()
            raise

    def broken(done: Done) -> None:
        assert started.wait(10)
        raise error

    later = []
    stages = [
        stage("long", act=long),
        stage("broken", act=broken),
        stage("later", "broken", act=lambda done: later.append(1)),
    ]
    with pytest.raises(type(error)):
        run_stages(stages, make, memory_bytes=ROOM)
    assert ended.is_set()
    assert later == []


def test_linux_says_how_much_memory_is_free() -> None:
    assert free_memory_bytes() > 1 << 20
