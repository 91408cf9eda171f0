"""What a benchmark is held against: another Triton, or a server with OpenAI's API."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trtspec.client.bench.targets import Target
    from trtspec.engines.pair import EnginePair


def target_at(url: str, *, model: str | None, pair: EnginePair | None) -> Target:
    """Return the server at an address: one with OpenAI's API or a Triton, whichever it is.

    Args:
        model: to ask of a server with OpenAI's API; its only one where None.
        pair: whose tokenizer counts for a server that does not.
    """
    if address := openai_address(url):
        from trtspec.client.bench.openai import OpenAiTarget
        from trtspec.client.bench.openai_call import API_KEY

        key = os.environ.get(API_KEY) or None
        count = token_counter(pair) if pair else None
        return OpenAiTarget(address, model=model, api_key=key, count_tokens=count)
    from trtspec.client.bench.targets import TritonTarget

    return TritonTarget(url)


def openai_address(url: str) -> str | None:
    """Return the address of OpenAI's API that is meant, as http://host:8000/v1; None for a Triton's.

    With a path it is that; without one, the server is asked what it is.
    """
    scheme, _, rest = url.partition("://")
    if scheme not in ("http", "https"):
        return None
    if "/" in rest.rstrip("/"):
        return url
    from trtspec.client.bench.openai_probe import find_openai

    return find_openai(url)


def token_counter(pair: EnginePair) -> Callable[[str], int]:
    """Return a function that counts a text's tokens as the pair's tokenizer cuts it."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(pair.tokenizer / "tokenizer.json"))
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)
