"""An engine pair in, a Triton model repository out; and the server that serves it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtspec.lazy import lazily

if TYPE_CHECKING:
    from trtspec.triton_repo.repository import RepositoryOptions as RepositoryOptions
    from trtspec.triton_repo.repository import write_repository as write_repository
    from trtspec.triton_repo.server import ServeOptions as ServeOptions
    from trtspec.triton_repo.server import serve as serve

__getattr__ = lazily(
    __name__,
    {
        "RepositoryOptions": "trtspec.triton_repo.repository",
        "ServeOptions": "trtspec.triton_repo.server",
        "serve": "trtspec.triton_repo.server",
        "write_repository": "trtspec.triton_repo.repository",
    },
)
