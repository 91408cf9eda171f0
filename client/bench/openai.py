"""Any server with OpenAI's API as a target: vLLM, TGI, trtllm-serve, llama.cpp.

Texts and token ids go to `/v1/completions`, conversations to `/v1/chat/completions`. The API says
nothing about speculation, so acceptance is not reported for such a target.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import aclosing
from typing import Any, TypeVar
from urllib.parse import urlsplit

from trtspec.client._connections import Exchange, Pool
from trtspec.client._endpoint import Endpoint, Tls, endpoint
from trtspec.client._errors import InvalidArgument, StreamBroken
from trtspec.client._events import EventParser
from trtspec.client._options import Prompt
from trtspec.client.bench.openai_call import Host, OpenAiCall
from trtspec.client.bench.openai_stream import Transcript
from trtspec.client.bench.targets import Ending, Piece, Pieces, from_thread

TIMEOUT_S = 600.0
EVENT_BYTES = 16 << 20
BODY_BYTES = 1 << 20
_T = TypeVar("_T")
_PORTS = {"http": 80, "https": 443}


class OpenAiTarget:
    """A server at `http(s)://host[:port][/v1]`.

    Tokens are counted by the server's `usage`; where it sends none, by `count_tokens` of the text.
    """

    takes_draft_tokens = False

    def __init__(
        self,
        url: str,
        *,
        name: str | None = None,
        model: str | None = None,
        api_key: str | None = None,
        tls: Tls | None = None,
        count_tokens: Callable[[str], int] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        server, base = _address(url, api_key, tls)
        self._url = server.url + base
        self.name = name or self._url
        self._host = Host(self.name, base, Pool(server), timeout_s, api_key or "")
        self._model = model
        self._count_tokens = count_tokens

    async def ask(self, prompt: Prompt, *, max_tokens: int, num_draft_tokens: int | None = None) -> Pieces:
        if num_draft_tokens is not None:
            raise InvalidArgument(
                f"{self.name}: found a draft length, expected none: OpenAI's API has no field for it"
            )
        path, body = _request(prompt, await self._served_model(), max_tokens)
        call = OpenAiCall(self._host, "POST", path, body)
        async with aclosing(_answered(call, lambda: self._answer(call))) as pieces:
            async for item in pieces:
                yield item

    async def describe(self) -> dict[str, str]:
        return {"server": f"OpenAI's API at {self._url}", "model": await self._served_model()}

    async def close(self) -> None:
        self._host.pool.close()

    async def _served_model(self) -> str:
        if self._model is None:
            call = OpenAiCall(self._host, "GET", "/models")
            async with aclosing(_answered(call, lambda: self._only_model(call))) as models:
                self._model = await anext(models)
        return self._model

    def _only_model(self, call: OpenAiCall) -> Generator[str, None, None]:
        """Yield the one model that is served; blocks."""
        with call as exchange:
            body = exchange.read(BODY_BYTES)
        try:
            names = [str(model["id"]) for model in json.loads(body)["data"]]
        except (ValueError, LookupError, TypeError, RecursionError):
            raise StreamBroken(
                f"{self.name}: found no list at /models; name the model to ask (--against-model)"
            ) from None
        if len(names) != 1:
            found = ", ".join(names) or "no model"
            raise InvalidArgument(
                f"{self.name}: serves {found}, expected one model; name the one to ask (--against-model)"
            )
        yield names[0]

    def _answer(self, call: OpenAiCall) -> Generator[Piece | Ending, None, None]:
        """Yield the answer's pieces and its ending; blocks."""
        said = Transcript()
        with call as exchange:
            if call.media_type != "text/event-stream":
                raise StreamBroken(
                    f"{self.name}: found {call.media_type}, expected text/event-stream: it does not stream"
                )
            for data in _events(exchange):
                if text := said.take(data):
                    yield Piece(text)
        if not said.complete:
            raise StreamBroken(f"{self.name}: the answer broke off: found its end without a finish_reason")
        yield self._ending(said)

    def _ending(self, said: Transcript) -> Ending:
        # A text is more than no token, whatever the usage says.
        tokens = said.completion_tokens or (None if said.text else said.completion_tokens)
        if tokens is None and self._count_tokens is None:
            raise StreamBroken(
                f"{self.name}: the answer has no usage, expected one: a speed in tokens cannot be told "
                "from text; give a pair, whose tokenizer counts"
            )
        return Ending(
            tokens=self._count_tokens(said.text) if tokens is None and self._count_tokens else tokens or 0,
            tokens_from="tokenizer" if tokens is None else "usage",
            prompt_tokens=said.prompt_tokens,
            finish_reason=said.finish_reason,
        )


async def _answered(
    call: OpenAiCall, make: Callable[[], Generator[_T, None, None]]
) -> AsyncGenerator[_T, None]:
    """Yield what comes of a call in a thread; closed early, or cancelled, it cuts the call."""
    items = from_thread(make)
    try:
        async for item in items:
            yield item
    finally:
        call.cut()
        await items.aclose()


def _events(exchange: Exchange) -> Iterator[bytes]:
    parser = EventParser()
    for piece in exchange.pieces():
        yield from parser.feed(piece)
        if parser.size_bytes > EVENT_BYTES:
            raise ValueError(f"an event of more than {EVENT_BYTES} bytes")


def _request(prompt: Prompt, model: str, max_tokens: int) -> tuple[str, bytes]:
    """Return path and body of a greedy request."""
    fields: dict[str, Any] = {"model": model, "max_tokens": max_tokens, "temperature": 0, "stream": True}
    fields["stream_options"] = {"include_usage": True}
    is_chat = not isinstance(prompt, str) and isinstance(prompt[0], dict)
    fields["messages" if is_chat else "prompt"] = prompt if isinstance(prompt, str) else list(prompt)
    body = json.dumps(fields, allow_nan=False).encode()
    return "/chat/completions" if is_chat else "/completions", body


def _address(url: str, api_key: str | None, tls: Tls | None) -> tuple[Endpoint, str]:
    """Return the server, and the path that stands before those of the API."""
    shown = url.rpartition("@")[2].partition("?")[0]
    wrong = InvalidArgument(f"{shown!r}: found no address, expected http(s)://host[:port][/v1]")
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS[parts.scheme]
    except (ValueError, KeyError):
        raise wrong from None
    if not parts.hostname or parts.query or parts.fragment or not parts.path.isascii():
        raise wrong
    # A name and password in the url are passed on, to be refused there without being shown.
    login, at, _ = parts.netloc.rpartition("@")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    server = endpoint(f"{parts.scheme}://{login}{at}{host}:{port}", api_key=api_key, tls=tls)
    return server, parts.path.rstrip("/") or "/v1"
