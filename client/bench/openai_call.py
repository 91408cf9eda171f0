"""One request to a server with OpenAI's API, and what is said when it fails."""

from __future__ import annotations

import http.client
from dataclasses import dataclass, field

from trtspec.client._connections import BROKEN, Exchange, Pool
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


@dataclass(frozen=True)
class Host:
    """A server, and how to reach it."""

    name: str
    # Stands before the paths of the API.
    base: str
    pool: Pool
    timeout_s: float
    secret: str = field(default="", repr=False)


class OpenAiCall:
    """A request: a context manager that sends it and gives the exchange, whose status is 200.

    Raises:
        CallFailed: for what goes wrong in sending, and inside of the context in reading.
    """

    def __init__(self, host: Host, method: str, path: str, body: bytes | None = None) -> None:
        self._host = host
        self._method, self._path, self._body = method, host.base + path, body
        self._exchange = Exchange(host.pool, lambda: host.timeout_s)
        self._begun = False
        self.media_type = ""

    def __enter__(self) -> Exchange:
        try:
            response = self._exchange.send(self._method, self._path, self._body)
            self._begun = True
            self.media_type = response.headers.get_content_type()
            if response.status != http.client.OK:
                raise self._refused(response)
        except BaseException as error:
            self._leave(error)
            raise
        return self._exchange

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._leave(error)

    def cut(self) -> None:
        """Break the connection: the thread that reads from it wakes, and the server ends its work."""
        self._exchange.close()

    def _leave(self, error: BaseException | None) -> None:
        self._exchange.close()
        if isinstance(error, (SaidError, ValueError, *BROKEN)):
            raise self._failure(error) from None

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
        if self._begun:
            return StreamBroken, f"the answer broke off: {words}; look into the server's log"
        return ConnectionFailed, f"no server took the request: {words}; is it running there?"

    def _refused(self, response: http.client.HTTPResponse) -> CallFailed:
        status = response.status
        words = self._hidden(words_of_body(self._exchange.read_refusal())) or response.reason
        kind: type[CallFailed] = RequestRefused
        advice = ""
        if status in (http.client.UNAUTHORIZED, http.client.FORBIDDEN):
            advice = f"; put the server's key into {API_KEY}"
        elif status in (http.client.TOO_MANY_REQUESTS, http.client.SERVICE_UNAVAILABLE):
            kind, advice = ServerBusy, "; ask for less at a time"
        elif status == http.client.NOT_FOUND:
            advice = f"; is there {self._path}, and the model?"
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
