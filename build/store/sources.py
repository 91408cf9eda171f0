"""The checkpoints of a build, known by their content."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trtspec.build.checkpoint import Checkpoint
from trtspec.build.store.hashes import HashedFile, Hashes
from trtspec.engines.manifest import SourceManifest
from trtspec.errors import CheckpointError

# What decides about a model beside its weights: configuration, tokenizer, chat template.
SETTINGS = ("*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken", "additional_chat_templates/*.jinja")
COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Source:
    """A checkpoint, known by its content."""

    checkpoint: Checkpoint
    files: Mapping[str, HashedFile]  # by path in its folder

    @property
    def hashes(self) -> dict[str, str]:
        """The SHA-256 of each file, by its path in the folder."""
        return {name: file.sha256 for name, file in self.files.items()}

    @property
    def manifest(self) -> SourceManifest:
        """What the manifest of a pair says of it."""
        return SourceManifest(revision=revision_of(self.checkpoint.path), files=self.hashes)

    def check(self) -> None:
        """Raise CheckpointError where a file has changed since it was read."""
        changed = [name for name, file in self.files.items() if file.changed()]
        if changed:
            raise CheckpointError(
                f"{self.checkpoint.path / changed[0]}: changed while the pair was built; build it again when "
                "nobody writes to the checkpoint"
            )


def source_files(checkpoint: Checkpoint) -> Sequence[Path]:
    """Return the files of a checkpoint that a build can depend on, sorted."""
    settings = {file for pattern in SETTINGS for file in checkpoint.path.glob(pattern) if file.is_file()}
    return sorted({*checkpoint.files, *settings})


def read_source(checkpoint: Checkpoint, hashes: Hashes) -> Source:
    """Return a checkpoint known by its content; reads what has changed since it was last read."""
    hashed = hashes.of(source_files(checkpoint))
    return Source(checkpoint, {str(file.path.relative_to(checkpoint.path)): file for file in hashed})


def revision_of(folder: Path) -> str | None:
    """Return the commit on the hub that a folder was fetched from; None where it does not tell.

    The hub's cache names its snapshot folders by the commit; a download into another folder leaves a
    line with it for each file.
    """
    resolved = folder.resolve()
    if resolved.parent.name == "snapshots" and COMMIT.fullmatch(resolved.name):
        return resolved.name
    note = folder / ".cache" / "huggingface" / "download" / "config.json.metadata"
    try:
        commit = note.read_text("utf-8").partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError):
        return None
    return commit if COMMIT.fullmatch(commit) else None
