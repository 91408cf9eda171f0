"""Connections to an HTTP server: kept while they are idle, and single questions."""

from __future__ import annotations

import contextlib
import http.client
import threading
from typing import Any

from trtspec.client._endpoint import GRPC_MESSAGE_BYTES, Endpoint
from trtspec.client._errors import CallFailed, ConnectionFailed
from trtspec.client._events import error_of
from trtspec.client._failures import STATUS_OF_HTTP, Call

IDLE_CONNECTIONS = 16

BROKEN = (OSError, http.client.HTTPException)


def broken(called: Call, error: Exception, *, begun: bool = False) -> CallFailed:
    """Return the error for a connection that is one of BROKEN."""
    no_http = isinstance(error, http.client.BadStatusLine) and not isinstance(error, ConnectionError)
    if no_http:
        return called.nonsense("an answer that is not HTTP (is that the port for gRPC?)")
    return called.failure("UNAVAILABLE", str(error) or type(error).__name__, begun=begun)


class Pool:
    """Connections that are idle."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._context = endpoint.tls.context() if endpoint.is_encrypted else None
        self._idle: list[http.client.HTTPConnection] = []
        self._closed = False
        self._lock = threading.Lock()

    def take(self) -> http.client.HTTPConnection | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def give(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < IDLE_CONNECTIONS:
                self._idle.append(connection)
                return
        connection.close()

    def new(self) -> http.client.HTTPConnection:
        return _connection(self._endpoint, self._context)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


def get_metrics(endpoint: Endpoint, timeout_s: float) -> str:
    """Return the text at an endpoint's metrics port."""
    metrics = endpoint.for_metrics()
    called = Call(f"{metrics.url}/metrics", timeout_s=timeout_s)
    try:
        body = get(metrics, "/metrics", called)
    except ConnectionFailed as error:
        if endpoint.metrics_url:
            raise
        words = f"{error.server_message}; if the metrics are on another port, pass metrics_url"
        raise called.failure("UNAVAILABLE", words) from None
    return body.decode(errors="replace")


def get(endpoint: Endpoint, path: str, called: Call) -> bytes:
    context = endpoint.tls.context() if endpoint.is_encrypted else None
    connection = _connection(endpoint, context)
    connection.timeout = called.timeout_s
    try:
        with contextlib.closing(connection):
            connection.request("GET", path, headers=dict(endpoint.headers))
            response = connection.getresponse()
            body = response.read(GRPC_MESSAGE_BYTES)
    except TimeoutError:
        raise called.failure("DEADLINE_EXCEEDED", "") from None
    except BROKEN as error:
        raise broken(called, error) from None
    if response.status != http.client.OK:
        raise http_failure(called, response.status, body)
    return body


def _connection(endpoint: Endpoint, context: Any) -> http.client.HTTPConnection:
    if context is None:
        return http.client.HTTPConnection(endpoint.host, endpoint.port)
    return http.client.HTTPSConnection(endpoint.host, endpoint.port, context=context)


def http_failure(called: Call, status: int, body: bytes) -> CallFailed:
    known = STATUS_OF_HTTP.get(status, "INTERNAL" if status >= 500 else "INVALID_ARGUMENT")
    return called.failure(known, error_of(body) or f"HTTP status {status}")
