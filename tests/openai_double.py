"""A double of a server with OpenAI's API: answers are scripts of events, requests are checked.

Refuses what vLLM and trtllm-serve refuse, in their words' shape: fields the API has not, a model that is
not served, a key that is wrong, stream options without a stream, messages that are none.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "the-model"
# Of a completion and of a chat; what trtllm-serve 1.2.1 also takes and nobody here sends is left out.
FIELDS = {"model", "max_tokens", "temperature", "stream", "stream_options"}


class Cut:
    """Breaks the connection."""


class HangUp:
    """Closes the connection after the body, without having announced it."""


class Hang:
    """Says nothing more until the client is gone."""


@dataclass
class Refusal:
    """A status in place of a stream."""

    status: int
    body: str = ""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Asked:
    path: str
    body: dict[str, Any]
    headers: dict[str, str]


# Bytes go out as they are; a str is the data of an event.
Script = Callable[[Asked], Iterable[bytes | str | Cut | HangUp | Hang] | Refusal]


def chunk(text: str | None = None, *, finish: str | None = None, **more: Any) -> str:
    """The data of a completion's event."""
    choice = {"index": 0, "text": text or "", "logprobs": None, "finish_reason": finish}
    return json.dumps({"id": "cmpl-1", "object": "text_completion", "choices": [choice], **more})


def chat_chunk(finish: str | None = None, **delta: Any) -> str:
    """The data of a chat's event."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return json.dumps({"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [choice]})


def usage(prompt_tokens: int, completion_tokens: int) -> str:
    """The data of the event that ends a stream with include_usage: it has no choices."""
    counts = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    counts["total_tokens"] = prompt_tokens + completion_tokens
    return json.dumps({"id": "cmpl-1", "object": "text_completion", "choices": [], "usage": counts})


class OpenAiDouble(ThreadingHTTPServer):
    """Serves a script; see `serving_openai`."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, script: Script, models: Any, key: str, media_type: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script, self.models, self.key, self.media_type = script, models, key, media_type
        self.asked: list[Asked] = []
        self.connections = 0
        self.keep_alive = True
        self.hung_up = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def get_request(self) -> tuple[socket.socket, Any]:
        self.connections += 1
        return super().get_request()  # type: ignore[return-value]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is what some tests are about."""


@contextmanager
def serving_openai(
    script: Script,
    *,
    models: Any = (MODEL,),
    key: str = "",
    media_type: str = "text/event-stream; charset=utf-8",
    keep_alive: bool = True,
    context: ssl.SSLContext | None = None,
) -> Iterator[OpenAiDouble]:
    server = OpenAiDouble(script, models, key, media_type)
    server.keep_alive = keep_alive
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


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: OpenAiDouble

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        if self.path != "/v1/models":
            return self._send(Refusal(404, '{"detail":"Not Found"}'))
        if refusal := self._unauthorized():
            return self._send(refusal)
        models = self.server.models
        listed = {"object": "list", "data": [{"id": name, "object": "model"} for name in models]}
        return self._send(Refusal(200, models if isinstance(models, str) else json.dumps(listed)))

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        asked = Asked(self.path, json.loads(raw), headers)
        self.server.asked.append(asked)
        answer = self._unauthorized() or _refusal(asked, self.server.models) or self.server.script(asked)
        if isinstance(answer, Refusal):
            return self._send(answer)
        try:
            self._stream(answer)
        except OSError:
            self.close_connection = True
            self.server.hung_up.set()

    def _stream(self, steps: Iterable[bytes | str | Cut | HangUp | Hang]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", self.server.media_type)
        self.send_header("Transfer-Encoding", "chunked")
        if not self.server.keep_alive:
            self.send_header("Connection", "close")
        self.end_headers()
        for step in steps:
            if isinstance(step, Cut):
                self.wfile.flush()
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
                return
            if isinstance(step, HangUp):
                self.close_connection = True
                continue
            if isinstance(step, Hang):
                self.connection.recv(1)
                raise ConnectionResetError
            data = step if isinstance(step, bytes) else f"data: {step}\n\n".encode()
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.write(b"0\r\n\r\n")

    def _unauthorized(self) -> Refusal | None:
        given = self.headers.get("authorization", "")
        if not self.server.key or given == f"Bearer {self.server.key}":
            return None
        return Refusal(401, json.dumps({"error": {"message": f"Incorrect API key provided: {given}"}}))

    def _send(self, refusal: Refusal) -> None:
        data = refusal.body.encode()
        self.send_response(refusal.status)
        for name, value in {"Content-Length": str(len(data)), **refusal.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


def _refusal(asked: Asked, models: Any) -> Refusal | None:
    def bad(message: str, status: int = 400) -> Refusal:
        return Refusal(status, json.dumps({"object": "error", "message": message, "code": status}))

    body = asked.body
    prompt_key = {"/v1/completions": "prompt", "/v1/chat/completions": "messages"}.get(asked.path)
    if prompt_key is None:
        return Refusal(404, '{"detail":"Not Found"}')
    if asked.headers.get("content-type") != "application/json":
        return bad("Unsupported Media Type: Only 'application/json' is allowed", 415)
    if unknown := body.keys() - FIELDS - {prompt_key}:
        return bad(f"Extra inputs are not permitted: {sorted(unknown)}")
    if body["model"] not in models:
        return bad(f"The model `{body['model']}` does not exist.", 404)
    if "stream_options" in body and not body.get("stream"):
        return bad("Stream options can only be defined when `stream=True`.")
    if type(body["max_tokens"]) is not int or body["max_tokens"] < 1 or not 0 <= body["temperature"] <= 2:
        return bad("max_tokens must be at least 1")
    return None if _is_prompt(body[prompt_key], prompt_key) else bad(f"{prompt_key}: Input should be valid")


def _is_prompt(value: Any, key: str) -> bool:
    if key == "prompt":
        ids = isinstance(value, list) and all(type(token) is int for token in value)
        return isinstance(value, str) or (ids and bool(value))
    return bool(value) and all(
        message.keys() == {"role", "content"} and message["role"] in ("system", "user", "assistant")
        for message in value
    )
