"""Connections to an HTTP server, kept while they are idle, and what passes over one of them."""

from __future__ import annotations

import contextlib
import http.client
import io
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from trtspec.client._endpoint import Endpoint

IDLE_CONNECTIONS = 16
PIECE_BYTES = 64 << 10
REFUSAL_BYTES = 64 << 10

BROKEN = (OSError, http.client.HTTPException)

if TYPE_CHECKING:
    from typing_extensions import Buffer


def left_of(allowed_s: float | None) -> Callable[[], float | None]:
    """Return what says how much is left of a time that begins now; it raises TimeoutError after that."""
    end = None if allowed_s is None else time.monotonic() + allowed_s

    def left_s() -> float | None:
        if end is None:
            return None
        if (left := end - time.monotonic()) <= 0:
            raise TimeoutError
        return left

    return left_s


class Pool:
    """Connections that are idle."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
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
        if self._context is None:
            return http.client.HTTPConnection(self.endpoint.host, self.endpoint.port)
        return http.client.HTTPSConnection(self.endpoint.host, self.endpoint.port, context=self._context)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


class Exchange:
    """One request and its response; nothing else uses its connection, or closes it.

    It ends by itself: with the last byte, after which the pool has the connection, or with the first
    failure. `close` ends it before that, from any thread. Who is sending or reading meanwhile wakes, and
    closes the connection on the way out, so that it does not go away under a thread.

    What fails raises one of BROKEN, of which a TimeoutError is one.

    Args:
        left_s: how long the next wait may be, asked before each, so also between two bytes of a head;
            None: for ever.
    """

    def __init__(self, pool: Pool, left_s: Callable[[], float | None]) -> None:
        self._pool = pool
        self._left_s = left_s
        # Guards all that follows.
        self._lock = threading.Lock()
        self._is_busy = False
        self._is_over = False
        self._connection: http.client.HTTPConnection | None = None
        self._socket: socket.socket | None = None
        self._response: http.client.HTTPResponse | None = None

    def send(self, method: str, path: str, body: bytes | None = None) -> http.client.HTTPResponse:
        """Send the request, whose body is JSON, and return the head of the response."""
        with self._busy():
            if (idle := self._pool.take()) is not None:
                try:
                    return self._ask(idle, method, path, body)
                except TimeoutError:
                    raise
                except BROKEN:
                    pass  # the server had closed it while it was idle: a new one may do
            return self._ask(self._pool.new(), method, path, body)

    def read(self, limit: int) -> bytes:
        """Return the body, or as much of it as `limit` bytes."""
        with self._reading() as response:
            body = response.read(limit)
            if response.length and len(body) < limit:
                raise http.client.IncompleteRead(body, response.length)
            return body

    def read_refusal(self) -> bytes:
        """Return the body of an error, as far as it comes: the status has said what matters."""
        try:
            return self.read(REFUSAL_BYTES)
        except BROKEN:
            return b""

    def pieces(self) -> Iterator[bytes]:
        """Yield the body as it comes."""
        while piece := self._read_piece():
            yield piece

    def close(self) -> None:
        """End it now; the server then ends its work as well. Does nothing after the end."""
        with self._lock:
            self._is_over = True
            if not self._is_busy:
                self._settle()
            elif self._socket is not None:
                with contextlib.suppress(OSError):
                    # Not SSLSocket's own, which takes the layer away from under the thread that reads.
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def _ask(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None
    ) -> http.client.HTTPResponse:
        self._hold(connection)
        connection.timeout = self._left_s()
        if connection.sock is None:
            connection.connect()
            self._hold(connection)
        self._limit_wait()
        headers = {**self._pool.endpoint.headers, **({"content-type": "application/json"} if body else {})}
        connection.request(method, path, body, headers)
        connection.response_class = self._respond  # type: ignore[assignment]
        try:
            self._response = connection.getresponse()
        finally:
            del connection.response_class  # the class's own again
        return self._response

    def _respond(self, connected: socket.socket, *args: Any, **options: Any) -> http.client.HTTPResponse:
        """Return the response of a connection, which limits each of its waits and not their first alone."""
        assert self._connection is not None
        response = type(self._connection).response_class(connected, *args, **options)
        response.fp = io.BufferedReader(_Incoming(response.fp.detach(), self._limit_wait))
        return response

    def _hold(self, connection: http.client.HTTPConnection) -> None:
        """Be the one that closes a connection, which is in place of one that was held before."""
        with self._lock:
            if self._connection is not None and self._connection is not connection:
                self._connection.close()
            self._connection, self._socket = connection, connection.sock
            self._check_open()

    def _read_piece(self) -> bytes:
        with self._reading() as response:
            piece = response.read1(PIECE_BYTES)
            if response.length and not piece:
                raise http.client.IncompleteRead(piece, response.length)
            return piece

    @contextlib.contextmanager
    def _reading(self) -> Iterator[http.client.HTTPResponse]:
        with self._busy():
            assert self._response is not None
            yield self._response

    @contextlib.contextmanager
    def _busy(self) -> Iterator[None]:
        with self._lock:
            self._check_open()
            self._is_busy = True
        try:
            yield
            with self._lock:
                self._check_open()  # else a connection that was cut here would look like one at its end
        except BaseException:
            with self._lock:
                self._is_over = True
            raise
        finally:
            with self._lock:
                self._is_busy = False
                if self._is_over or self._is_whole():
                    self._settle()

    def _check_open(self) -> None:
        if self._is_over:
            raise ConnectionAbortedError("it was closed here")

    def _limit_wait(self) -> None:
        if self._socket is not None:
            self._socket.settimeout(self._left_s())

    def _is_whole(self) -> bool:
        # http.client does not call a response closed whose last byte came with read1.
        response = self._response
        return response is not None and not response.length and (response.isclosed() or response.length == 0)

    def _settle(self) -> None:
        """Let go of the connection, for the next or for good."""
        connection, self._connection, self._socket = self._connection, None, None
        if self._response is not None:
            self._response.close()  # which has the socket of a connection that is not to be kept
        if connection is not None and connection.sock is not None and not self._is_over:
            self._pool.give(connection)
        elif connection is not None:
            connection.close()


class _Incoming(io.RawIOBase):
    """What comes over a socket, with something to do before each wait for more."""

    def __init__(self, raw: io.RawIOBase, before_wait: Callable[[], None]) -> None:
        self._raw = raw
        self._before_wait = before_wait

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int | None:
        self._before_wait()
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()
