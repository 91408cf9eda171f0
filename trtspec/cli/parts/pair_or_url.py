"""What commands are pointed at: an engine pair, which is served for them, or a running server."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trtspec.engines.pair import EnginePair


def pair_at(pair_or_url: str) -> EnginePair | None:
    """Return the pair in a folder; None where there is no such folder, so that it must be a URL."""
    folder = Path(pair_or_url)
    if not folder.exists():
        return None
    from trtspec.engines.pair import open_pair

    return open_pair(folder)


@contextmanager
def served(pair: EnginePair, prefix: str) -> Iterator[str]:
    """Serve a pair from a temporary repository on free ports; yields the gRPC address.

    Args:
        prefix: of the temporary folder's name.
    """
    from trtspec.triton_repo.repository import write_repository
    from trtspec.triton_repo.server import FREE_PORTS, serve

    with tempfile.TemporaryDirectory(prefix=prefix) as folder:
        repository = write_repository(pair, Path(folder) / "repository")
        with serve(repository, FREE_PORTS) as server:
            yield server.grpc_url
