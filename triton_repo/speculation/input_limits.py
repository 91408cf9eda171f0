"""How much text a request may bring, so that none makes the others wait.

What is numbers is bounded by the engine: ids by the tokens it holds, γ by what it was built for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .request import RequestError

# More than any text needs on average; a longer prompt could not fit and is not worth tokenising.
MAX_BYTES_PER_TOKEN = 64
MAX_WORDS = {
    "stop_words": 32,
    "bad_words": 256,
    "embedding_bias_words": 1024,
}
MAX_WORD_BYTES = 256


def check_sizes(array: Callable[[str], Any], max_seq_len: int) -> None:
    """Raise RequestError for text that is too much; `array` returns an input by name, or None."""
    faults = [*_long_prompts(array, max_seq_len), *_many_words(array)]
    if faults:
        raise RequestError("; ".join(faults))


def _long_prompts(array: Callable[[str], Any], max_seq_len: int) -> Iterator[str]:
    limit = MAX_BYTES_PER_TOKEN * max_seq_len
    for name in ("text_input", "messages"):
        texts = array(name)
        size = 0 if texts is None else sum(map(len, texts))
        if size > limit:
            yield f"{name} has {size} bytes, the limit is {limit}; the engine holds {max_seq_len} tokens"


def _many_words(array: Callable[[str], Any]) -> Iterator[str]:
    for name, limit in MAX_WORDS.items():
        words = array(name)
        if words is None:
            continue
        if len(words) > limit:
            yield f"{name} has {len(words)} entries, the limit is {limit}; leave some out"
        longest = max(map(len, words), default=0)
        if longest > MAX_WORD_BYTES:
            yield f"{name} has one of {longest} bytes, the limit is {MAX_WORD_BYTES}; shorten it"
