"""Many answers, some of them under way at a time, in the order they were asked for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager

from trtspec.client._errors import InvalidArgument
from trtspec.client._results import Generation
from trtspec.client._stream import AsyncStream, Stream

OnAnswer = Callable[[int, Generation], object]


def ignore(number: int, answer: Generation) -> None:
    """Do nothing with an answer."""


@contextmanager
def under_way(ask: Sequence[Callable[[], Stream]], concurrency: int) -> Iterator[list[Future[Generation]]]:
    """Yield the answers as they will be; what has not ended when the block does is cancelled.

    Raises:
        InvalidArgument: when the concurrency is none.
    """
    _check(concurrency)
    stopping = threading.Event()
    open_streams: set[Stream] = set()

    def whole(begin: Callable[[], Stream]) -> Generation:
        with begin() as stream:
            open_streams.add(stream)
            if stopping.is_set():
                stream.close()
            try:
                return stream.result
            finally:
                open_streams.discard(stream)

    with ThreadPoolExecutor(concurrency, thread_name_prefix="generate_many") as pool:
        try:
            yield [pool.submit(whole, begin) for begin in ask]
        finally:
            stopping.set()
            pool.shutdown(wait=False, cancel_futures=True)
            for stream in list(open_streams):
                stream.close()


def ask_many(ask: Sequence[Callable[[], Stream]], concurrency: int, on_answer: OnAnswer) -> list[Generation]:
    """Return all answers; when one fails, or the caller is interrupted, the others are cancelled."""
    with under_way(ask, concurrency) as answers:
        numbers = {answer: number for number, answer in enumerate(answers)}
        for done in as_completed(numbers):
            on_answer(numbers[done], done.result())
        return [answer.result() for answer in answers]


async def ask_many_async(
    ask: Sequence[Callable[[], AsyncStream]], concurrency: int, on_answer: OnAnswer
) -> list[Generation]:
    """As `ask_many`, with tasks."""
    _check(concurrency)
    places = asyncio.Semaphore(concurrency)

    async def whole(number: int) -> Generation:
        async with places, ask[number]() as stream:
            answer = await stream.result
            on_answer(number, answer)
            return answer

    tasks = [asyncio.create_task(whole(number)) for number in range(len(ask))]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        # Each closes its stream on the way out; their errors are those of the cancellation.
        await asyncio.gather(*tasks, return_exceptions=True)


def _check(concurrency: int) -> None:
    if concurrency < 1:
        raise InvalidArgument(f"concurrency: found {concurrency}, expected at least 1")
