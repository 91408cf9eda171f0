"""A finished stage in the store, as a folder: its files, and what is known of them."""

from __future__ import annotations

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trtspec.build.json_file import write_json
from trtspec.digest import sha256
from trtspec.engines.manifest import Strict

RECORD = "stage.json"
FILES = "files"
READ_ONLY = 0o444
MAX_WORKERS = 4


class FileRecord(Strict):
    """A file as it was when its stage was done."""

    sha256: str
    size_bytes: int
    mtime_ns: int


class MadeFor(Strict):
    """The build that made a stage: what to run again where it is damaged."""

    target: str
    draft: str | None
    runtime: str
    output: str

    def __str__(self) -> str:
        sources = " ".join(path for path in (self.target, self.draft) if path)
        return f"trtspec build {sources} --runtime {self.runtime} --output {self.output}"


class Record(Strict):
    """`stage.json`, written last: a folder that has it is whole."""

    stage: str
    made_for: MadeFor
    facts: dict[str, Any]
    facts_sha256: str | None = None  # None: of an older trtspec
    files: dict[str, FileRecord]

    @property
    def size_bytes(self) -> int:
        """What the files take."""
        return sum(file.size_bytes for file in self.files.values())

    @property
    def hashes(self) -> dict[str, str]:
        """The SHA-256 of each file, by its path."""
        return {name: file.sha256 for name, file in self.files.items()}


@dataclass(frozen=True)
class Entry:
    """A folder of the store with a finished stage."""

    folder: Path
    record: Record
    used_ns: int  # when a build last used it, in ns since 1970

    @property
    def files(self) -> Path:
        return self.folder / FILES

    def touch(self) -> None:
        """Note that it is used now."""
        os.utime(self.folder / RECORD)

    def changed(self) -> str | None:
        """Return the first file that somebody has written to or removed, by size and time."""
        for name, known in self.record.files.items():
            try:
                found = (self.files / name).stat()
            except OSError:
                return name
            if (found.st_size, found.st_mtime_ns) != (known.size_bytes, known.mtime_ns):
                return name
        return None

    def damaged(self) -> list[str]:
        """Return the files that are not what was built. Reads all of them."""

        def is_damaged(name: str) -> bool:
            try:
                return sha256(self.files / name) != self.record.files[name].sha256
            except OSError:
                return True

        with ThreadPoolExecutor(MAX_WORKERS) as pool:
            names = list(self.record.files)
            return [name for name, bad in zip(names, pool.map(is_damaged, names), strict=True) if bad]


def read_entry(folder: Path) -> Entry | None:
    """Return the finished stage in a folder; None where there is none, or its record is damaged."""
    try:
        with (folder / RECORD).open("rb") as file:
            used_ns = os.fstat(file.fileno()).st_mtime_ns
            record = Record.model_validate_json(file.read())
    except (OSError, ValidationError):
        return None
    return Entry(folder, record, used_ns) if record.facts_sha256 in (None, _sha256_of(record.facts)) else None


def is_unreadable(folder: Path) -> bool:
    """Whether a finished stage's record is damaged; one of another version is not, and is left alone."""
    try:
        content = json.loads((folder / RECORD).read_bytes())
    except (OSError, ValueError):
        return True
    if not isinstance(content, dict):
        return True
    return content.get("facts_sha256") not in (None, _sha256_of(content.get("facts")))


def write_record(folder: Path, stage: str, made_for: MadeFor, facts: dict[str, Any]) -> Record:
    """Make a stage's files read-only and write down what they are; returns that."""
    root = folder / FILES
    paths = sorted(path for path in root.rglob("*") if path.is_file())
    with ThreadPoolExecutor(MAX_WORKERS) as pool:
        records = list(pool.map(_seal, paths))
    files = {str(path.relative_to(root)): record for path, record in zip(paths, records, strict=True)}
    record = Record(stage=stage, made_for=made_for, facts=facts, facts_sha256=_sha256_of(facts), files=files)
    write_json(folder / RECORD, record.model_dump(mode="json"))
    return record


def _sha256_of(facts: object) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _seal(file: Path) -> FileRecord:
    file.chmod(READ_ONLY)
    found = file.stat()
    return FileRecord(sha256=sha256(file), size_bytes=found.st_size, mtime_ns=found.st_mtime_ns)
