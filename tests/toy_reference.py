"""Doubles of a reference: small enough to be right by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtspec.client import Message
from trtspec.client.verify import Dtype, Finding

END = 0
VOCAB = 7


class ToyReference:
    """The next token is a function of the sum of all before it; its margin is 0.5 logits."""

    name = "toy"
    about: dict[str, str] = {"computes": "by hand"}  # noqa: RUF012
    vocab_size = VOCAB
    layers = 1
    width = 1
    arithmetic: Dtype = "float32"
    end_ids = frozenset({END})
    runner_up = 0.5
    bos_id: int | None = None

    def __init__(self) -> None:
        self.passes = 0

    def next_token(self, ids: Sequence[int]) -> int:
        return (3 * sum(ids) + len(ids)) % VOCAB

    def proofs(self) -> list[Finding]:
        return []

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return ["·abcdef".find(letter) % VOCAB for letter in text]

    def render(self, messages: Sequence[Message]) -> list[int] | None:
        return None

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join("·abcdef"[i] for i in token_ids)

    def logits(self, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> NDArray[np.floating[Any]]:
        self.passes += 1
        rows = np.zeros((len(answer_ids) + 1, VOCAB))
        for n, row in enumerate(rows):
            token = self.next_token([*prompt_ids, *answer_ids[:n]])
            row[token], row[(token + 1) % VOCAB] = 1.0, self.runner_up
        return rows

    def answer(self, prompt: str, max_tokens: int) -> list[int]:
        """Its greedy answer, one token after the other."""
        ids: list[int] = []
        while len(ids) < max_tokens and END not in ids:
            ids.append(self.next_token([*self.encode(prompt), *ids]))
        return ids


class UndecidedReference(ToyReference):
    """Its choice and its runner-up always tie."""

    runner_up = 1 - 1e-9
