"""The client."""

from __future__ import annotations

import uuid
from types import TracebackType
from typing import TYPE_CHECKING

from trtspec.client._grpc import GrpcTransport
from trtspec.client._options import Options, Prompt, tensors
from trtspec.client._results import Generation
from trtspec.client._stream import Stream
from trtspec.client._transport import Health, InferRequest, Transport

if TYPE_CHECKING:
    from typing_extensions import Unpack

MODEL = "tensorrt_llm_bls"
HEALTH_TIMEOUT_S = 5.0


class Client:
    """Asks one server; many threads may share it.

    A context manager: leaving it closes the connection and cancels what is still under way.

    Args:
        url: host:port or grpc://host:port, of Triton's gRPC port.
        timeout_s: for a whole answer, unless a call says otherwise; None: no limit. The server stops
            working on an answer whose time is up.
        transport: what carries the requests, in place of a connection to `url`.
    """

    def __init__(
        self,
        url: str = "localhost:8001",
        *,
        timeout_s: float | None = 300.0,
        transport: Transport | None = None,
    ) -> None:
        self._transport: Transport = transport or GrpcTransport(url)
        self._timeout_s = timeout_s

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def generate(
        self, prompt: Prompt, *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> Generation:
        """Return the whole answer to a prompt, given as text or as token ids.

        Raises:
            InvalidArgument: for what cannot be sent.
            CallFailed: when no whole answer came; its subclasses say why.
        """
        with self._ask(prompt, options, timeout_s, stream=False) as stream:
            return stream.result

    def stream(self, prompt: Prompt, *, timeout_s: float | None = None, **options: Unpack[Options]) -> Stream:
        """Return the answer as a stream of deltas; errors as for `generate`, while iterating."""
        return self._ask(prompt, options, timeout_s, stream=True)

    def health(self) -> Health:
        """Return what the server says of itself and of the model; all False when none answers."""
        return self._transport.health(MODEL, HEALTH_TIMEOUT_S)

    def is_ready(self) -> bool:
        """Whether server and model say that they are ready."""
        health = self.health()
        return health.ready and health.model_ready

    def close(self) -> None:
        """Close the connection; answers still under way are cancelled."""
        self._transport.close()

    def _ask(self, prompt: Prompt, options: Options, timeout_s: float | None, *, stream: bool) -> Stream:
        request = InferRequest(
            MODEL,
            uuid.uuid4().hex,
            tensors(prompt, options, stream=stream),
            self._timeout_s if timeout_s is None else timeout_s,
        )
        return Stream(request.id, self._transport.stream(request))
