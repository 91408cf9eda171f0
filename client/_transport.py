"""The seam to the network: a request out, an iterator of responses in. Once plain, once async."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from trtspec.client._metadata import Metadata


@dataclass(frozen=True)
class InferRequest:
    """Tensors for a model. BYTES tensors are object arrays of bytes."""

    model: str
    id: str
    inputs: Mapping[str, NDArray[Any]]
    # For the whole answer, as the caller allowed it; None: no limit.
    timeout_s: float | None = None
    # What is left of it for this attempt.
    left_s: float | None = None


@dataclass(frozen=True)
class InferResponse:
    """Tensors from a model; `final` on the last response, which may have none."""

    outputs: Mapping[str, NDArray[Any]]
    final: bool = False


@dataclass(frozen=True)
class Health:
    """How a server is.

    Triton goes on to call itself ready when the process of a model has died; only an answer proves
    that answers come.
    """

    # What the server says of itself; all False when none answers.
    live: bool = False
    ready: bool = False
    model_ready: bool = False
    # Whether a request for one token came back in time; None: not asked.
    canary: bool | None = None
    # What became of the canary, when it did not come back.
    detail: str = ""

    @property
    def healthy(self) -> bool:
        """Whether nothing speaks against sending requests."""
        return self.live and self.ready and self.model_ready and self.canary is not False


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

    def metadata(self, model: str, timeout_s: float | None) -> Metadata:
        """Return what the server says of a model; RequestRefused when it has none of that name."""
        ...

    def health(self, model: str, timeout_s: float | None) -> Health:
        """Return what the server says of itself; an unanswered question counts as no."""
        ...

    def metrics(self, timeout_s: float | None) -> str:
        """Return the server's metrics in Prometheus' text format."""
        ...

    def close(self) -> None:
        """Close all connections; answers still under way are cancelled."""


class AsyncResponses(Protocol):
    """As Responses."""

    def __aiter__(self) -> AsyncResponses: ...

    async def __anext__(self) -> InferResponse: ...

    def close(self) -> None:
        """Cancel what the server is still doing. Returns at once; does nothing after the end."""


class AsyncTransport(Protocol):
    """As Transport; for the tasks of one event loop."""

    def stream(self, request: InferRequest) -> AsyncResponses: ...

    async def metadata(self, model: str, timeout_s: float | None) -> Metadata: ...

    async def health(self, model: str, timeout_s: float | None) -> Health: ...

    async def metrics(self, timeout_s: float | None) -> str: ...

    async def close(self) -> None: ...
