"""What `trtspec verify` is pointed at: a pair, a repository, or a running server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtspec.cli.parts.pair_or_url import served

if TYPE_CHECKING:
    from trtspec.engines.manifest import Manifest
    from trtspec.engines.pair import EnginePair


@dataclass(frozen=True)
class Subject:
    """Something to verify, and what is known of it."""

    what: str
    manifest: Manifest | None
    # Its target as a Hugging Face checkpoint, and the folder of its tokenizer, where it has them.
    checkpoint: tuple[Path, Path] | None = None
    pair: EnginePair | None = None
    repository: Path | None = None

    @contextmanager
    def address(self) -> Iterator[str]:
        """Yield the gRPC address; what does not run is served meanwhile."""
        if self.pair:
            with served(self.pair, "trtspec-verify-") as url:
                yield url
        elif self.repository:
            from trtspec.triton_repo.server import FREE_PORTS, serve

            with serve(self.repository, FREE_PORTS) as server:
                yield server.grpc_url
        else:
            yield self.what


def subject_of(pair_or_url: str, manifest: Path | None) -> Subject:
    """Return what there is at a path, or a running server.

    Args:
        manifest: `trtspec.json` of what a running server serves, or the folder that has it.

    Raises:
        EngineError: the folder is no whole pair, or the manifest none.
        click.UsageError: `manifest` is given for what has its own.
    """
    from trtspec.engines.manifest import MANIFEST
    from trtspec.engines.pair import manifest_at, open_pair, read_manifest
    from trtspec.triton_repo.repository_files import is_repository

    folder = Path(pair_or_url)
    if not folder.exists():
        return Subject(pair_or_url, manifest_at(manifest) if manifest else None)
    if manifest:
        raise click.UsageError(f"--manifest is for a running server; {pair_or_url} has its own")
    if is_repository(folder):
        file = folder / MANIFEST
        return _repository(folder, read_manifest(file) if file.is_file() else None)
    pair = open_pair(folder)
    return Subject(pair_or_url, pair.manifest, (pair.target, pair.tokenizer), pair=pair)


def _repository(folder: Path, manifest: Manifest | None) -> Subject:
    from trtspec.triton_repo.contract import PUBLIC_MODEL, TARGET_MODEL

    holds_checkpoint = manifest is not None and manifest.runtime == "cpu"
    engine, tokenizer = folder / TARGET_MODEL / "1" / "engine", folder / PUBLIC_MODEL / "1" / "tokenizer"
    checkpoint = (engine, tokenizer) if holds_checkpoint else None
    return Subject(str(folder), manifest, checkpoint, repository=folder)
