"""One request to a server with OpenAI's API, and what is said when it fails."""

from __future__ import annotations

import contextlib
import http.client
import socket
from dataclasses import dataclass, field

from trtspec.client._connections import BROKEN, Pool
from trtspec.client._endpoint import Endpoint
from trtspec.client._errors import (
    CallFailed,
    ConnectionFailed,
    DeadlineExceeded,
    RequestRefused,
    ServerBusy,
    ServerFailed,
    StreamBroken,
)
from trtspec.client.bench.openai_stream import SaidError, words_of_body

# The environment variable that holds the key; a name of our own, so that no server gets another's.
API_KEY = "TRTSPEC_AGAINST_API_KEY"
BODY_BYTES = 1 << 20


@dataclass(frozen=True)
class Host:
    """A server, and how to reach it."""

    name: str
    endpoint: Endpoint
    # Stands before the paths of the API.
    base: str
    pool: Pool
    timeout_s: float
    secret: str = field(default="", repr=False)


class OpenAiCall:
    """A request: a context manager that sends it and gives the head of the response, whose status is 200.

    A connection is kept for the next call when the response was read to its end.

    Raises:
        CallFailed: for what goes wrong in sending, and inside of the context in reading.
    """

    def __init__(self, host: Host, method: str, path: str, body: bytes | None = None) -> None:
        self._host = host
        self._sent = method, host.base + path, body
        self._connection: http.client.HTTPConnection | None = None
        self._socket: socket.socket | None = None
        self._response: http.client.HTTPResponse | None = None
        self._was_cut = False

    def __enter__(self) -> http.client.HTTPResponse:
        try:
            self._response = self._send()
            if self._response.status != http.client.OK:
                raise self._refused(self._response)
        except BaseException as error:
            self._leave(error)
            raise
        return self._response

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._leave(error)

    def cut(self) -> None:
        """Break the connection: the thread that reads from it wakes, and the server ends its work."""
        self._was_cut = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                # Not SSLSocket's own, which takes the layer away from under the thread that reads.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def _leave(self, error: BaseException | None) -> None:
        connection, self._connection, self._socket = self._connection, None, None
        was_read = error is None and self._response is not None and self._response.isclosed()
        if connection is not None and connection.sock is not None and was_read:
            self._host.pool.give(connection)
        elif connection is not None:
            connection.close()
            if self._response is not None:  # which a connection that is not to be kept has let go of
                self._response.close()
        if isinstance(error, (SaidError, ValueError, *BROKEN)):
            raise self._failure(error) from None

    def _send(self) -> http.client.HTTPResponse:
        if (idle := self._host.pool.take()) is not None:
            try:
                return self._exchange(idle)
            except TimeoutError:
                raise
            except BROKEN:
                idle.close()  # the server had closed it while it was idle
        return self._exchange(self._host.pool.new())

    def _exchange(self, connection: http.client.HTTPConnection) -> http.client.HTTPResponse:
        method, path, body = self._sent
        self._connection = connection
        connection.timeout = self._host.timeout_s
        if connection.sock is None:
            connection.connect()
        self._socket = connection.sock
        headers = {**self._host.endpoint.headers, "content-type": "application/json"}
        connection.request(method, path, body, headers)
        if self._was_cut:
            self.cut()
        return connection.getresponse()

    def _failure(self, error: Exception) -> CallFailed:
        words = self._hidden(str(error) or type(error).__name__)
        kind, message = self._explain(error, words)
        return kind(f"{self._host.name}: {message}", server_message=words)

    def _explain(self, error: Exception, words: str) -> tuple[type[CallFailed], str]:
        if isinstance(error, SaidError):
            return ServerFailed, f"the server failed: {words}; look into its log"
        if isinstance(error, TimeoutError):
            return DeadlineExceeded, f"nothing came for {self._host.timeout_s:g} s; is it overloaded?"
        if isinstance(error, http.client.BadStatusLine) and not isinstance(error, ConnectionError):
            return StreamBroken, "found no HTTP, expected a server with OpenAI's API; is the port right?"
        if isinstance(error, ValueError) and not isinstance(error, OSError):
            return StreamBroken, f"found no chunk of a stream ({words}), expected OpenAI's protocol"
        if self._response is not None:
            return StreamBroken, f"the answer broke off: {words}; look into the server's log"
        return ConnectionFailed, f"no server took the request: {words}; is it running there?"

    def _refused(self, response: http.client.HTTPResponse) -> CallFailed:
        status, path = response.status, self._sent[1]
        words = self._hidden(words_of_body(response.read(BODY_BYTES))) or response.reason
        kind: type[CallFailed] = RequestRefused
        advice = ""
        if status in (http.client.UNAUTHORIZED, http.client.FORBIDDEN):
            advice = f"; put the server's key into {API_KEY}"
        elif status in (http.client.TOO_MANY_REQUESTS, http.client.SERVICE_UNAVAILABLE):
            kind, advice = ServerBusy, "; ask for less at a time"
        elif status == http.client.NOT_FOUND:
            advice = f"; is there {path}, and the model?"
        elif 300 <= status < 400:
            to = response.headers.get("location", "another address").partition("?")[0]
            advice = f"; it sends to {to}: give that address"
        elif status >= http.client.INTERNAL_SERVER_ERROR:
            kind, advice = ServerFailed, "; look into its log"
        said = f"{self._host.name}: refused with HTTP status {status}: {words}{advice}"
        return kind(said, status=str(status), server_message=words)

    def _hidden(self, words: str) -> str:
        """Return words without the key, which some servers repeat when they refuse it."""
        return words.replace(self._host.secret, "[key]") if self._host.secret else words
