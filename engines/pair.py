"""An engine pair on disk, as a value.

pair/
  trtspec.json      the manifest, written last: a folder with a manifest is whole
  target/  draft/   engine folders of the runtime
  tokenizer/        tokenizer.json, and the files a client of Hugging Face needs beside it
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from trtspec.digest import sha256
from trtspec.engines.manifest import MANIFEST, Manifest
from trtspec.errors import EngineError


@dataclass(frozen=True)
class EnginePair:
    """A whole pair: its folder and its manifest."""

    path: Path
    manifest: Manifest

    @property
    def target(self) -> Path:
        return self.path / "target"

    @property
    def draft(self) -> Path:
        return self.path / "draft"

    @property
    def tokenizer(self) -> Path:
        return self.path / "tokenizer"

    def files(self) -> dict[str, str]:
        """Return the SHA-256 of every file of the manifest, by its path in the pair."""
        engines = (("target", self.manifest.target), ("draft", self.manifest.draft))
        hashes = {
            f"{name}/{file}": digest
            for name, engine in engines
            if engine is not None
            for file, digest in engine.files.items()
        }
        return hashes | self.manifest.files


def open_pair(path: str | os.PathLike[str]) -> EnginePair:
    """Return the pair in a folder; EngineError when it is none or not whole."""
    path = Path(path)
    if not path.is_dir():
        raise EngineError(f"{path}: no such folder; expected an engine pair, made by `trtspec build`")
    file = path / MANIFEST
    if not file.is_file():
        raise EngineError(f"{path}: no {MANIFEST}, so this is no engine pair; make one with `trtspec build`")
    if any(path.glob("*/config.pbtxt")):
        # Which has the manifest of its pair as well.
        raise EngineError(
            f"{path}: this is a Triton repository, expected an engine pair; give the pair that it was "
            "written from, or serve it and give its address"
        )
    pair = EnginePair(path, read_manifest(file))
    missing = [file for file in pair.files() if not (path / file).is_file()]
    if missing:
        raise EngineError(
            f"{path}: {len(missing)} files of the manifest are missing, first {missing[0]}; "
            "build the pair again"
        )
    return pair


def read_manifest(file: Path) -> Manifest:
    """Return the manifest in a file; EngineError when it holds none."""
    try:
        return Manifest.model_validate(json.loads(file.read_text("utf-8")))
    except OSError as error:
        raise EngineError(
            f"{file}: cannot be read: {error.strerror}, expected the manifest of a pair or a repository"
        ) from error
    except (ValueError, ValidationError, RecursionError) as error:
        raise EngineError(f"{file}: {_reason(error)}; build the pair again") from error


def manifest_at(path: Path) -> Manifest:
    """Return the manifest in a file, or in the folder of a pair or a repository; EngineError for none."""
    return read_manifest(path / MANIFEST if path.is_dir() else path)


def check_contents(pair: EnginePair) -> None:
    """Raise EngineError where a file of the pair is not the one that was built. Reads all of them."""
    changed = [file for file, digest in pair.files().items() if sha256(pair.path / file) != digest]
    if changed:
        raise EngineError(
            f"{pair.path}: {len(changed)} files are not as they were built, first {changed[0]}; "
            "build the pair again"
        )


def _reason(error: ValueError | RecursionError) -> str:
    if not isinstance(error, ValidationError):
        return f"not JSON ({error})"
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    count = error.error_count()
    entries = "1 entry is" if count == 1 else f"{count} entries are"
    return f"{entries} not as expected, first {where}: {first['msg']}"


def write_manifest(manifest: Manifest, path: Path) -> None:
    """Write the manifest of the pair in a folder."""
    text = json.dumps(manifest.model_dump(mode="json"), indent=2, sort_keys=True)
    (path / MANIFEST).write_text(text + "\n", "utf-8")
