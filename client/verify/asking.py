"""Many questions to a server, a bounded number at a time, answers in the order of the questions."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from trtspec.client._client import Client
from trtspec.client._options import Options, Prompt
from trtspec.client._results import Generation
from trtspec.client._stream import Stream


@dataclass(frozen=True)
class Question:
    """A prompt, and how it is asked."""

    prompt: Prompt
    options: Options = field(default_factory=lambda: Options())


def ask(client: Client, questions: Sequence[Question], concurrency: int) -> Iterator[Generation]:
    """Yield the answers in order.

    When one fails, or the caller stops taking them, what is under way is cancelled.

    Raises:
        CallFailed: when an answer did not come.
    """
    stopping = threading.Event()
    under_way: set[Stream] = set()

    def serve(question: Question) -> Generation:
        with client.stream(question.prompt, **question.options) as stream:
            under_way.add(stream)
            if stopping.is_set():
                stream.close()
            try:
                return stream.result
            finally:
                under_way.discard(stream)

    with ThreadPoolExecutor(concurrency, thread_name_prefix="verify") as pool:
        answers: list[Future[Generation]] = [pool.submit(serve, question) for question in questions]
        try:
            for answer in answers:
                yield answer.result()
        finally:
            stopping.set()
            pool.shutdown(wait=False, cancel_futures=True)
            for stream in list(under_way):
                stream.close()
