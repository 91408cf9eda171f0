"""What doubles of HTTP servers share: the loop that serves them, and bodies that come in chunks."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar


class Cut:
    """A step of a script that breaks the connection."""


class HttpDouble(ThreadingHTTPServer):
    """A server on a free port; see `running`."""

    daemon_threads = True
    # http.server's five are fewer than tests ask at once.
    request_queue_size = 128

    def __init__(self, handler: type[HttpHandler], port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), handler)
        self.connections = 0
        # Method, path and headers of everything that came.
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def get_request(self) -> tuple[socket.socket, Any]:
        self.connections += 1
        return super().get_request()  # type: ignore[return-value]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is what some tests are about."""


_Server = TypeVar("_Server", bound=HttpDouble)


@contextmanager
def running(server: _Server, context: ssl.SSLContext | None) -> Iterator[_Server]:
    """Serve, encrypted where there is a context, until the block is left."""
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.url = server.url.replace("http://127.0.0.1", "https://localhost")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class HttpHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HttpDouble

    def parse_request(self) -> bool:
        is_one = super().parse_request()
        if is_one:
            self.server.seen.append((self.command, self.path, self.sent_headers()))
        return is_one

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def sent_headers(self) -> dict[str, str]:
        """What the client sent, names in lower case."""
        return {name.lower(): value for name, value in self.headers.items()}

    def read_body(self) -> bytes:
        return self.rfile.read(int(self.headers["content-length"]))

    def send_whole(self, status: int, body: str, headers: Mapping[str, str] | None = None) -> None:
        data = body.encode()
        self._send_head(status, {"Content-Length": str(len(data)), **(headers or {})})
        self.wfile.write(data)

    def begin_chunks(self, status: int, media_type: str, headers: Mapping[str, str] | None = None) -> None:
        self._send_head(
            status, {"Content-Type": media_type, "Transfer-Encoding": "chunked", **(headers or {})}
        )

    def send_chunk(self, data: bytes) -> None:
        """Send a part of the body; b"" is its end."""
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def cut(self) -> None:
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True

    def _send_head(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
