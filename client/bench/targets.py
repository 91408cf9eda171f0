"""Who is asked: a server behind one protocol, and Triton as the first of them.

A target has no clock: whoever takes its pieces says when they came.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Protocol, TypeVar

from trtspec.client._async_client import AsyncClient
from trtspec.client._errors import StreamBroken
from trtspec.client._options import Options, Prompt
from trtspec.client._results import ServerTimes, Speculation
from trtspec.client._retry import Retry
from trtspec.client.bench.result import TokensFrom

_T = TypeVar("_T")


@dataclass(frozen=True)
class Piece:
    """What one response brought; `tokens` is None where the server does not say."""

    text: str = ""
    tokens: int | None = None


@dataclass(frozen=True)
class Ending:
    """What is known of an answer when it is over; None for what the server does not say."""

    tokens: int
    tokens_from: TokensFrom = "ids"
    prompt_tokens: int | None = None
    finish_reason: str | None = None
    server: ServerTimes | None = None
    speculation: Speculation | None = None


Pieces = AsyncGenerator[Piece | Ending, None]


class Target(Protocol):
    """A server; used within one event loop, by many requests at once."""

    @property
    def name(self) -> str:
        """What it is called in the report."""

    @property
    def takes_draft_tokens(self) -> bool:
        """Whether it can be asked for a draft length."""

    def ask(self, prompt: Prompt, *, max_tokens: int, num_draft_tokens: int | None) -> Pieces:
        """Return the pieces of a greedy answer as they come; the last item, and no other, is the ending.

        Closing it early stops the server's work.

        Raises:
            ClientError: while iterating, when no whole answer came.
        """

    async def describe(self) -> dict[str, str]:
        """Return what the server says of itself; ClientError where none answers."""

    async def close(self) -> None:
        """Close the connections."""


class TritonTarget:
    """A Triton server, asked with the SDK: trtspec's model, or one of NVIDIA's."""

    takes_draft_tokens = True

    def __init__(self, url: str, *, name: str | None = None, client: AsyncClient | None = None) -> None:
        self.name = name or url
        self._url = url
        self._given = client
        self._opened: AsyncClient | None = None

    async def ask(self, prompt: Prompt, *, max_tokens: int, num_draft_tokens: int | None) -> Pieces:
        options: Options = {"max_tokens": max_tokens}
        if num_draft_tokens is not None:
            options["num_draft_tokens"] = num_draft_tokens
        async with self._client.stream(prompt, **options) as stream:
            async for delta in stream:
                yield Piece(delta.text, len(delta.token_ids) or None)
            answer = await stream.result
        usage, timings = answer.usage, answer.timings
        if usage is None and not answer.token_ids:
            raise StreamBroken(
                f"{self.name}: the answer has neither token ids nor counts, expected one of them: a speed "
                "in tokens cannot be told from text"
            )
        yield Ending(
            tokens=len(answer.token_ids) or (usage.completion_tokens if usage else 0),
            tokens_from="ids" if answer.token_ids else "usage",
            prompt_tokens=usage.prompt_tokens if usage else None,
            finish_reason=answer.finish_reason,
            server=timings.server if timings else None,
            speculation=answer.speculation,
        )

    async def describe(self) -> dict[str, str]:
        metadata = await self._client.metadata()
        return {"server": f"Triton {metadata.server_version}", "model": metadata.model}

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.close()

    @property
    def _client(self) -> AsyncClient:
        # Made when it is needed, because a connection belongs to the event loop it is made in. It never
        # asks again: that a server was busy is what a load test wants to know.
        if self._opened is None:
            self._opened = self._given or AsyncClient(self._url, retry=Retry(attempts=1))
        return self._opened


async def from_thread(make: Callable[[], Generator[_T, None, None]]) -> AsyncGenerator[_T, None]:
    """Yield what a blocking generator gives, which runs in a thread of its own.

    Closed early, it closes the generator after its next item.
    """
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[_T | BaseException | None] = asyncio.Queue()
    stopped = threading.Event()

    def put(item: _T | BaseException | None) -> None:
        with suppress(RuntimeError):  # the loop is closed, and nobody waits
            loop.call_soon_threadsafe(arrived.put_nowait, item)

    def run() -> None:
        last: BaseException | None = None
        try:
            with closing(make()) as items:
                for item in items:
                    if stopped.is_set() or loop.is_closed():
                        return
                    put(item)
        except BaseException as error:
            last = error
        put(last)

    thread = threading.Thread(target=run, name="bench", daemon=True)
    thread.start()
    try:
        while (item := await arrived.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()
