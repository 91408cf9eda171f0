"""A running server, asked for `trtspec tune`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trtspec.errors import ClientError

if TYPE_CHECKING:
    from trtspec.build.tune.fitting import Sample, Setting
    from trtspec.client import Client


def ask(client: Client, prompts: Sequence[str], max_tokens: int, setting: Setting) -> Sample:
    """Ask all prompts, so many at a time, and return what came."""
    from trtspec.build.tune.fitting import Sample

    length = setting.num_draft_tokens
    started = time.perf_counter()
    answers = client.generate_many(
        prompts, concurrency=setting.concurrency, max_tokens=max_tokens, num_draft_tokens=length
    )
    seconds = time.perf_counter() - started
    known = [answer.speculation for answer in answers if answer.speculation]
    if len(known) < len(answers):
        raise ClientError("tune: the server does not say how many draft tokens it kept; ask one of trtspec")
    for speculation in known:
        if length and speculation.off_reason:
            raise ClientError(f"tune: the server went on without its draft: {speculation.off_reason}")
    return Sample(
        tokens=sum(len(answer.token_ids) for answer in answers),
        seconds=seconds,
        kept=tuple((speculation.rounds, *speculation.accepted_per_position) for speculation in known),
    )


def longest_draft(client: Client, prompt: str, most: int) -> int:
    """Return the largest number of draft tokens, up to `most`, that the server's engines take.

    Raises RequestRefused where it takes not even one.
    """
    from trtspec.client import RequestRefused

    length = most
    while True:
        try:
            client.generate(prompt, max_tokens=1, num_draft_tokens=length)
        except RequestRefused:
            if length == 1:
                raise
            length -= 1
        else:
            return length
