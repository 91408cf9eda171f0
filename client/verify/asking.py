"""Many questions to a server, a bounded number at a time, answers in the order of the questions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from trtspec.client._client import Client
from trtspec.client._many import under_way
from trtspec.client._options import Options, Prompt
from trtspec.client._results import Generation


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
    client.metadata()  # not in a thread of theirs, which an interrupt does not reach
    begin = [partial(client.stream, question.prompt, **question.options) for question in questions]
    with under_way(begin, concurrency) as answers:
        for answer in answers:
            yield answer.result()
