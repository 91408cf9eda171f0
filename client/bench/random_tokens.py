"""Prompts of random token ids, for load tests; they say nothing of acceptance."""

from __future__ import annotations

import numpy as np

from trtspec.client._errors import InvalidArgument

# Special tokens are mostly the first and the last ids of a vocabulary.
_FIRST = 16
SMALL_VOCABULARY = 1000
WHY_NO_ACCEPTANCE = (
    "acceptance is not reported: the prompts are random tokens, and what a model makes of them is no text "
    "that a draft was trained for; ask with --prompts"
)


def random_prompts(
    count: int, tokens: int, *, seed: int, vocabulary: int = SMALL_VOCABULARY
) -> tuple[tuple[int, ...], ...]:
    """Return so many prompts of so many token ids, from the vocabulary without its first and last ids."""
    if count < 1 or tokens < 1:
        raise InvalidArgument(f"random tokens: found {count} prompts of {tokens}, expected at least 1 of 1")
    if vocabulary <= 3 * _FIRST:
        raise InvalidArgument(f"random tokens: found a vocabulary of {vocabulary}, expected a larger one")
    ids = np.random.default_rng(seed).integers(_FIRST, vocabulary - _FIRST, (count, tokens))
    return tuple(tuple(row) for row in ids.tolist())
