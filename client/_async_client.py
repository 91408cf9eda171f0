"""The client for programs that use asyncio."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

from trtspec.client._answer import Answer, Deadline, Terms
from trtspec.client._calls import (
    CANARY,
    CANARY_OPTIONS,
    HEALTH_TIMEOUT_S,
    Calls,
    checked_messages,
    is_unknown,
    no_model,
    with_canary,
)
from trtspec.client._connect import connect_async
from trtspec.client._endpoint import Endpoint, Tls, endpoint
from trtspec.client._errors import CallFailed, RequestRefused
from trtspec.client._many import OnAnswer, ask_many_async, ignore
from trtspec.client._metadata import Metadata
from trtspec.client._metrics import Metrics, parse_metrics
from trtspec.client._options import Message, Options, Prompt
from trtspec.client._results import Generation
from trtspec.client._retry import Retry
from trtspec.client._stream import AsyncStream
from trtspec.client._transport import AsyncTransport, Health

if TYPE_CHECKING:
    from typing_extensions import Unpack


class AsyncClient:
    """As Client, with await: asks one server; many tasks of one event loop may share it.

        async with AsyncClient("localhost:8001") as client:
            answer = await client.generate("def main(")
            async with client.stream("def main(") as stream:
                async for delta in stream: ...
                answer = await stream.result

    Arguments and errors are those of Client.
    """

    def __init__(
        self,
        url: str = "localhost:8001",
        *,
        model: str | None = None,
        timeout_s: float | None = 300.0,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        tls: Tls | None = None,
        metrics_url: str | None = None,
        max_message_bytes: int | None = None,
        retry: Retry = Retry(),  # noqa: B008, it is frozen
        transport: AsyncTransport | None = None,
        sleep: Callable[[float], Awaitable[object]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._endpoint: Endpoint = endpoint(
            url,
            api_key=api_key,
            headers=headers,
            tls=tls,
            metrics_url=metrics_url,
            max_message_bytes=max_message_bytes,
        )
        self._calls = Calls(model, timeout_s, Terms(retry, clock, random.random))
        self._closing = asyncio.Event()
        self._sleep: Callable[[float], Awaitable[object]] = sleep or self._sleep_until_closed
        self._transport: AsyncTransport = transport or connect_async(self._endpoint)
        self._metadata: Metadata | None = None

    def __repr__(self) -> str:
        return f"AsyncClient({self._endpoint.url!r})"

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def generate(
        self, prompt: Prompt, *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> Generation:
        """Return the whole answer to a prompt, given as text, as token ids or as messages."""
        async with self._ask(prompt, options, timeout_s, stream=False) as stream:
            return await stream.result

    def stream(
        self, prompt: Prompt, *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> AsyncStream:
        """Return the answer as a stream of deltas; all errors come while iterating."""
        return self._ask(prompt, options, timeout_s, stream=True)

    async def chat(
        self, messages: Sequence[Message], *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> Generation:
        """Return the whole answer to a conversation; the server applies the model's chat template."""
        return await self.generate(checked_messages(messages), timeout_s=timeout_s, **options)

    async def generate_many(
        self,
        prompts: Iterable[Prompt],
        *,
        concurrency: int = 8,
        on_answer: OnAnswer = ignore,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> list[Generation]:
        """Return the answers in the prompts' order, `concurrency` of them under way at a time."""
        ask = [lambda p=p: self._ask(p, options, timeout_s, stream=False) for p in prompts]
        return await ask_many_async(ask, concurrency, on_answer)

    async def tokenize(self, prompt: Prompt, *, timeout_s: float | None = None) -> tuple[int, ...]:
        """Return the token ids of a text or a conversation, as the server reads them."""
        answer = await self.generate(prompt, timeout_s=timeout_s, max_tokens=0, return_prompt_ids=True)
        return answer.prompt_ids

    async def health(self, *, canary: bool = True, timeout_s: float = HEALTH_TIMEOUT_S) -> Health:
        """Return how the server is; all False when none answers."""
        deadline, name = self._calls.begin_question(timeout_s), self._calls.models[0]
        try:
            name = (await self._find_model(deadline)).model
        except CallFailed as error:
            health = await self._transport.health(name, deadline.left_s())
            return with_canary(health, error) if canary else health
        health = await self._transport.health(name, deadline.left_s())
        if not (canary and health.live):
            return health
        try:
            await self.generate(CANARY, timeout_s=deadline.left_s(), **CANARY_OPTIONS)
        except CallFailed as error:
            return with_canary(health, error)
        return with_canary(health, None)

    async def is_ready(self) -> bool:
        """Whether server and model say that they are ready; `health` asks for proof."""
        health = await self.health(canary=False)
        return health.ready and health.model_ready

    async def metadata(self, *, timeout_s: float | None = None) -> Metadata:
        """Return what the server says of itself and of the model; asked once."""
        return await self._described(self._calls.begin(timeout_s))

    async def metrics(self, *, timeout_s: float = HEALTH_TIMEOUT_S) -> Metrics:
        """Return the server's counters, Triton's own and those of its models."""
        return parse_metrics(await self._transport.metrics(self._calls.begin_question(timeout_s).left_s()))

    async def close(self) -> None:
        """Close the connection; answers still under way are cancelled."""
        self._calls.closed = True
        self._closing.set()
        await self._transport.close()

    async def _sleep_until_closed(self, seconds: float) -> None:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._closing.wait(), seconds)

    def _ask(self, prompt: Prompt, options: Options, timeout_s: float | None, *, stream: bool) -> AsyncStream:
        async def begin() -> Answer:
            deadline = self._calls.begin(timeout_s)
            metadata = await self._described(deadline)
            streams = stream or self._endpoint.always_streams
            return self._calls.answer(prompt, options, metadata, deadline, stream=streams)

        return AsyncStream(begin, self._transport, self._sleep)

    async def _described(self, deadline: Deadline) -> Metadata:
        attempt = 1
        while self._metadata is None:
            try:
                self._metadata = await self._find_model(deadline)
            except CallFailed as error:
                wait_s = self._calls.terms.wait_s(error, attempt, deadline)
                if wait_s is None:
                    raise
                await self._sleep(wait_s)
                attempt += 1
        return self._metadata

    async def _find_model(self, deadline: Deadline) -> Metadata:
        for name in self._calls.models:
            try:
                return await self._transport.metadata(name, deadline.left_s())
            except RequestRefused as error:
                refused = error
                if not is_unknown(error):
                    raise
        raise no_model(self._calls.models, refused)
