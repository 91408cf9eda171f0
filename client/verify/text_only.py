"""Servers that send text and no token ids, as NVIDIA's `tensorrt_llm_bls` does.

A text does not say which tokens it was made of. It is read along the reference: as long as the ids of
the encoded text are its choices, they stand; where they are not, the reference's own choice, or one
within the noise of it, is taken if it spells the served text. Only where none does have the two
parted. What such a server cannot be held to: log-probs, sampling (a distribution over tokens), and
the tokens after the last whole character.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trtspec.client.verify.reference import Reference
from trtspec.dtype_noise import Noise

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
_SPARE = 8


def ids_of_text(
    reference: Reference, noise: Noise, prompt: str, prompt_ids: Sequence[int], text: str
) -> list[int]:
    """Return ids that spell a served text, the reference's own choices wherever those do."""
    prompt_text = reference.decode(prompt_ids)
    text = text.rstrip(INCOMPLETE)

    def spelled(ids: Sequence[int]) -> str:
        return reference.decode([*prompt_ids, *ids])[len(prompt_text) :].rstrip(INCOMPLETE)

    def rest_of(ids: list[int]) -> list[int]:
        known = [*prompt_ids, *ids]
        joint = reference.encode(prompt + text)
        if joint[: len(known)] == known:
            return joint[len(known) :]
        return reference.encode(text[len(spelled(ids)) :], special=False)

    ids: list[int] = []
    # Every token but the last few brings a byte at least.
    while len(spelled(ids)) < len(text) and len(ids) < len(text.encode()) + _SPARE:
        tail = rest_of(ids)
        rows = reference.logits(prompt_ids, [*ids, *tail])[len(ids) :]
        choices = rows.argmax(-1).tolist()
        agreed = next((n for n, i in enumerate(tail) if i != choices[n]), len(tail))
        ids += tail[:agreed]
        if agreed == len(tail):
            break
        row_V = rows[agreed]
        near = np.flatnonzero(row_V >= row_V.max() - noise.bound(row_V))
        by_rank = near[np.argsort(-row_V[near])].tolist()
        fitting = (i for i in by_rank if text.startswith(spelled([*ids, i])) and reference.decode([i]))
        adopted = next(fitting, None)
        if adopted is None:
            return [*ids, *tail[agreed:]]
        ids.append(adopted)
    return ids
