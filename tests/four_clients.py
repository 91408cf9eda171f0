"""One face for the four ways to ask a server, so that each test of an answer holds for all of them.

`asking("async http", script)` serves a script over HTTP and gives an AsyncClient whose methods are
called as a Client's: every `await` is waited for here.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from scripted_http_server import serving_http
from scripted_server import Asked, ScriptedServer
from triton_models_double import TRTSPEC, Model

from trtspec.client import AsyncClient, AsyncStream, Client, Delta

WAYS = ("grpc", "http", "async grpc", "async http")
# Longer than anything here takes, shorter than anyone waits for a hang.
PATIENCE_S = 30
# Times that are up soon; a longer one where a slow machine has not come so far in the one before.
SOON_S = (0.3, 3, 20)


@contextmanager
def asking(
    way: str,
    script: Callable[[Asked], Iterable[Any]],
    *,
    models: Sequence[Model] = (TRTSPEC,),
    **options: Any,
) -> Iterator[tuple[Any, Any]]:
    """Give the server and a client for it; `options` are the client's."""
    with ExitStack() as stack:
        server: Any = stack.enter_context(
            serving_http(script, models=models) if "http" in way else ScriptedServer(script, models=models)
        )
        yield server, stack.enter_context(client_for(way, server.url, **options))


@contextmanager
def client_for(way: str, url: str, **options: Any) -> Iterator[Any]:
    if not way.startswith("async"):
        with Client(url, **options) as client:
            yield client
        return
    with running_loop() as run:
        driven = Driven(AsyncClient(url, **options), run)
        try:
            yield driven
        finally:
            driven.close()


@contextmanager
def running_loop() -> Iterator[Callable[[Coroutine[Any, Any, Any]], Any]]:
    """Give what runs a coroutine in an event loop of a thread, and waits for it."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield lambda work: asyncio.run_coroutine_threadsafe(work, loop).result(PATIENCE_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class Driven:
    """An AsyncClient that is called without await."""

    def __init__(self, client: AsyncClient, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._client = client
        self._run = run

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args, **options: self._run(getattr(self._client, name)(*args, **options))

    def __repr__(self) -> str:
        return repr(self._client)

    def stream(self, *args: Any, **options: Any) -> DrivenStream:
        return DrivenStream(self._client.stream(*args, **options), self._run)


class DrivenStream:
    """An AsyncStream that is iterated without await."""

    def __init__(self, stream: AsyncStream, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._stream = stream
        self._run = run

    def __enter__(self) -> DrivenStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> DrivenStream:
        return self

    def __next__(self) -> Delta:
        async def step() -> Delta | None:
            return await anext(self._stream, None)

        delta = self._run(step())
        if delta is None:
            raise StopIteration
        return delta

    @property
    def result(self) -> Any:
        async def wait() -> Any:
            return await self._stream.result

        return self._run(wait())

    @property
    def request_id(self) -> str:
        return self._stream.request_id

    def close(self) -> None:
        self._run(self._stream.close())
