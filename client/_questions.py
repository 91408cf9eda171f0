"""Single questions to an HTTP server, and the errors for what goes wrong in asking."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

from trtspec.client._connections import BROKEN, Exchange, Pool, left_of
from trtspec.client._endpoint import GRPC_MESSAGE_BYTES, Endpoint
from trtspec.client._errors import CallFailed, ConnectionFailed
from trtspec.client._events import error_of
from trtspec.client._failures import STATUS_OF_HTTP, Call


class Questions:
    """Those that are under way; `close` ends them, from any thread, and lets no other begin."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._exchanges: set[Exchange] = set()
        self.closed = False

    @contextmanager
    def holding(self, exchange: Exchange) -> Iterator[None]:
        with self._lock:
            self._exchanges.add(exchange)
            if self.closed:
                exchange.close()
        try:
            yield
        finally:
            with self._lock:
                self._exchanges.discard(exchange)

    def close(self) -> None:
        with self._lock:
            self.closed = True
            for exchange in self._exchanges:
                exchange.close()


def get(endpoint: Endpoint, path: str, called: Call, questions: Questions | None = None) -> bytes:
    """Return the body of what is at a path, over a connection of its own.

    Args:
        questions: ends it when it is closed.

    Raises:
        CallFailed: where there is none, or not within the call's time.
    """
    held = questions or Questions()
    with (
        closing(Pool(endpoint)) as pool,
        closing(Exchange(pool, left_of(called.timeout_s))) as exchange,
        held.holding(exchange),
    ):
        try:
            status = exchange.send("GET", path).status
            if status != http.client.OK:
                raise http_failure(called, status, exchange.read_refusal())
            return exchange.read(GRPC_MESSAGE_BYTES)
        except BROKEN as error:
            if held.closed:
                raise called.failure("CANCELLED", "the client was closed") from None
            raise broken(called, error) from None


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


def broken(called: Call, error: Exception, *, begun: bool = False) -> CallFailed:
    """Return the error for a connection that is one of BROKEN."""
    if isinstance(error, TimeoutError):
        return called.failure("DEADLINE_EXCEEDED", "", begun=begun)
    no_http = isinstance(error, http.client.BadStatusLine) and not isinstance(error, ConnectionError)
    if no_http:
        return called.nonsense("an answer that is not HTTP (is that the port for gRPC?)")
    return called.failure("UNAVAILABLE", str(error) or type(error).__name__, begun=begun)


def http_failure(called: Call, status: int, body: bytes) -> CallFailed:
    known = STATUS_OF_HTTP.get(status, "INTERNAL" if status >= 500 else "INVALID_ARGUMENT")
    return called.failure(known, error_of(body) or f"HTTP status {status}")
