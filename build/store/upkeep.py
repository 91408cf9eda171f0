"""The store from outside a build: what it holds, whether that is whole, and what can go."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from trtspec.build.store.record import RECORD, Entry, read_entry
from trtspec.build.store.store import PARTIAL, STAGES, Store, default_cache
from trtspec.errors import OutputError

StrPath = str | os.PathLike[str]
UNFINISHED = "unfinished"
DAMAGED = "damaged"


@dataclass(frozen=True)
class KeptStage:
    """A stage that is kept."""

    key: str
    stage: str
    size_bytes: int
    used: datetime  # last, in local time
    output: str  # the pair it was made for


@dataclass(frozen=True)
class UnfinishedStage:
    """A stage that is being made, or whose build was killed."""

    key: str
    size_bytes: int
    in_use: bool


@dataclass(frozen=True)
class DamagedStage:
    """A stage whose record cannot be read, so that no build will use it."""

    key: str
    size_bytes: int


@dataclass(frozen=True)
class Listing:
    """What a store holds; stages used last come last."""

    folder: Path
    stages: tuple[KeptStage, ...]
    unfinished: tuple[UnfinishedStage, ...]
    damaged: tuple[DamagedStage, ...]

    @property
    def size_bytes(self) -> int:
        found: list[KeptStage | UnfinishedStage | DamagedStage]
        found = [*self.stages, *self.unfinished, *self.damaged]
        return sum(stage.size_bytes for stage in found)


@dataclass(frozen=True)
class Damage:
    """A file that is not what was made."""

    path: Path
    stage: str
    command: str  # the build to run again; "" where the record that said so is damaged
    removed: bool  # with its stage


@dataclass(frozen=True)
class Verified:
    """What reading a store has found."""

    folder: Path
    checked: int
    damaged: tuple[Damage, ...]


@dataclass(frozen=True)
class Removed:
    """A stage that is gone, or would be."""

    key: str
    stage: str
    size_bytes: int


@dataclass(frozen=True)
class Collected:
    """What was removed, and the bytes that freed: not those that a pair links to."""

    folder: Path
    removed: tuple[Removed, ...]
    freed_bytes: int
    kept_bytes: int


def list_store(cache: StrPath | None = None) -> Listing:
    """Return what a store holds; None is the user's own."""
    with _opened(cache) as store:
        stages = tuple(
            KeptStage(
                key=entry.folder.name,
                stage=entry.record.stage,
                size_bytes=entry.record.size_bytes,
                used=datetime.fromtimestamp(entry.used_ns / 1e9).astimezone(),
                output=entry.record.made_for.output,
            )
            for entry in _by_use(store)
        )
        unfinished = tuple(_unfinished(store, folder) for folder in store.partials())
        damaged = tuple(DamagedStage(folder.name, _size(folder)) for folder in store.unreadable())
        return Listing(store.folder, stages, unfinished, damaged)


def verify_store(cache: StrPath | None = None) -> Verified:
    """Read every file that is kept; a damaged stage is removed where no build uses it."""
    with _opened(cache) as store:
        entries, damaged = store.entries(), list[Damage]()
        # One that a build holds is being replaced.
        unreadable = [folder for folder in store.unreadable() if _remove(store, folder, unless=read_entry)]
        damaged += [Damage(folder / RECORD, DAMAGED, "", removed=True) for folder in unreadable]
        for entry in entries:
            if names := entry.damaged():
                removed = _remove(store, entry.folder)
                command = str(entry.record.made_for)
                damaged += [
                    Damage(entry.files / name, entry.record.stage, command, removed) for name in names
                ]
        return Verified(store.folder, len(entries) + len(unreadable), tuple(damaged))


def collect_garbage(
    cache: StrPath | None = None,
    *,
    max_size_bytes: int | None = None,
    unused_for_s: float | None = None,
    dry_run: bool = False,
) -> Collected:
    """Remove what killed builds have left, what was unused for long, and the longest unused that is too much.

    Stages whose record is damaged, which no build can use, go too. What a running build uses stays.
    """
    with _opened(cache) as store:
        entries = _by_use(store)
        size = sum(entry.record.size_bytes for entry in entries)
        removed, freed = [], 0
        for folder in store.partials():
            found, size_bytes = _unfinished(store, folder), _linked_here(folder)
            if _remove(store, folder, dry_run=dry_run):
                removed.append(Removed(found.key, UNFINISHED, found.size_bytes))
                freed += size_bytes
        for folder in store.unreadable():
            size_bytes, freed_bytes = _size(folder), _linked_here(folder)
            if _remove(store, folder, dry_run=dry_run, unless=read_entry):
                removed.append(Removed(folder.name, DAMAGED, size_bytes))
                freed += freed_bytes
        oldest_ns = None if unused_for_s is None else time.time_ns() - int(unused_for_s * 1e9)
        for entry in entries:
            too_old = oldest_ns is not None and entry.used_ns < oldest_ns
            too_much = max_size_bytes is not None and size > max_size_bytes
            size_bytes = _linked_here(entry.folder)
            if (too_old or too_much) and _remove(store, entry.folder, dry_run=dry_run):
                removed.append(Removed(entry.folder.name, entry.record.stage, entry.record.size_bytes))
                size -= entry.record.size_bytes
                freed += size_bytes
        return Collected(store.folder, tuple(removed), freed, size)


@contextmanager
def _opened(cache: StrPath | None) -> Iterator[Store]:
    folder = default_cache() if cache is None else Path(cache)
    if cache is not None and not (folder / STAGES).is_dir():
        raise OutputError(f"{folder}: no store; expected a folder that `trtspec build --cache` has made")
    with Store(folder, create=False) as store:
        yield store


def _by_use(store: Store) -> list[Entry]:
    return sorted(store.entries(), key=lambda entry: entry.used_ns)


def _unfinished(store: Store, folder: Path) -> UnfinishedStage:
    key = folder.name.removesuffix(PARTIAL)
    return UnfinishedStage(key, _size(folder), in_use=not _is_free(store, key))


def _size(folder: Path) -> int:
    return sum(stat.st_size for stat in _stats(folder))


def _linked_here(folder: Path) -> int:
    """Return the bytes that go with a folder: of files that have no other name."""
    return sum(stat.st_size for stat in _stats(folder) if stat.st_nlink == 1)


def _stats(folder: Path) -> Iterator[os.stat_result]:
    """Yield what is known of each file below a folder, which a build may be renaming or emptying."""
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                yield os.stat(os.path.join(place, name))


def _is_free(store: Store, key: str) -> bool:
    lock = store.lock(key)
    try:
        return lock.try_to_take()
    finally:
        lock.close()


def _remove(
    store: Store, folder: Path, *, dry_run: bool = False, unless: Callable[[Path], object] | None = None
) -> bool:
    """Remove a stage, finished or not; return False where a build uses it, or `unless`, or it has gone."""
    lock = store.lock(folder.name.removesuffix(PARTIAL))
    try:
        if not lock.try_to_take():
            return False
        if not folder.is_dir() or (unless and unless(folder)):
            return False
        if not dry_run:
            store.drop(folder)
        return True
    finally:
        lock.close()
