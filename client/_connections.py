"""Connections to an HTTP server, kept while they are idle, and what passes over one of them."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator

from trtspec.client._endpoint import Endpoint
from trtspec.client._sockets import Left, Line, dial, line_of

IDLE_CONNECTIONS = 16
PIECE_BYTES = 64 << 10
REFUSAL_BYTES = 64 << 10

BROKEN = (OSError, http.client.HTTPException)


class Pool:
    """Connections to one server: those that are idle, and the exchanges that have the others."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.context = endpoint.tls.context() if endpoint.is_encrypted else None
        self.closed = False
        self._idle: list[http.client.HTTPConnection] = []
        self._under_way: set[Exchange] = set()
        self._lock = threading.Lock()

    def enter(self, exchange: Exchange) -> None:
        """Let an exchange begin, which `close` ends; raises one of BROKEN when it is closed already."""
        with self._lock:
            if self.closed:
                raise ConnectionAbortedError("all connections were closed here")
            self._under_way.add(exchange)

    def leave(self, exchange: Exchange) -> None:
        with self._lock:
            self._under_way.discard(exchange)

    def take(self) -> http.client.HTTPConnection:
        """Return an idle connection that the server has not closed meanwhile, else one that is to be made."""
        while True:
            with self._lock:
                idle = self._idle.pop() if self._idle else None
            if idle is None:
                return self.new()
            if (line := line_of(idle)) and line.is_quiet():
                return idle
            idle.close()

    def give(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if not self.closed and len(self._idle) < IDLE_CONNECTIONS:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Close all connections, also under those who wait for them, and let nobody begin again."""
        with self._lock:
            self.closed = True
            idle, self._idle = self._idle, []
            under_way = list(self._under_way)
        for connection in idle:
            connection.close()
        for exchange in under_way:
            exchange.close()

    def new(self) -> http.client.HTTPConnection:
        if self.context is None:
            return http.client.HTTPConnection(self.endpoint.host, self.endpoint.port)
        return http.client.HTTPSConnection(self.endpoint.host, self.endpoint.port, context=self.context)


class Exchange:
    """One request and its response; nothing else uses its connection, or closes it.

    It ends by itself: with the last byte, after which the pool has the connection, or with the first
    failure. `close` ends it before that, from any thread. Who is sending or reading meanwhile wakes, and
    closes the connection on the way out, so that it does not go away under a thread.

    What fails raises one of BROKEN, of which a TimeoutError is one.

    Args:
        left_s: asked before each wait, so also between two bytes of a head.
        keeps: whether it may take a connection that was kept, which the server may be closing just then,
            and leave its own for the next.
    """

    def __init__(self, pool: Pool, left_s: Left, *, keeps: bool = True) -> None:
        self._pool = pool
        self._keeps = keeps
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
            self._pool.enter(self)
            connection = self._pool.take() if self._keeps else self._pool.new()
            return self._ask(connection, method, path, body)

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
        with self._lock:
            self._connection = connection
        if line := line_of(connection):
            line.left_s = self._left_s
            self._hold(line.connected)
        else:
            host, port, context = connection.host, connection.port, self._pool.context
            line = Line(dial(host, port, context, self._left_s, self._hold), self._left_s)
            connection.sock = line
        headers = {**self._pool.endpoint.headers, **({"content-type": "application/json"} if body else {})}
        connection.request(method, path, body, headers)
        self._response = connection.getresponse()
        return self._response

    def _hold(self, connected: socket.socket) -> None:
        """Let `close` reach the socket on which this thread is about to wait."""
        with self._lock:
            self._socket = connected
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

    def _is_whole(self) -> bool:
        # http.client does not call a response closed whose last byte came with read1.
        response = self._response
        return response is not None and not response.length and (response.isclosed() or response.length == 0)

    def _settle(self) -> None:
        """Let go of the connection, for the next or for good."""
        connection, self._connection, self._socket = self._connection, None, None
        if self._response is not None:
            self._response.close()  # which has the socket of a connection that is not to be kept
        if connection is not None and connection.sock is not None and self._keeps and not self._is_over:
            self._pool.give(connection)
        elif connection is not None:
            connection.close()
        self._pool.leave(self)
