"""Doubles of servers that sample from a small exact model: one that is right, and wrong ones.

The model is a table: the logits after a token. The draft has another table. Draft tokens are accepted
by the ratio of probabilities (Leviathan et al. 2023), in rounds, as a server of ours does it.
"""

from __future__ import annotations

import math
import random
from bisect import bisect
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import accumulate
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trtspec.client import Client, InferRequest, InferResponse, Message, MockTransport
from trtspec.client.verify import Dtype, Finding

VOCAB = 12
_RNG = np.random.default_rng(5)
TARGET = _RNG.normal(0, 1.3, (VOCAB, VOCAB))
DRAFT = TARGET + _RNG.normal(0, 0.9, (VOCAB, VOCAB))

Fault = Literal[
    "",
    "accept always",
    "wrong residual",
    "same seed every round",
    "temperature ignored",
    "top-p for the draft only",
    "seed ignored",
    "one seed for requests without",
]
Key = tuple[float, int, float]


class TableReference:
    """The target's table as a reference."""

    name = "table"
    about: dict[str, str] = {}  # noqa: RUF012
    vocab_size = VOCAB
    layers = 1
    width = 1
    arithmetic: Dtype = "float32"
    end_ids: frozenset[int] = frozenset()
    bos_id: int | None = None

    def proofs(self) -> list[Finding]:
        return []

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return [ord(letter) % VOCAB for letter in text]

    def render(self, messages: Sequence[Message]) -> list[int] | None:
        return None

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join("abcdefghijkl"[i] for i in token_ids)

    def logits(self, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> NDArray[np.floating[Any]]:
        return TARGET[[prompt_ids[-1], *answer_ids]]


@cache
def distribution(model: Literal["target", "draft"], token: int, warp: Key) -> tuple[float, ...]:
    """Probabilities after a token; written without the module under test."""
    temperature, top_k, top_p = warp
    row = (TARGET if model == "target" else DRAFT)[token]
    weights = [math.exp(value / temperature) for value in row]
    order = sorted(range(VOCAB), key=lambda i: -weights[i])[: top_k or VOCAB]
    total, mass, kept = sum(weights[i] for i in order), 0.0, []
    for i in order:
        kept.append(i)
        mass += weights[i] / total
        if mass >= top_p:
            break
    total = sum(weights[i] for i in kept)
    return tuple(weights[i] / total if i in kept else 0.0 for i in range(VOCAB))


def draw(p: Sequence[float], u: float) -> int:
    sums = list(accumulate(p))
    return min(bisect(sums, u * sums[-1]), VOCAB - 1)


def continuation(
    prompt: int, tokens: int, drafts: int, target: Key, draft: Key, seed: int, fault: Fault
) -> list[int]:
    rng = random.Random(seed)
    ids = [prompt]
    while len(ids) <= tokens:
        if fault == "same seed every round":
            rng = random.Random(seed)
        ids += speculative_round(rng, ids[-1], drafts, target, draft, fault)
    return ids[1 : tokens + 1]


def speculative_round(
    rng: random.Random, token: int, drafts: int, target: Key, draft: Key, fault: Fault
) -> list[int]:
    kept: list[int] = []
    for _ in range(drafts):
        p, q = distribution("target", token, target), distribution("draft", token, draft)
        proposed = draw(q, rng.random())
        if fault != "accept always" and rng.random() * q[proposed] >= p[proposed]:
            left_over = [max(0.0, a - b) for a, b in zip(p, q, strict=True)]
            return [*kept, draw(p if fault == "wrong residual" else left_over, rng.random())]
        kept.append(token := proposed)
    return [*kept, draw(distribution("target", token, target), rng.random())]


class SamplingServer:
    """A handler of MockTransport, with a fault or none."""

    def __init__(self, fault: Fault = "", seed: int = 0) -> None:
        self._fault = fault
        self._own_seeds = random.Random(seed)

    def client(self) -> Client:
        return Client(transport=MockTransport(self))

    def __call__(self, request: InferRequest) -> Iterator[InferResponse]:
        inputs = {name: array.ravel()[0] for name, array in request.inputs.items()}
        fault = self._fault
        warp = (float(inputs["temperature"]), int(inputs.get("top_k", 0)), float(inputs.get("top_p", 1)))
        if fault == "temperature ignored":
            warp = (1.0, *warp[1:])
        target = (*warp[:2], 1.0) if fault == "top-p for the draft only" else warp
        seed = int(inputs["seed"]) if "seed" in inputs else self._own_seeds.getrandbits(63)
        if fault == "seed ignored" or (fault == "one seed for requests without" and "seed" not in inputs):
            seed = 4
        last = int(request.inputs["input_ids"].ravel()[-1])
        drafts, tokens = int(inputs["num_draft_tokens"]), int(inputs["max_tokens"])
        ids = continuation(last, tokens, drafts, target, warp, seed, fault)
        yield InferResponse({"output_ids": np.array([ids], np.int32)}, final=True)
