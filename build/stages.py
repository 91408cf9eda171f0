"""A build as a row of stages, each of which fills one folder.

A stage says by name which others it reads, and by value what its result depends on: stages with the
same name and inputs fill their folder with the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any, TypeVar

from pydantic import BaseModel

Facts = TypeVar("Facts", bound=BaseModel)

# A folder that a stage may keep in its own while it runs: all else that a killed stage has written is
# removed before it runs again, this is not. It is no part of the result.
RESUME = ".resume"


class NoFacts(BaseModel):
    """For a stage of which nothing need be known but its files."""


class Stopped(Exception):
    """Ends a stage whose build has failed elsewhere or is being interrupted."""


@dataclass(frozen=True)
class Finished:
    """What a stage has made."""

    folder: Path
    facts: BaseModel
    files: Mapping[str, str]  # SHA-256, by path in the folder


class Done:
    """The stages that have been run: their folders, and what they found."""

    def __init__(self) -> None:
        self._finished: dict[str, Finished] = {}
        self._stopping = Event()

    def add(self, name: str, finished: Finished) -> None:
        self._finished[name] = finished

    def folder(self, name: str) -> Path:
        """Return the folder a stage has filled."""
        return self._finished[name].folder

    def files(self, name: str) -> Mapping[str, str]:
        """Return the SHA-256 of each file a stage has made, by its path in the folder."""
        return self._finished[name].files

    def facts(self, name: str, kind: type[Facts]) -> Facts:
        """Return what a stage found."""
        found = self._finished[name].facts
        assert isinstance(found, kind)
        return found

    def holds(self, names: Sequence[str]) -> bool:
        """Whether all of these have been run."""
        return all(name in self._finished for name in names)

    def stop(self) -> None:
        """Ask the stages that run beside others to end."""
        self._stopping.set()

    def go_on(self) -> None:
        """Raise Stopped where the build is ending; a stage that runs beside others asks now and then."""
        if self._stopping.is_set():
            raise Stopped


@dataclass(frozen=True)
class Stage:
    """A step of a build.

    `run` fills the empty folder it is given and returns what it found, a value of the type `facts`.
    """

    name: str
    run: Callable[[Path, Done], BaseModel]
    facts: type[BaseModel] = NoFacts
    # What the result depends on: the stages and the checkpoints ("target", "draft") it reads, and
    # beside them values that JSON can hold; a path of a file stands for what is in the file.
    needs: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    inputs: Mapping[str, Any] = field(default_factory=dict)
    # Where in the pair its files go: a folder's name, or "" for the top; None: they do not.
    place: str | None = None
    # The most memory it takes, where it may run beside others: in a thread, and it asks `Done.go_on`
    # often enough to be ended. None: it runs alone.
    memory_bytes: int | None = None


Make = Callable[[Stage, Done], Finished]


def run_stages(stages: Sequence[Stage], make: Make, *, memory_bytes: int) -> Done:
    """Make every stage once those it needs are made; side by side where they say that they can.

    Stages start in their order. The first error ends the build: stages that run beside it are asked to
    stop, and waited for.

    Args:
        make: makes one stage, or finds it made.
        memory_bytes: what stages that run side by side may take together.
    """
    done, waiting = Done(), list(stages)
    running: dict[Future[Finished], Stage] = {}
    with ThreadPoolExecutor(len(stages), thread_name_prefix="stage") as pool:
        try:
            while waiting or running:
                taken = sum(stage.memory_bytes or 0 for stage in running.values())
                stage = _next(waiting, done)
                if stage and _fits(stage, running, memory_bytes - taken):
                    waiting.remove(stage)
                    if stage.memory_bytes is None:
                        done.add(stage.name, make(stage, done))
                    else:
                        running[pool.submit(make, stage, done)] = stage
                    continue
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    done.add(running.pop(future).name, future.result())
        except BaseException:
            done.stop()
            raise
    return done


def _next(waiting: Sequence[Stage], done: Done) -> Stage | None:
    return next((stage for stage in waiting if done.holds(stage.needs)), None)


def _fits(stage: Stage, running: Mapping[Future[Finished], Stage], free_bytes: int) -> bool:
    return not running or (stage.memory_bytes is not None and stage.memory_bytes <= free_bytes)


def free_memory_bytes() -> int:
    """Return what this machine can give without swapping, as Linux estimates it; 0 where it does not say."""
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    except OSError:
        return 0
    found = dict(line.split(":", 1) for line in lines)
    return int(found.get("MemAvailable", "0 kB").split()[0]) * 1024
