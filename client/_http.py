"""The transport over HTTP: Triton's generate extension, which streams server-sent events.

Triton's own HTTP client cannot stream, and its `infer` refuses models that can.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import numpy as np

from trtspec.client._connections import BROKEN, Exchange, Pool, left_of
from trtspec.client._endpoint import GRPC_MESSAGE_BYTES, Endpoint
from trtspec.client._errors import CallFailed, InvalidArgument
from trtspec.client._events import EventParser, read_json, write_json
from trtspec.client._failures import Call
from trtspec.client._metadata import Metadata, TensorSpec
from trtspec.client._questions import Questions, broken, get, get_metrics, http_failure
from trtspec.client._transport import Health, InferRequest, InferResponse

LOGITS = "return_generation_logits"


class HttpTransport:
    """Speaks HTTP/1.1 to one server: a connection for each answer under way, kept for the next."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._pool = Pool(endpoint)
        self._under_way: set[HttpResponses] = set()
        self._questions = Questions()

    def stream(self, request: InferRequest) -> HttpResponses:
        if np.any(request.inputs.get(LOGITS, False)):
            raise InvalidArgument(
                f"{LOGITS}: found it with an {self._endpoint.scheme}:// address, expected one of gRPC; "
                "in JSON logits lose their shape and take about five times the bytes"
            )
        body = write_json({"id": request.id, **request.inputs})
        self._endpoint.check_size(len(body))
        responses = HttpResponses(self._pool, request, body, self._under_way.discard)
        self._under_way.add(responses)
        return responses

    def metadata(self, model: str, timeout_s: float | None) -> Metadata:
        path = f"/v2/models/{quote(model, safe='')}"
        called = Call(self._endpoint.address, timeout_s=timeout_s)
        try:
            server, described, config = (
                json.loads(get(self._endpoint, part, called, self._questions))
                for part in ("/v2", path, f"{path}/config")
            )
            return Metadata(
                server_version=server["version"],
                model=described["name"],
                inputs=_specs(described["inputs"]),
                outputs=_specs(described["outputs"]),
                decoupled=config.get("model_transaction_policy", {}).get("decoupled", False),
                parameters={name: v["string_value"] for name, v in config.get("parameters", {}).items()},
            )
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise called.nonsense(f"a description of {model} that is none ({error!r:.80})") from None

    def health(self, model: str, timeout_s: float) -> Health:
        called = Call(self._endpoint.address, timeout_s=timeout_s)
        paths = ("/v2/health/live", "/v2/health/ready", f"/v2/models/{quote(model, safe='')}/ready")
        live, ready, model_ready = (self._is_ok(path, called) for path in paths)
        return Health(live, ready, model_ready)

    def metrics(self, timeout_s: float) -> str:
        return get_metrics(self._endpoint, timeout_s)

    def _is_ok(self, path: str, called: Call) -> bool:
        try:
            get(self._endpoint, path, called, self._questions)
        except CallFailed:
            return False
        return True

    def close(self) -> None:
        """Close all connections; answers and questions still under way are cancelled."""
        self._questions.close()
        for responses in list(self._under_way):
            responses.abandon()
        self._pool.close()


class HttpResponses:
    """The responses to one request, which goes out when the first is asked for."""

    def __init__(
        self, pool: Pool, request: InferRequest, body: bytes, on_end: Callable[[HttpResponses], object]
    ) -> None:
        self._called = Call(pool.endpoint.address, request.id, request.timeout_s)
        self._limit = pool.endpoint.max_message_bytes or GRPC_MESSAGE_BYTES
        self._path = f"/v2/models/{quote(request.model, safe='')}/generate_stream"
        self._body = body
        self._exchange = Exchange(pool, left_of(request.left_s))
        self._on_end = on_end
        self._begun = False
        self._closed = False
        self._abandoned = False
        self._responses = self._read()

    def __iter__(self) -> HttpResponses:
        return self

    def __next__(self) -> InferResponse:
        try:
            response = next(self._responses, None)
        except CallFailed:
            if self._closed:
                raise StopIteration from None
            if not self._abandoned:
                raise
            response = None
        if response is not None:
            return response
        if self._abandoned and not self._closed:
            raise self._called.failure("CANCELLED", "the client was closed", begun=self._begun)
        raise StopIteration

    def close(self) -> None:
        self._closed = True
        self._end()

    def abandon(self) -> None:
        """Close because the client is closed: whoever waits for more is told."""
        self._abandoned = True
        self._end()

    def _end(self) -> None:
        self._exchange.close()
        self._on_end(self)

    def _read(self) -> Iterator[InferResponse]:
        try:
            status = self._exchange.send("POST", self._path, self._body).status
            if status != http.client.OK:
                raise http_failure(self._called, status, self._exchange.read_refusal())
            for outputs in self._outputs():
                self._begun = True
                yield InferResponse(outputs)
            self._end()  # nobody has to ask for what comes after the last
            yield InferResponse({}, final=True)
        except BROKEN as error:
            raise broken(self._called, error, begun=self._begun) from None
        except ValueError as error:
            raise self._called.nonsense(f"no event of a stream ({error})") from None
        finally:
            self._end()

    def _outputs(self) -> Iterator[dict[str, Any]]:
        parser = EventParser()
        for piece in self._exchange.pieces():
            for data in parser.feed(piece):
                outputs, error = read_json(data)
                if error:
                    raise self._called.failure("", error, begun=self._begun)
                yield outputs
            if parser.size_bytes > self._limit:
                raise self._called.too_large()
        if parser.size_bytes:
            raise ValueError("the body ends inside of one")


def _specs(tensors: Any) -> dict[str, TensorSpec]:
    return {t["name"]: TensorSpec(t["datatype"], tuple(map(int, t["shape"]))) for t in tensors}
