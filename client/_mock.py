"""A transport without a server, for the tests of applications."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from trtspec.client._results import Delta
from trtspec.client._transport import Health, InferRequest, InferResponse

Handler = Callable[[InferRequest], Iterable[Delta | InferResponse]]


class MockTransport:
    """Answers each request with what `handler` yields; raise in it to fail the call.

        client = Client(transport=MockTransport(lambda request: [Delta("Hel"), Delta("lo")]))
        assert client.generate("…").text == "Hello"

    After deltas comes a last response that ends the answer with "stop"; a handler that yields
    InferResponse objects says everything itself.

    Attributes:
        requests: what was asked, in order.
        closed_early: ids of the requests whose stream was closed before its end.
    """

    def __init__(self, handler: Handler, *, ready: bool = True) -> None:
        self._handler = handler
        self._ready = ready
        self.requests: list[InferRequest] = []
        self.closed_early: list[str] = []

    def stream(self, request: InferRequest) -> _MockResponses:
        self.requests.append(request)
        return _MockResponses(_respond(self._handler(request)), lambda: self.closed_early.append(request.id))

    def health(self, model: str, timeout_s: float) -> Health:
        return Health(live=True, ready=self._ready, model_ready=self._ready)

    def close(self) -> None:
        """There is nothing to close."""


class _MockResponses:
    def __init__(self, responses: Iterator[InferResponse], on_early_close: Callable[[], None]) -> None:
        self._responses = responses
        self._on_early_close = on_early_close
        self._over = False
        self._closed = False

    def __iter__(self) -> _MockResponses:
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


def _outputs(delta: Delta) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    return {
        "text_output": np.array([[delta.text.encode()]], object),
        "output_ids": np.array([delta.token_ids], np.int32),
        "output_log_probs": np.array([[delta.log_probs]], np.float32),
    }
