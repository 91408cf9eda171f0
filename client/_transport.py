"""The one seam to the network: a request out, an iterator of responses in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray


@dataclass(frozen=True)
class InferRequest:
    """Tensors for a model. BYTES tensors are object arrays of bytes."""

    model: str
    id: str
    inputs: Mapping[str, NDArray[Any]]
    # For the whole answer; None: no limit.
    timeout_s: float | None = None


@dataclass(frozen=True)
class InferResponse:
    """Tensors from a model; `final` on the last response, which may have none."""

    outputs: Mapping[str, NDArray[Any]]
    final: bool = False


@dataclass(frozen=True)
class Health:
    """What a server says of itself; all False when none answers."""

    live: bool = False
    ready: bool = False
    model_ready: bool = False


class Responses(Protocol):
    """An iterator of responses that can be closed, also from another thread.

    `__next__` raises a CallFailed when there is no next response for another reason than the end.
    """

    def __iter__(self) -> Responses: ...

    def __next__(self) -> InferResponse: ...

    def close(self) -> None:
        """Cancel what the server is still doing. Returns at once; does nothing after the end."""


class Transport(Protocol):
    """Carries requests to a server; safe to use from many threads."""

    def stream(self, request: InferRequest) -> Responses: ...

    def health(self, model: str, timeout_s: float) -> Health: ...

    def close(self) -> None: ...
