"""A build as a row of stages, each of which fills one folder.

A stage says by name which others it reads, and by value what its result depends on: stages with the
same name and inputs fill their folder with the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

Facts = TypeVar("Facts", bound=BaseModel)


class NoFacts(BaseModel):
    """For a stage of which nothing need be known but its files."""


class Done:
    """The stages that have been run: their folders, and what they found."""

    def __init__(self) -> None:
        self._folders: dict[str, Path] = {}
        self._facts: dict[str, BaseModel] = {}

    def add(self, name: str, folder: Path, facts: BaseModel) -> None:
        self._folders[name], self._facts[name] = folder, facts

    def folder(self, name: str) -> Path:
        """Return the folder a stage has filled."""
        return self._folders[name]

    def facts(self, name: str, kind: type[Facts]) -> Facts:
        """Return what a stage found."""
        found = self._facts[name]
        assert isinstance(found, kind)
        return found


@dataclass(frozen=True)
class Stage:
    """A step of a build.

    `run` fills the empty folder it is given and returns what it found, a value of the type `facts`.
    """

    name: str
    run: Callable[[Path, Done], BaseModel]
    facts: type[BaseModel] = NoFacts
    # What the result depends on: the stages and the checkpoints ("target", "draft") it reads, and
    # beside them values that JSON can hold.
    needs: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    inputs: Mapping[str, Any] = field(default_factory=dict)
    # Where in the pair its files go: a folder's name, or "" for the top; None: they do not.
    place: str | None = None


def run_stages(stages: Sequence[Stage], workspace: Path) -> Done:
    """Run stages in order, each in a folder of its own in `workspace`."""
    done = Done()
    for stage in stages:
        folder = workspace / stage.name
        folder.mkdir(parents=True)
        done.add(stage.name, folder, stage.run(folder, done))
    return done
