"""Transports without a server, for the tests of applications."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from trtspec.client._metadata import Metadata, TensorSpec
from trtspec.client._options import DATATYPES, Array
from trtspec.client._results import Delta
from trtspec.client._transport import Health, InferRequest, InferResponse

Handler = Callable[[InferRequest], Iterable[Delta | InferResponse]]

# What a client needs to know of a model made by trtspec.
TRTSPEC_MODEL = Metadata(
    server_version="mock",
    model="tensorrt_llm_bls",
    inputs={name: TensorSpec(datatype, (-1, -1)) for name, datatype in DATATYPES.items()},
    outputs={
        "text_output": TensorSpec("BYTES", (-1, -1)),
        "generation_logits": TensorSpec("FP32", (-1, -1, -1, -1)),
        "num_rounds": TensorSpec("INT32", (-1, 1)),
    },
)


class MockTransport:
    """Answers each request with what `handler` yields; raise in it to fail the call.

        client = Client(transport=MockTransport(lambda request: [Delta("Hel"), Delta("lo")]))
        assert client.generate("…").text == "Hello"

    After deltas comes a last response that ends the answer with "stop"; a handler that yields
    InferResponse objects says everything itself.

    Args:
        metadata: the model to be; by default one made by trtspec.
        metrics: what the server's metrics are, in Prometheus' text format.

    Attributes:
        requests: what was asked, in order.
        closed_early: ids of the requests whose stream was closed before its end.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        ready: bool = True,
        metadata: Metadata = TRTSPEC_MODEL,
        metrics: str = "",
    ) -> None:
        self._handler = handler
        self._ready = ready
        self._metadata = metadata
        self._metrics = metrics
        self.requests: list[InferRequest] = []
        self.closed_early: list[str] = []

    def stream(self, request: InferRequest) -> MockResponses:
        self.requests.append(request)
        return MockResponses(_respond(self._handler(request)), lambda: self.closed_early.append(request.id))

    def metadata(self, model: str, timeout_s: float | None) -> Metadata:
        return self._metadata

    def health(self, model: str, timeout_s: float | None) -> Health:
        return Health(live=True, ready=self._ready, model_ready=self._ready)

    def metrics(self, timeout_s: float | None) -> str:
        return self._metrics

    def close(self) -> None:
        """There is nothing to close."""


class AsyncMockTransport:
    """As MockTransport, for AsyncClient; `mock` holds what was asked."""

    def __init__(
        self,
        handler: Handler,
        *,
        ready: bool = True,
        metadata: Metadata = TRTSPEC_MODEL,
        metrics: str = "",
    ) -> None:
        self.mock = MockTransport(handler, ready=ready, metadata=metadata, metrics=metrics)

    @property
    def requests(self) -> list[InferRequest]:
        return self.mock.requests

    @property
    def closed_early(self) -> list[str]:
        return self.mock.closed_early

    def stream(self, request: InferRequest) -> AsyncMockResponses:
        return AsyncMockResponses(self.mock.stream(request))

    async def metadata(self, model: str, timeout_s: float | None) -> Metadata:
        return self.mock.metadata(model, timeout_s)

    async def health(self, model: str, timeout_s: float | None) -> Health:
        return self.mock.health(model, timeout_s)

    async def metrics(self, timeout_s: float | None) -> str:
        return self.mock.metrics(timeout_s)

    async def close(self) -> None:
        """There is nothing to close."""


class MockResponses:
    """The responses of one request."""

    def __init__(self, responses: Iterator[InferResponse], on_early_close: Callable[[], None]) -> None:
        self._responses = responses
        self._on_early_close = on_early_close
        self._over = False
        self._closed = False

    def __iter__(self) -> MockResponses:
        return self

    def __next__(self) -> InferResponse:
        if self._over or self._closed:
            raise StopIteration
        try:
            response = next(self._responses)
        except BaseException:
            self._over = True
            raise
        self._over = response.final
        return response

    def close(self) -> None:
        if not (self._over or self._closed):
            self._closed = True
            self._on_early_close()


class AsyncMockResponses:
    """The responses of one request."""

    def __init__(self, responses: MockResponses) -> None:
        self._responses = responses

    def __aiter__(self) -> AsyncMockResponses:
        return self

    async def __anext__(self) -> InferResponse:
        response = next(self._responses, None)
        if response is None:
            raise StopAsyncIteration
        return response

    def close(self) -> None:
        self._responses.close()


def _respond(items: Iterable[Delta | InferResponse]) -> Iterator[InferResponse]:
    written = 0
    for item in items:
        if isinstance(item, InferResponse):
            yield item
            if item.final:
                return
        else:
            written += len(item.token_ids)
            yield InferResponse(_outputs(item))
    counts = {"num_input_tokens": 0, "num_output_tokens": written}
    last = {name: np.array([[count]], np.int32) for name, count in counts.items()}
    yield InferResponse({**last, "finish_reason": np.array([[b"stop"]], object)}, final=True)


def _outputs(delta: Delta) -> dict[str, Array]:
    outputs: dict[str, Array] = {
        "text_output": np.array([[delta.text.encode()]], object),
        "output_ids": np.array([delta.token_ids], np.int32),
        "output_log_probs": np.array([[delta.log_probs]], np.float32),
    }
    if delta.generation_logits is not None:
        outputs["generation_logits"] = delta.generation_logits[None, None]
    return outputs
