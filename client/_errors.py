"""What a caller of a running server can meet.

ClientError (trtspec.errors)
├── InvalidArgument       a url, prompt or option that cannot be sent; nothing was
└── CallFailed            something was sent; knows the request id and, if there is one, the status
    ├── ConnectionFailed  no server took the request: none there, not ready, or lost before it answered
    ├── DeadlineExceeded  the time was up; the server's work is cancelled with it
    ├── RequestRefused    the server said no, and will again
    ├── ServerFailed      the server took the request and could not finish it
    └── StreamBroken      the answer ended in the middle, or made no sense
"""

from __future__ import annotations

from trtspec.errors import ClientError


class InvalidArgument(ClientError):
    """A url, prompt or option that cannot be sent."""


class CallFailed(ClientError):
    """A call that reached for the server and brought no whole answer.

    Attributes:
        request_id: the id that the server's log has for it.
        status: gRPC's name of what went wrong ("UNAVAILABLE"), "" when the server gave none.
    """

    def __init__(self, message: str, *, request_id: str = "", status: str = "") -> None:
        super().__init__(message)
        self.request_id = request_id
        self.status = status


class ConnectionFailed(CallFailed):
    """No server took the request."""


class DeadlineExceeded(CallFailed):
    """The time was up before the answer was whole."""


class RequestRefused(CallFailed):
    """The server said no, and will again."""


class ServerFailed(CallFailed):
    """The server took the request and could not finish it."""


class StreamBroken(CallFailed):
    """The answer ended in the middle, or made no sense."""
