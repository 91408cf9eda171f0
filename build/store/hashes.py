"""SHA-256 of files, remembered: a file that has not changed since it was read is not read again."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trtspec.digest import sha256
from trtspec.errors import CheckpointError

MAX_WORKERS = 4
# A file that was written a moment ago may be written again without its time showing it.
SETTLED_NS = 1_000_000_000

Mark = tuple[int, int, int]  # size, mtime in ns, inode


@dataclass(frozen=True)
class HashedFile:
    """A file as it was when it was read."""

    path: Path
    sha256: str
    mark: Mark

    def changed(self) -> bool:
        """Whether it is another file by now, or gone."""
        try:
            return mark_of(self.path) != self.mark
        except OSError:
            return True


def mark_of(file: Path) -> Mark:
    """Return what tells one state of a file from another without reading it."""
    found = file.stat()
    return found.st_size, found.st_mtime_ns, found.st_ino


class Hashes:
    """Remembers in a folder of its own: one small file for each folder that was looked at."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of(self, files: Iterable[Path]) -> list[HashedFile]:
        """Return the files with their hashes; those not known are read, several at a time.

        Raises:
            CheckpointError: a file cannot be read, or changed while it was.
        """
        paths = list(files)
        known = {folder: self._recall(folder) for folder in {path.parent for path in paths}}
        with ThreadPoolExecutor(min(MAX_WORKERS, os.cpu_count() or 1)) as pool:
            hashed = list(pool.map(lambda path: _hashed(path, known[path.parent].get(path.name)), paths))
        self.remember(hashed)
        return hashed

    def unread_bytes(self, files: Iterable[Path]) -> int:
        """Return how many bytes `of` would read."""
        unknown = 0
        for path in files:
            with suppress(OSError):  # `of` says what is wrong with it
                mark = mark_of(path)
                noted = self._recall(path.parent).get(path.name)
                unknown += 0 if noted and noted.mark == mark else mark[0]
        return unknown

    def remember(self, hashed: Iterable[HashedFile]) -> None:
        """Keep what is known of files; one written this very moment is left out."""
        now = time.time_ns()
        by_folder: dict[Path, dict[str, HashedFile]] = {}
        for file in hashed:
            if now - file.mark[1] > SETTLED_NS:
                by_folder.setdefault(file.path.parent, {})[file.path.name] = file
        for folder, files in by_folder.items():
            known = self._recall(folder)
            if any(known.get(name) != file for name, file in files.items()):
                self._note(folder, {**known, **files})

    def _recall(self, folder: Path) -> dict[str, HashedFile]:
        try:
            noted = json.loads(self._notes(folder).read_bytes())
            return {
                name: HashedFile(folder / name, digest, (size, mtime_ns, inode))
                for name, (size, mtime_ns, inode, digest) in noted["files"].items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return {}  # read anew

    def _note(self, folder: Path, files: Mapping[str, HashedFile]) -> None:
        notes = self._notes(folder)
        notes.parent.mkdir(parents=True, exist_ok=True)
        rows = {name: [*file.mark, file.sha256] for name, file in files.items()}
        partial = notes.with_suffix(f".{os.getpid()}.partial")
        try:
            partial.write_text(json.dumps({"folder": str(folder.resolve()), "files": rows}), "utf-8")
            partial.replace(notes)
        finally:
            partial.unlink(missing_ok=True)

    def _notes(self, folder: Path) -> Path:
        return self._folder / f"{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:32]}.json"


def _hashed(path: Path, noted: HashedFile | None) -> HashedFile:
    try:
        mark = mark_of(path)
        if noted and noted.mark == mark:
            return HashedFile(path, noted.sha256, mark)
        found = HashedFile(path, sha256(path), mark)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    if found.changed():
        raise CheckpointError(f"{path}: changed while it was read; start again when nobody writes to it")
    return found
