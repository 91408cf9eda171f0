"""What a served model is compared with: a model that is trusted, and its tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trtspec.choices import Dtype
from trtspec.client._options import Message
from trtspec.client.verify.findings import Finding

# Rows over the vocabulary, for several positions.
Rows = NDArray[np.floating[Any]]


class Reference(Protocol):
    """A causal language model that reads, and does not generate.

    It is given prompt and served tokens together and says, in one pass, what it would have said
    after each of them (teacher forcing).
    """

    @property
    def name(self) -> str: ...

    @property
    def about(self) -> Mapping[str, str]:
        """What identifies it: versions, hashes, how it computes."""
        ...

    def proofs(self) -> Iterable[Finding]:
        """Return what it can show for itself before it judges."""
        ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def arithmetic(self) -> Dtype:
        """What it computes in: float32, or fp8 where it rounds as an FP8 engine does."""
        ...

    @property
    def layers(self) -> int: ...

    @property
    def width(self) -> int:
        """The size of its hidden states."""
        ...

    @property
    def end_ids(self) -> frozenset[int]:
        """The tokens after which it stops."""
        ...

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return the ids of a text, with the special tokens of a prompt or without."""
        ...

    @property
    def bos_id(self) -> int | None: ...

    def render(self, messages: Sequence[Message]) -> list[int] | None:
        """Return the ids of a conversation by its own chat template; None when it has none."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str: ...

    def logits(self, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> Rows:
        """Return its logits at each position of the answer and after it, shape [n + 1, vocab_size]."""
        ...
