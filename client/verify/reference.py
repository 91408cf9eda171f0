"""What a served model is compared with: a model that is trusted, and its tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from trtspec.client._options import Message
from trtspec.client.verify.findings import Finding

# fp8: FP8 products in a bfloat16 computation, as on GPUs; fp8-float32: in one of float32, as on the cpu
# runtime.
Dtype = Literal["float32", "float16", "bfloat16", "fp8", "fp8-float32"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)


def served_dtype(dtype: Literal["float32", "float16", "bfloat16"], *, quantized: bool) -> Dtype:
    """Return what an engine of a dtype computes in, its matrices in FP8 where it is quantised."""
    if not quantized:
        return dtype
    return "fp8-float32" if dtype == "float32" else "fp8"


# A row over the vocabulary, and rows for several positions.
Row = NDArray[np.floating[Any]]
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
