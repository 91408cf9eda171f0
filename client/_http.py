"""The transport over HTTP: Triton's generate extension, which streams server-sent events.

Triton's own HTTP client cannot stream, and its `infer` refuses models that can.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import numpy as np

from trtspec.client._connections import BROKEN, Exchange, Pool
from trtspec.client._endpoint import GRPC_MESSAGE_BYTES, Endpoint
from trtspec.client._errors import CallFailed, InvalidArgument
from trtspec.client._events import EventParser, read_json, write_json
from trtspec.client._failures import Call
from trtspec.client._metadata import Metadata, TensorSpec
from trtspec.client._questions import MetricsPort, broken, get, http_failure
from trtspec.client._sockets import left_of
from trtspec.client._transport import Health, InferRequest, InferResponse

LOGITS = "return_generation_logits"


class HttpTransport:
    """Speaks HTTP/1.1 to one server: a connection for each answer under way, kept for the next."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._pool = Pool(endpoint)
        self._metrics = MetricsPort(endpoint)

    def stream(self, request: InferRequest) -> HttpResponses:
        if np.any(request.inputs.get(LOGITS, False)):
            raise InvalidArgument(
                f"{LOGITS}: found it with an {self._endpoint.scheme}:// address, expected one of gRPC; "
                "in JSON logits lose their shape and take about five times the bytes"
            )
        body = write_json({"id": request.id, **request.inputs})
        self._endpoint.check_size(len(body))
        return HttpResponses(self._pool, request, body)

    def metadata(self, model: str, timeout_s: float | None) -> Metadata:
        path = f"/v2/models/{quote(model, safe='')}"
        called, left_s = Call(self._endpoint.address, timeout_s=timeout_s), left_of(timeout_s)
        try:
            server, described, config = (
                json.loads(get(self._pool, part, called, left_s)) for part in ("/v2", path, f"{path}/config")
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

    def health(self, model: str, timeout_s: float | None) -> Health:
        called, left_s = Call(self._endpoint.address, timeout_s=timeout_s), left_of(timeout_s)

        def is_ok(path: str) -> bool:
            try:
                get(self._pool, path, called, left_s)
            except CallFailed:
                return False
            return True

        model_path = f"/v2/models/{quote(model, safe='')}/ready"
        return Health(is_ok("/v2/health/live"), is_ok("/v2/health/ready"), is_ok(model_path))

    def metrics(self, timeout_s: float | None) -> str:
        return self._metrics.read(timeout_s)

    def close(self) -> None:
        """Close all connections; answers and questions still under way are cancelled."""
        self._pool.close()
        self._metrics.close()


class HttpResponses:
    """The responses to one request, which goes out when the first is asked for."""

    def __init__(self, pool: Pool, request: InferRequest, body: bytes) -> None:
        self._called = Call(pool.endpoint.address, request.id, request.timeout_s)
        self._limit = pool.endpoint.max_message_bytes or GRPC_MESSAGE_BYTES
        self._path = f"/v2/models/{quote(request.model, safe='')}/generate_stream"
        self._body = body
        self._pool = pool
        self._exchange = Exchange(pool, left_of(request.left_s))
        self._begun = False
        self._closed = False
        self._responses = self._read()

    def __iter__(self) -> HttpResponses:
        return self

    def __next__(self) -> InferResponse:
        try:
            return next(self._responses)
        except CallFailed:
            if self._closed:
                raise StopIteration from None
            raise

    def close(self) -> None:
        self._closed = True
        self._exchange.close()

    def _read(self) -> Iterator[InferResponse]:
        try:
            status = self._exchange.send("POST", self._path, self._body).status
            if status != http.client.OK:
                raise http_failure(self._called, status, self._exchange.read_refusal())
            for outputs in self._outputs():
                self._begun = True
                yield InferResponse(outputs)
            yield InferResponse({}, final=True)
        except BROKEN as error:
            raise broken(self._called, error, begun=self._begun, closed=self._pool.closed) from None
        except ValueError as error:
            raise self._called.nonsense(f"no event of a stream ({error})") from None
        finally:
            self._exchange.close()

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
