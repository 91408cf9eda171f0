"""Single questions to an HTTP server, and the errors for what goes wrong in asking."""

from __future__ import annotations

import http.client
from contextlib import closing

from trtspec.client._connections import BROKEN, Exchange, Pool
from trtspec.client._endpoint import GRPC_MESSAGE_BYTES, Endpoint
from trtspec.client._errors import CallFailed, ConnectionFailed
from trtspec.client._events import error_of
from trtspec.client._failures import STATUS_OF_HTTP, Call
from trtspec.client._sockets import Left, left_of


def get(pool: Pool, path: str, called: Call, left_s: Left | None = None) -> bytes:
    """Return the body of what is at a path, over a connection of its own.

    Args:
        left_s: of a time for more than this question; by default the call's time is for this one.

    Raises:
        CallFailed: where there is none, or not within the time.
    """
    with closing(Exchange(pool, left_s or left_of(called.timeout_s), keeps=False)) as exchange:
        try:
            status = exchange.send("GET", path).status
            if status != http.client.OK:
                raise http_failure(called, status, exchange.read_refusal())
            return exchange.read(GRPC_MESSAGE_BYTES)
        except BROKEN as error:
            raise broken(called, error, closed=pool.closed) from None


class MetricsPort:
    """Where a server's metrics are: a port of their own, over HTTP whatever its others speak."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._is_guess = not endpoint.metrics_url
        self._pool = Pool(endpoint.for_metrics())

    def read(self, timeout_s: float | None) -> str:
        """Return the text there."""
        called = Call(f"{self._pool.endpoint.url}/metrics", timeout_s=timeout_s)
        try:
            return get(self._pool, "/metrics", called).decode(errors="replace")
        except ConnectionFailed as error:
            if self._pool.closed or not self._is_guess:
                raise
            words = f"{error.server_message}; if the metrics are on another port, pass metrics_url"
            raise called.failure("UNAVAILABLE", words) from None

    def close(self) -> None:
        self._pool.close()


def broken(called: Call, error: Exception, *, begun: bool = False, closed: bool = False) -> CallFailed:
    """Return the error for a connection that is one of BROKEN; `closed`: the client has done it."""
    if closed:
        return called.client_closed(begun=begun)
    if isinstance(error, TimeoutError):
        return called.failure("DEADLINE_EXCEEDED", "", begun=begun)
    no_http = isinstance(error, http.client.BadStatusLine) and not isinstance(error, ConnectionError)
    if no_http:
        return called.nonsense("an answer that is not HTTP (is that the port for gRPC?)")
    return called.failure("UNAVAILABLE", str(error) or type(error).__name__, begun=begun)


def http_failure(called: Call, status: int, body: bytes) -> CallFailed:
    known = STATUS_OF_HTTP.get(status, "INTERNAL" if status >= 500 else "INVALID_ARGUMENT")
    return called.failure(known, error_of(body) or f"HTTP status {status}")
