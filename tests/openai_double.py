"""A double of a server with OpenAI's API: answers are scripts of events, requests are checked.

Refuses what vLLM and trtllm-serve refuse, in their words' shape: fields the API has not, a model that is
not served, a key that is wrong, stream options without a stream, messages that are none.
"""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any

from http_double import Cut, HttpDouble, HttpHandler, running

MODEL = "the-model"
# Of a completion and of a chat; what trtllm-serve 1.2.1 also takes and nobody here sends is left out.
FIELDS = {"model", "max_tokens", "temperature", "stream", "stream_options"}


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


class OpenAiDouble(HttpDouble):
    """Serves a script; see `serving_openai`."""

    def __init__(self, script: Script, models: Any, key: str, media_type: str, keep_alive: bool) -> None:
        super().__init__(_Handler)
        self.script, self.models, self.key, self.media_type = script, models, key, media_type
        self.headers = {} if keep_alive else {"Connection": "close"}
        self.asked: list[Asked] = []
        self.asked_for_models = threading.Event()
        self.hung_up = threading.Event()


def serving_openai(
    script: Script,
    *,
    models: Any = (MODEL,),
    key: str = "",
    media_type: str = "text/event-stream; charset=utf-8",
    keep_alive: bool = True,
    context: ssl.SSLContext | None = None,
) -> AbstractContextManager[OpenAiDouble]:
    return running(OpenAiDouble(script, models, key, media_type, keep_alive), context)


class _Handler(HttpHandler):
    server: OpenAiDouble

    def do_GET(self) -> None:
        if self.path != "/v1/models":
            return self._send(Refusal(404, '{"detail":"Not Found"}'))
        if refusal := self._unauthorized():
            return self._send(refusal)
        self.server.asked_for_models.set()
        models = self.server.models
        if isinstance(models, Hang):
            with suppress(OSError):
                self.connection.recv(1)
            self.close_connection = True
            return self.server.hung_up.set()
        listed = {"object": "list", "data": [{"id": name, "object": "model"} for name in models]}
        return self._send(Refusal(200, models if isinstance(models, str) else json.dumps(listed)))

    def do_POST(self) -> None:
        asked = Asked(self.path, json.loads(self.read_body()), self.sent_headers())
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
        self.begin_chunks(200, self.server.media_type, self.server.headers)
        for step in steps:
            if isinstance(step, Cut):
                self.cut()
                return
            if isinstance(step, HangUp):
                self.close_connection = True
                continue
            if isinstance(step, Hang):
                self.connection.recv(1)
                raise ConnectionResetError
            self.send_chunk(step if isinstance(step, bytes) else f"data: {step}\n\n".encode())
        self.send_chunk(b"")

    def _unauthorized(self) -> Refusal | None:
        given = self.headers.get("authorization", "")
        if not self.server.key or given == f"Bearer {self.server.key}":
            return None
        return Refusal(401, json.dumps({"error": {"message": f"Incorrect API key provided: {given}"}}))

    def _send(self, refusal: Refusal) -> None:
        self.send_whole(refusal.status, refusal.body, refusal.headers)


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
