"""Whose fault it was: a status and some words become an error of the tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from trtspec.client._errors import (
    CallFailed,
    ConnectionFailed,
    DeadlineExceeded,
    RequestRefused,
    ServerBusy,
    ServerFailed,
    StreamBroken,
)

# How our public model begins what it says, for errors inside a gRPC stream have no status. Triton could
# end a failed stream with one (`triton_grpc_error`), but doing so crashed servers up to release 26.03
# (a use after free in the gRPC frontend, triton-inference-server/server#8708).
_FAILED, _REFUSED, _BUSY = "failed: ", "refused: ", "busy: "

_REFUSALS = {
    *("INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "OUT_OF_RANGE", "UNIMPLEMENTED"),
    *("FAILED_PRECONDITION", "PERMISSION_DENIED", "UNAUTHENTICATED", "RESOURCE_EXHAUSTED"),
}
# The connection's fault, or someone's who cancelled the call: the server never said that it failed.
_CONNECTION = {"UNAVAILABLE", "CANCELLED"}

# google.rpc.Code's table of HTTP statuses, with those that Triton and proxies before it send.
STATUS_OF_HTTP = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    409: "ALREADY_EXISTS",
    413: "OUT_OF_RANGE",
    429: "UNAVAILABLE",
    499: "CANCELLED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


_E = TypeVar("_E", bound=CallFailed)


@dataclass(frozen=True)
class Call:
    """What an error says about the call that failed."""

    # Scheme and secrets left out.
    address: str
    request_id: str = ""
    # What the caller had allowed for it.
    timeout_s: float | None = None

    def failure(self, status: str, words: str, *, begun: bool = False) -> CallFailed:
        """Return the error; `begun`: a response had come before."""
        kind, message = _explain(status, words, begun=begun)
        if kind is DeadlineExceeded and self.timeout_s is not None:
            message = f"the answer was not whole after {round(self.timeout_s, 3):g} s; {message}"
        return self._error(kind, message, status, words)

    def client_closed(self, *, begun: bool = False) -> CallFailed:
        """Return the error for whoever waited when the client was closed."""
        kind = StreamBroken if begun else ConnectionFailed
        words = "the client was closed"
        return self._error(kind, f"{words} before the answer was whole", "CANCELLED", words)

    def nonsense(self, found: str) -> StreamBroken:
        """Return the error for a response that is none."""
        return self._error(StreamBroken, f"found {found}, expected Triton's protocol", "", "")

    def too_large(self) -> StreamBroken:
        """Return the error for a response larger than this client takes."""
        message = (
            "found a response larger than this client takes, expected max_message_bytes at most; "
            "ask for less or allow more"
        )
        return self._error(StreamBroken, message, "RESOURCE_EXHAUSTED", "")

    def _error(self, kind: type[_E], message: str, status: str, words: str) -> _E:
        suffix = f" (request {self.request_id})" if self.request_id else ""
        return kind(
            f"{self.address}: {message}{suffix}",
            request_id=self.request_id,
            status=status,
            server_message=words,
        )


def _explain(status: str, words: str, *, begun: bool) -> tuple[type[CallFailed], str]:
    """Return the kind of error and what to say."""
    if words.startswith(_BUSY) and not begun:
        return ServerBusy, f"busy: {words.removeprefix(_BUSY)}"
    if words.startswith(_REFUSED) and not begun:
        return RequestRefused, words
    failed = begun or words.startswith(_FAILED)
    if status == "DEADLINE_EXCEEDED":
        return DeadlineExceeded, "ask for fewer tokens or allow more with timeout_s"
    if status in _CONNECTION and begun:
        return StreamBroken, f"the answer broke off: {words}; ask again if the server is well"
    if status in _CONNECTION and not failed:
        return ConnectionFailed, f"no server took the request: {words}; is `trtspec serve` running there?"
    if status in _REFUSALS or (not status and not failed):
        return RequestRefused, f"refused: {words}"
    return ServerFailed, f"the server failed: {words.removeprefix(_FAILED)}; look into its log"
