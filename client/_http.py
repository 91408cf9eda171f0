"""The transport over HTTP: Triton's generate extension, which streams server-sent events.

Triton's own HTTP client cannot stream, and its `infer` refuses models that can.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Generator, Iterator
from typing import Any
from urllib.parse import quote

import numpy as np

from trtspec.client._connections import BROKEN, Pool, broken, get, get_metrics, http_failure
from trtspec.client._endpoint import GRPC_MESSAGE_BYTES, Endpoint
from trtspec.client._errors import CallFailed, InvalidArgument
from trtspec.client._events import EventParser, read_json, write_json
from trtspec.client._failures import Call
from trtspec.client._metadata import Metadata, TensorSpec
from trtspec.client._transport import Health, InferRequest, InferResponse

PIECE_BYTES = 64 << 10
ERROR_BYTES = 64 << 10
LOGITS = "return_generation_logits"


class HttpTransport:
    """Speaks HTTP/1.1 to one server: a connection for each answer under way, kept for the next."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._pool = Pool(endpoint)
        self._under_way: set[HttpResponses] = set()

    def stream(self, request: InferRequest) -> HttpResponses:
        if np.any(request.inputs.get(LOGITS, False)):
            raise InvalidArgument(
                f"{LOGITS}: found it with an {self._endpoint.scheme}:// address, expected one of gRPC; "
                "in JSON logits lose their shape and take about five times the bytes"
            )
        body = write_json({"id": request.id, **request.inputs})
        self._endpoint.check_size(len(body))
        responses = HttpResponses(self._endpoint, self._pool, request, body, self._under_way.discard)
        self._under_way.add(responses)
        return responses

    def metadata(self, model: str, timeout_s: float | None) -> Metadata:
        path = f"/v2/models/{quote(model, safe='')}"
        called = Call(self._endpoint.address, timeout_s=timeout_s)
        try:
            server, described, config = (
                json.loads(get(self._endpoint, part, called)) for part in ("/v2", path, f"{path}/config")
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
            get(self._endpoint, path, called)
        except CallFailed:
            return False
        return True

    def close(self) -> None:
        """Close all connections; answers still under way are cancelled."""
        for responses in list(self._under_way):
            responses.abandon()
        self._pool.close()


class HttpResponses:
    """The responses to one request, which goes out when the first is asked for."""

    def __init__(
        self, endpoint: Endpoint, pool: Pool, request: InferRequest, body: bytes, on_end: Any
    ) -> None:
        self._called = Call(endpoint.address, request.id, request.timeout_s)
        self._deadline = None if request.left_s is None else time.monotonic() + request.left_s
        self._limit = endpoint.max_message_bytes or GRPC_MESSAGE_BYTES
        self._path = f"/v2/models/{quote(request.model, safe='')}/generate_stream"
        self._headers = {**endpoint.headers, "content-type": "application/json"}
        self._body = body
        self._pool = pool
        self._on_end = on_end
        self._begun = False
        self._closed = False
        self._abandoned = False
        self._socket: socket.socket | None = None
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
        self._cut()
        with contextlib.suppress(ValueError):  # a thread is in it, and comes out because of the cut
            self._responses.close()
        self._on_end(self)

    def _cut(self) -> None:
        """Break the connection, at which Triton ends its work; wakes the thread that reads from it."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                # Not SSLSocket's own, which takes the layer away from under the thread that reads.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def _read(self) -> Generator[InferResponse, None, None]:
        connection = response = None
        try:
            if self._closed or self._abandoned:
                return
            connection, response = self._send()
            if response.status != http.client.OK:
                raise self._refused(response)
            for outputs in self._outputs(response):
                self._begun = True
                yield InferResponse(outputs)
            self._socket = None
            if not response.will_close:
                self._pool.give(connection)
                connection = None
            yield InferResponse({}, final=True)
        except TimeoutError:
            raise self._called.failure("DEADLINE_EXCEEDED", "", begun=self._begun) from None
        except BROKEN as error:
            raise broken(self._called, error, begun=self._begun) from None
        except ValueError as error:
            raise self._called.nonsense(f"no event of a stream ({error})") from None
        finally:
            self._socket = None
            self._on_end(self)
            if connection is not None:
                connection.close()
                if response is not None:  # which a connection that is not to be kept has let go of
                    response.close()

    def _send(self) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """Return a connection and the head of the response on it."""
        if (connection := self._pool.take()) is not None:
            try:
                return connection, self._exchange(connection)
            except BaseException as error:
                connection.close()
                # Else the server had closed it while it was idle: a new one may do.
                if isinstance(error, TimeoutError) or not isinstance(error, BROKEN):
                    raise
        connection = self._pool.new()
        try:
            return connection, self._exchange(connection)
        except BaseException:
            connection.close()
            raise

    def _exchange(self, connection: http.client.HTTPConnection) -> http.client.HTTPResponse:
        connection.timeout = self._left_s()
        if connection.sock is None:
            connection.connect()
        self._socket = connection.sock
        self._wait_no_longer_than_left()
        connection.request("POST", self._path, self._body, self._headers)
        if self._closed or self._abandoned:
            self._cut()
        self._wait_no_longer_than_left()
        return connection.getresponse()

    def _outputs(self, response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
        parser = EventParser()
        while True:
            self._wait_no_longer_than_left()
            piece = response.read1(PIECE_BYTES)
            if not piece:
                break
            for data in parser.feed(piece):
                outputs, error = read_json(data)
                if error:
                    raise self._called.failure("", error, begun=self._begun)
                yield outputs
            if parser.size_bytes > self._limit:
                raise self._called.too_large()
        if parser.size_bytes:
            raise ValueError("the body ends inside of one")

    def _refused(self, response: http.client.HTTPResponse) -> CallFailed:
        self._wait_no_longer_than_left()
        return http_failure(self._called, response.status, response.read(ERROR_BYTES))

    def _left_s(self) -> float | None:
        if self._deadline is None:
            return None
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return left_s

    def _wait_no_longer_than_left(self) -> None:
        if self._socket is not None:
            self._socket.settimeout(self._left_s())


def _specs(tensors: Any) -> dict[str, TensorSpec]:
    return {t["name"]: TensorSpec(t["datatype"], tuple(map(int, t["shape"]))) for t in tensors}
