"""What a caller of a running server can meet.

ClientError (trtspec.errors)
├── InvalidArgument       a url, prompt or option that cannot be sent; nothing was
└── CallFailed            something was sent; knows the request id, the status and the server's words
    ├── ConnectionFailed  no server took the request: none there, not ready, or lost before it answered
    ├── ServerBusy        the server takes no more at the moment
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
        request_id: the id that the server's log has for it, "" where a call has none.
        status: what gRPC calls it ("UNAVAILABLE"), also over HTTP; "" when the server gave none.
        server_message: what the server, or the connection to it, said; "" when nothing was.
    """

    def __init__(
        self, message: str, *, request_id: str = "", status: str = "", server_message: str = ""
    ) -> None:
        super().__init__(message)
        self.request_id = request_id
        self.status = status
        self.server_message = server_message


class ConnectionFailed(CallFailed):
    """No server took the request."""


class ServerBusy(CallFailed):
    """The server takes no more at the moment."""


class DeadlineExceeded(CallFailed):
    """The time was up before the answer was whole."""


class RequestRefused(CallFailed):
    """The server said no, and will again."""


class ServerFailed(CallFailed):
    """The server took the request and could not finish it."""


class StreamBroken(CallFailed):
    """The answer ended in the middle, or made no sense."""
