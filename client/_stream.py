"""An answer that is coming."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType

from trtspec.client._answer import Answer
from trtspec.client._errors import CallFailed
from trtspec.client._results import Delta, Generation
from trtspec.client._transport import AsyncResponses, AsyncTransport, Transport


class Stream:
    """An answer that is coming: iterate over its deltas, then read `result`.

    A context manager: leaving it early cancels what the server is still doing. One thread iterates;
    `close` may be called from any.
    """

    def __init__(self, answer: Answer, transport: Transport, sleep: Callable[[float], object]) -> None:
        self._answer = answer
        self._transport = transport
        self._sleep = sleep
        self._responses = transport.stream(answer.request())

    @property
    def request_id(self) -> str:
        return self._answer.request_id

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Delta:
        """Return what the next response adds; responses that add nothing are passed over.

        Raises:
            CallFailed: what ended the answer; again when called again.
        """
        while not self._answer.over:
            try:
                response = next(self._responses, None)
            except CallFailed as error:
                self._ask_again(self._answer.failed(error))
                continue
            delta = self._answer.take(response)
            if delta is not None:
                return delta
        self._answer.raise_failure()
        raise StopIteration

    @property
    def result(self) -> Generation:
        """The whole answer; waits for what has not come yet.

        After an early close, what had come, with the finish reason "cancelled".
        """
        for _ in self:
            pass
        return self._answer.result

    def close(self) -> None:
        """Cancel what the server is still doing. Returns at once; does nothing after the end."""
        self._answer.closed = True
        self._responses.close()

    def _ask_again(self, wait_s: float) -> None:
        if self._answer.over:
            return
        self._sleep(wait_s)
        self._responses = self._transport.stream(self._answer.request())
        if self._answer.closed:  # in the meantime, by another thread, which closed what was there before
            self._responses.close()


class AsyncStream:
    """As Stream, with `async with`, `async for` and `await stream.result`.

    One task iterates; the request goes out when it asks for the first delta.
    """

    def __init__(
        self,
        begin: Callable[[], Awaitable[Answer]],
        transport: AsyncTransport,
        sleep: Callable[[float], Awaitable[object]],
    ) -> None:
        self._begin = begin
        self._transport = transport
        self._sleep = sleep
        self._answer: Answer | None = None
        self._responses: AsyncResponses | None = None
        self._closed = False

    @property
    def request_id(self) -> str:
        """The id that the server's log has for it; "" until the request has gone out."""
        return self._answer.request_id if self._answer else ""

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> Delta:
        """Return what the next response adds; errors as for Stream."""
        if self._answer is None:
            if self._closed:
                raise StopAsyncIteration
            self._answer = await self._begin()
        answer = self._answer
        answer.closed = self._closed
        while not answer.over:
            if self._responses is None:
                self._responses = self._transport.stream(answer.request())
                if self._closed:
                    self._responses.close()
            try:
                response = await anext(self._responses, None)
            except CallFailed as error:
                wait_s = answer.failed(error)
                self._responses = None
                await self._sleep(0 if answer.over else wait_s)
                continue
            delta = answer.take(response)
            if delta is not None:
                return delta
        answer.raise_failure()
        raise StopAsyncIteration

    @property
    async def result(self) -> Generation:
        """The whole answer; waits for what has not come yet."""
        async for _ in self:
            pass
        return self._answer.result if self._answer else Generation("", finish_reason="cancelled")

    async def close(self) -> None:
        """Cancel what the server is still doing; does nothing after the end."""
        self._closed = True
        if self._answer is not None:
            self._answer.closed = True
        if self._responses is not None:
            self._responses.close()
