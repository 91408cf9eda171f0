"""The store: a folder with one folder for each stage that was made, named by the stage's key.

stages/KEY/           a finished stage: stage.json, files/
stages/KEY.partial/   one that is being made, or whose build was killed
locks/KEY             shared by the builds that use the stage, held alone by the one that makes it
hashes/               SHA-256 of checkpoints, so that they are read once
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from trtspec.build.stages import RESUME, Done, Finished, Stage
from trtspec.build.store.hashes import Hashes
from trtspec.build.store.locks import Lock
from trtspec.build.store.record import FILES, RECORD, Entry, MadeFor, is_unreadable, read_entry, write_record
from trtspec.engines.publish import FULL, source_folders, temporary_sibling
from trtspec.errors import OutputError

STAGES, LOCKS, HASHES = "stages", "locks", "hashes"
PARTIAL = ".partial"

Report = Callable[[str], None]
# A folder; None: the user's own; "none": nothing is kept.
Cache = str | os.PathLike[str] | Literal["none"] | None


def default_cache() -> Path:
    """Return the user's store: $TRTSPEC_CACHE, else trtspec in $XDG_CACHE_HOME or ~/.cache."""
    if chosen := os.environ.get("TRTSPEC_CACHE"):
        return Path(chosen)
    caches = os.environ.get("XDG_CACHE_HOME")
    return Path(caches or Path("~/.cache").expanduser()) / "trtspec"


@contextmanager
def open_store(cache: Cache, output: Path) -> Iterator[Store]:
    """Yield the store a build shall use; "none" is one beside `output` that goes when the block ends.

    Raises:
        OutputError: the folder cannot be used.
    """
    if cache == "none":
        with temporary_sibling(output) as folder, Store(folder) as store:
            yield store
        return
    with Store(default_cache() if cache is None else Path(cache)) as store:
        yield store


class Store:
    """A store that is open: what it hands out stays there until it is closed.

    Args:
        create: whether a folder that is none yet becomes one.

    Raises:
        OutputError: the folder cannot be used.
    """

    def __init__(self, folder: Path, *, create: bool = True) -> None:
        self.folder = folder.absolute()
        if any(self.folder.resolve().is_relative_to(source) for source in source_folders()):
            raise OutputError(f"{folder}: lies inside trtspec itself; choose another --cache")
        try:
            if create or (self.folder / STAGES).is_dir():
                for name in (STAGES, LOCKS, HASHES):
                    (self.folder / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"{folder}: no place for a store ({error.strerror}); choose another --cache, or --no-cache"
            ) from error
        self.hashes = Hashes(self.folder / HASHES)
        self._locks: list[Lock] = []

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        for lock in self._locks:
            lock.close()

    def entries(self) -> list[Entry]:
        """Return what is finished, by key."""
        return [
            entry for folder in self._stages() if folder.suffix != PARTIAL and (entry := read_entry(folder))
        ]

    def unreadable(self) -> list[Path]:
        """Return the folders of finished stages whose record is damaged."""
        # One that has just been renamed or removed is no folder any more.
        return [f for f in self._stages() if f.suffix != PARTIAL and is_unreadable(f) and f.is_dir()]

    def _stages(self) -> list[Path]:
        folder = self.folder / STAGES
        return sorted(folder.iterdir()) if folder.is_dir() else []

    def partials(self) -> list[Path]:
        """Return the folders of stages that are being made or were killed."""
        return sorted((self.folder / STAGES).glob(f"*{PARTIAL}"))

    def lock(self, key: str) -> Lock:
        """Return the lock of a key, which the caller closes; nobody holds it by that."""
        return Lock(self.folder / LOCKS / key)

    def make(self, stage: Stage, key: str, done: Done, made_for: MadeFor, report: Report) -> Finished:
        """Return a stage as it is found here, else run it; one at a time does, the others wait.

        Raises:
            OutputError: the store cannot be written.
        """
        lock = self.lock(key)
        self._locks.append(lock)
        waits = _waiting(stage, done, report)
        while True:
            lock.share(waits)
            if entry := self._find(stage, key, report):
                report(f"{stage.name}: found in the store")
                return self._used(stage, entry)
            lock.take(waits)
            if self._find(stage, key, report) is None:
                entry = self._run(stage, key, done, made_for)
                lock.share(waits)
                # Between two holds of a lock nobody has it: a gc may have come in between.
                if entry.folder.is_dir():
                    return self._used(stage, entry)

    def drop(self, folder: Path) -> None:
        """Remove a stage; its caller holds the lock alone."""
        # The record last: what is left of a removal that was killed has files missing, and is seen so.
        shutil.rmtree(folder / FILES, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)

    def _find(self, stage: Stage, key: str, report: Report) -> Entry | None:
        entry = read_entry(self.folder / STAGES / key)
        if entry and (name := entry.changed()):
            report(f"{stage.name}: {entry.files / name} is not as it was made; it is made again")
            return None
        return entry

    def _used(self, stage: Stage, entry: Entry) -> Finished:
        with suppress(OSError):  # a store that can only be read serves as well
            entry.touch()
        facts = stage.facts.model_validate(entry.record.facts)
        return Finished(entry.files, facts, entry.record.hashes)

    def _run(self, stage: Stage, key: str, done: Done, made_for: MadeFor) -> Entry:
        entry, partial = self.folder / STAGES / key, self.folder / STAGES / f"{key}{PARTIAL}"
        files = partial / FILES
        try:
            _empty(partial)
            files.mkdir(parents=True, exist_ok=True)
            facts = stage.run(files, done)
            shutil.rmtree(files / RESUME, ignore_errors=True)
            record = write_record(partial, stage.name, made_for, facts.model_dump(mode="json"))
            self.drop(entry)
            partial.rename(entry)
        except OSError as error:
            _empty(partial)
            raise self._cannot(stage, error) from error
        except BaseException:
            _empty(partial)
            raise
        return Entry(entry, record, time.time_ns())

    def _cannot(self, stage: Stage, error: OSError) -> OutputError:
        advice = "free some space or choose another --cache; " if error.errno in FULL else ""
        reason = error.strerror or error
        return OutputError(
            f"{error.filename or self.folder}: {reason} while stage {stage.name} was made in the "
            f"store {self.folder}; {advice}finished stages are kept there"
        )


def _waiting(stage: Stage, done: Done, report: Report) -> Callable[[], None]:
    said = False

    def waits() -> None:
        nonlocal said
        done.go_on()
        if not said:
            report(f"{stage.name}: waiting for another build that makes it")
            said = True

    return waits


def _empty(partial: Path) -> None:
    """Remove what a stage has left, but what it can go on from; and the folder, where nothing is."""
    (partial / RECORD).unlink(missing_ok=True)
    for path in (partial / FILES).glob("*"):
        if path.name == RESUME:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    for folder in (partial / FILES, partial):
        with suppress(OSError):
            folder.rmdir()
