"""What is asked of the engine and what comes back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .errors import RequestError
from .sampling import SamplingParams

FinishReason = Literal["length", "end_id", "stop_words", "verified", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt to continue, or draft tokens to verify.

    With draft tokens the answer is what one pass yields: the accepted ones and one token of the
    target's, as TensorRT-LLM ends such a request after its verification. Without, decoding goes on
    until an end is met.

    Args:
        input_ids: the prompt, not empty.
        max_new_tokens: upper bound of the output; accepted draft tokens count towards it.
        draft_ids: proposed continuation, verified in one pass.
        draft_logits: raw logits [k, V] the draft tokens were drawn from, for rejection sampling;
            None accepts a draft token that equals the target's own choice.
        end_id: ends the output and is part of it.
        stop_words: id sequences; the output ends with the first that it contains.
        return_log_probs: log-softmax of the raw logits at each new token.
        return_generation_logits: the raw logits row each new token was chosen from.
        streaming: one chunk per step; else one at the end.
    """

    input_ids: Sequence[int]
    max_new_tokens: int
    draft_ids: Sequence[int] = ()
    draft_logits: NDArray[np.float32] | None = None
    end_id: int | None = None
    stop_words: tuple[tuple[int, ...], ...] = ()
    sampling: SamplingParams = field(default_factory=SamplingParams)
    return_log_probs: bool = False
    return_generation_logits: bool = False
    streaming: bool = False


@dataclass(frozen=True, slots=True)
class Chunk:
    """What a step adds to an answer; log-probs and logits line up with the ids where they were asked for."""

    ids: list[int]
    log_probs: list[float] | None = None
    logits: NDArray[np.float32] | None = None
    finish_reason: FinishReason | None = None
    error: RequestError | None = None

    @property
    def finished(self) -> bool:
        """Whether this is the last chunk of its answer."""
        return self.finish_reason is not None or self.error is not None


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine was made for."""

    # Columns of the logits; the model itself may know fewer ids, the first of them.
    vocab_size: int
    known_ids: int
    max_seq_len: int
    max_batch_size: int
    max_draft_len: int


def check(request: Request, limits: Limits) -> None:
    """Raise a RequestError that names every fault of the request."""
    faults = [
        *_length_faults(request, limits),
        *_id_faults(request, limits),
        *_sampling_faults(request, limits),
    ]
    if faults:
        raise RequestError("; ".join(faults))


def _length_faults(request: Request, limits: Limits) -> list[str]:
    faults = []
    prompt, new, draft = len(request.input_ids), request.max_new_tokens, len(request.draft_ids)
    if not prompt:
        faults.append("input_ids is empty, expected at least one id")
    if new < 1:
        faults.append(f"request_output_len is {new}, expected at least 1")
    if draft > limits.max_draft_len:
        faults.append(f"{draft} draft tokens, the engine was made for at most {limits.max_draft_len}")
    if prompt + max(new, draft) > limits.max_seq_len:
        faults.append(
            f"{prompt} prompt ids and {max(new, draft)} more exceed max_seq_len {limits.max_seq_len}; "
            "shorten the prompt or ask for fewer tokens"
        )
    if request.draft_logits is not None and request.draft_logits.shape != (draft, limits.vocab_size):
        shape = list(request.draft_logits.shape)
        faults.append(f"draft_logits is {shape}, expected [{draft}, {limits.vocab_size}]")
    return faults


def _id_faults(request: Request, limits: Limits) -> list[str]:
    faults = []
    named: list[tuple[str, Sequence[int], int]] = [
        ("input_ids", request.input_ids, limits.known_ids),
        ("draft_input_ids", request.draft_ids, limits.known_ids),
        ("end_id", () if request.end_id is None else (request.end_id,), limits.vocab_size),
        *(("stop_words_list", word, limits.vocab_size) for word in request.stop_words),
        *(("bad_words_list", word, limits.vocab_size) for word in request.sampling.bad_words),
    ]
    for name, ids, size in named:
        outside = [token for token in ids if not 0 <= token < size]
        if outside:
            faults.append(f"{name} holds {outside[0]}, the vocabulary is 0..{size - 1}")
    for name, words in (
        ("stop_words_list", request.stop_words),
        ("bad_words_list", request.sampling.bad_words),
    ):
        if not all(words):
            faults.append(f"{name} holds an empty word")
    return faults


def _sampling_faults(request: Request, limits: Limits) -> list[str]:
    params = request.sampling
    faults = []

    def need(holds: bool, name: str, value: object, expected: str) -> None:
        if not holds:
            faults.append(f"{name} is {value}, expected {expected}")

    temperature, top_p, top_k = params.temperature, params.top_p, params.top_k
    need(temperature is None or 0 <= temperature < math.inf, "temperature", temperature, "0 or more")
    need(top_p is None or 0 < top_p <= 1, "runtime_top_p", top_p, "a value in (0, 1]")
    need(top_k is None or top_k >= 0, "runtime_top_k", top_k, "0 (all) or more")
    need(
        0 < params.repetition_penalty < math.inf,
        "repetition_penalty",
        params.repetition_penalty,
        "more than 0",
    )
    for name in ("presence_penalty", "frequency_penalty"):
        value = getattr(params, name)
        need(math.isfinite(value), name, value, "a number")
    need(0 <= params.seed < 2**64, "seed", params.seed, "an unsigned 64-bit number")
    for name in ("min_tokens", "prompt_ignore_length"):
        need(getattr(params, name) >= 0, name, getattr(params, name), "0 or more")
    bias = params.embedding_bias
    if bias is not None:
        need(bias.shape == (limits.vocab_size,), "embedding_bias", list(bias.shape), f"[{limits.vocab_size}]")
        need(
            not bool(np.isnan(bias).any() or (bias == np.inf).any()),
            "embedding_bias",
            "NaN or infinite",
            "numbers",
        )
    return faults
