"""What the public model is asked for, as a value that has been checked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .draft_table import DraftTokens, longest, read_draft_tokens

# As a request's or the repository's number of draft tokens: choose it for every round.
ADAPTIVE = -1


class RequestError(ValueError):
    """A request that cannot be served as asked; its message goes to the caller."""


@dataclass(frozen=True)
class Limits:
    """What the engines behind the loop can carry. Lengths in tokens."""

    vocab_size: int
    max_seq_len: int
    draft_max_seq_len: int
    max_draft_len: int
    default_draft_len: DraftTokens

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> Limits:
        """Read the parameters of the repository's public model."""
        default = settings["num_draft_tokens"]
        return cls(
            vocab_size=int(settings["vocab_size"]),
            max_seq_len=int(settings["max_seq_len"]),
            draft_max_seq_len=int(settings["draft_max_seq_len"]),
            max_draft_len=int(settings["max_draft_len"]),
            default_draft_len=ADAPTIVE if default == "auto" else read_draft_tokens(default),
        )


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen; None leaves the choice to the engine's default.

    Greedy when nothing is set, when temperature is 0 or when top_k is 1.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    # Added to the logits, shape [vocab_size], float32.
    bias_V: NDArray[np.float32] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()

    def faults(self) -> Iterator[str]:
        """Yield what no engine can do, in the public model's names."""
        ranges: tuple[tuple[str, float | None, float, float], ...] = (
            ("temperature", self.temperature, 0, math.inf),
            ("top_k", self.top_k, 0, math.inf),
            ("top_p", self.top_p, 1e-6, 1),
            ("repetition_penalty", self.repetition_penalty, 1e-6, math.inf),
            ("presence_penalty", self.presence_penalty, -math.inf, math.inf),
            ("frequency_penalty", self.frequency_penalty, -math.inf, math.inf),
        )
        if self.bias_V is not None and not (self.bias_V < math.inf).all():
            yield "embedding_bias_weights add up to NaN or infinity for a token, expected numbers"
        for name, value, low, high in ranges:
            if value is not None and not (low <= value <= high and math.isfinite(value)):
                bounds = [f"{word} {bound:g}" for word, bound in (("at least", low), ("at most", high))]
                expected = ["a finite number", *(text for text in bounds if "inf" not in text)]
                yield f"{name} is {value}, expected {', '.join(expected)}"

    @property
    def greedy(self) -> bool:
        nothing_set = self.temperature is None and self.top_k is None and self.top_p is None
        return nothing_set or self.temperature == 0 or self.top_k == 1


@dataclass(frozen=True)
class GenerationRequest:
    """One prompt and everything that shapes its answer."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    num_draft_tokens: DraftTokens
    eos_ids: tuple[int, ...]
    min_tokens: int = 0
    stop_strings: tuple[str, ...] = ()
    sampling: Sampling = field(default_factory=Sampling)
    use_draft_logits: bool = False
    return_log_probs: bool = False
    return_logits: bool = False
    return_prompt_ids: bool = False
    # Text put before the first delta: the prompt, when the caller wants it echoed.
    echo: str = ""

    def check(self, limits: Limits) -> None:
        """Raise RequestError for what no engine behind these limits can serve."""
        # Whoever asks for no tokens wants the prompt's, however many they are.
        length = len(self.prompt_ids) + self.max_tokens if self.max_tokens else 0
        outside = [i for i in self.prompt_ids if not 0 <= i < limits.vocab_size]
        ends = [i for i in self.eos_ids if i >= limits.vocab_size]
        checks = (
            (not self.prompt_ids, "the prompt has no tokens; send text_input, input_ids or messages"),
            (
                bool(outside),
                f"input_ids: {len(outside)} ids outside the vocabulary of {limits.vocab_size}, "
                f"first {outside[:1]}",
            ),
            (self.max_tokens < 0, f"max_tokens is {self.max_tokens}; it must be at least 0"),
            (
                length > limits.max_seq_len,
                f"prompt of {len(self.prompt_ids)} tokens + max_tokens {self.max_tokens} = {length}, "
                f"the engine holds {limits.max_seq_len}; shorten the prompt or lower max_tokens",
            ),
            (
                not 0 <= self.min_tokens <= max(self.max_tokens, 0),
                f"min_tokens is {self.min_tokens}; it must lie between 0 and max_tokens {self.max_tokens}",
            ),
            (
                not ADAPTIVE <= longest(self.num_draft_tokens) <= limits.max_draft_len,
                f"num_draft_tokens is {self.num_draft_tokens}; the engine was built for 0 to "
                f"{limits.max_draft_len}, and {ADAPTIVE} adapts",
            ),
            (bool(ends), f"end_id is outside the vocabulary of {limits.vocab_size}: {ends[:1]}"),
            ("" in self.stop_strings, "stop_words holds an empty string; leave it out"),
        )
        faults = [message for wrong, message in checks if wrong]
        faults += self.sampling.faults()
        if faults:
            raise RequestError("; ".join(faults))
