"""An asynchronous transport over a plain one: what would block is a thread's.

HTTP/1.1 needs a connection for each answer under way, so that a thread for each adds little. For
hundreds of answers at a time gRPC is the better way: one connection, no threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from trtspec.client._metadata import Metadata
from trtspec.client._transport import Health, InferRequest, InferResponse, Responses, Transport

_T = TypeVar("_T")

# Answers under way at a time; more wait for their turn.
THREADS = 256


class ThreadedTransport:
    """Carries requests over another transport."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="trtspec-client")

    def stream(self, request: InferRequest) -> ThreadedResponses:
        return ThreadedResponses(self._transport.stream(request), self._pool)

    async def metadata(self, model: str, timeout_s: float | None) -> Metadata:
        return await self._run(lambda: self._transport.metadata(model, timeout_s))

    async def health(self, model: str, timeout_s: float | None) -> Health:
        return await self._run(lambda: self._transport.health(model, timeout_s))

    async def metrics(self, timeout_s: float | None) -> str:
        return await self._run(lambda: self._transport.metrics(timeout_s))

    async def close(self) -> None:
        # The threads end with the pool, which streams that are being ended still need.
        self._transport.close()

    async def _run(self, ask: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, ask)


class ThreadedResponses:
    """The responses of one call."""

    def __init__(self, responses: Responses, pool: ThreadPoolExecutor) -> None:
        self._responses = responses
        self._pool = pool

    def __aiter__(self) -> ThreadedResponses:
        return self

    async def __anext__(self) -> InferResponse:
        loop = asyncio.get_running_loop()
        response = await loop.run_in_executor(self._pool, next, self._responses, None)
        if response is None:
            raise StopAsyncIteration
        return response

    def close(self) -> None:
        self._responses.close()
