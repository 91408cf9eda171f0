"""Calls of the engines to tensors, and their responses to replies. Plain numpy.

Names, types and shapes: `trtspec.triton_repo.contract`. Calls of different answers may travel as
rows of one request when all their tensors but the ids have the same shapes.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .loop import Call, Reply
from .request import GenerationRequest
from .runtime import Runtime

Array = NDArray[Any]


@dataclass(frozen=True)
class EngineRequest:
    """Inputs and requested outputs of one call; each input has a leading batch dimension of 1."""

    inputs: Mapping[str, Array]
    outputs: tuple[str, ...]

    @property
    def kind(self) -> Hashable:
        """What requests must have in common to travel as one."""
        inputs = self.inputs.items()
        shapes = [(name, array.shape) for name, array in inputs if name != "input_ids"]
        return (self.outputs, *shapes)


class EngineInputs:
    """Makes the requests of one answer."""

    def __init__(self, request: GenerationRequest, runtime: Runtime) -> None:
        self._runtime = runtime
        self._seed = None if request.sampling.greedy else request.sampling.seed
        self._shared = _shared_inputs(request, runtime)

    def of(self, call: Call) -> EngineRequest:
        length = len(call.input_ids)
        inputs = {
            **self._shared,
            "input_ids": call.input_ids[None],
            "input_lengths": _scalar(length, np.int32),
            "request_output_len": _scalar(call.max_new_tokens, np.int32),
        }
        if self._seed is not None:
            inputs["seed"] = _scalar(self._runtime.call_seed(self._seed, call.engine, length), np.uint64)
        if call.min_new_tokens:
            inputs["min_tokens"] = _scalar(call.min_new_tokens, np.int32)
        if call.draft_ids:
            inputs["draft_input_ids"] = np.array([call.draft_ids], np.int32)
        if call.draft_logits_KV is not None:
            inputs["draft_logits"] = call.draft_logits_KV[None]
        flags = {
            "return_log_probs": call.return_log_probs,
            "return_generation_logits": call.return_logits,
        }
        inputs |= {name: _TRUE for name, value in flags.items() if value}
        scores = (("output_log_probs",) if call.return_log_probs else ()) + (
            ("generation_logits",) if call.return_logits else ()
        )
        return EngineRequest(inputs, ("output_ids", "sequence_length", *scores))


def stack(requests: Sequence[EngineRequest]) -> dict[str, Array]:
    """Return requests of one kind as the rows of one; ids are padded with zeros behind `input_lengths`."""
    if len(requests) == 1:
        return dict(requests[0].inputs)
    stacked = {}
    for name in requests[0].inputs:
        rows = [request.inputs[name] for request in requests]
        stacked[name] = _pad(rows) if name == "input_ids" else np.concatenate(rows)
    return stacked


def read_replies(outputs: Mapping[str, Array]) -> list[Reply]:
    """Return what a response adds to each row of its request."""
    lengths = outputs["sequence_length"].reshape(-1).tolist()
    count = len(lengths)
    ids = outputs["output_ids"].reshape(count, -1).tolist()
    log_probs, logits = outputs.get("output_log_probs"), outputs.get("generation_logits")
    return [
        Reply(
            ids=ids[i][:length],
            log_probs=None if log_probs is None else log_probs.reshape(count, -1)[i, :length].tolist(),
            # Copied: the array lies in shared memory that goes with the response.
            logits_TV=None
            if logits is None
            else logits.reshape(count, -1, logits.shape[-1])[i, :length].copy(),
        )
        for i, length in enumerate(lengths)
    ]


def _shared_inputs(request: GenerationRequest, runtime: Runtime) -> dict[str, Array]:
    """Return the inputs that are the same in every call of an answer."""
    sampling = request.sampling
    penalised = sampling.presence_penalty or sampling.frequency_penalty
    prompt_length = len(request.prompt_ids) if penalised and runtime.knows_prompt_length else None
    values: list[tuple[str, object, type[np.generic]]] = [
        ("end_id", request.eos_ids[0] if request.eos_ids else None, np.int32),
        ("temperature", sampling.temperature, np.float32),
        ("runtime_top_k", sampling.top_k, np.int32),
        ("runtime_top_p", sampling.top_p, np.float32),
        ("repetition_penalty", sampling.repetition_penalty, np.float32),
        ("presence_penalty", sampling.presence_penalty, np.float32),
        ("frequency_penalty", sampling.frequency_penalty, np.float32),
        ("prompt_ignore_length", prompt_length, np.int32),
        ("exclude_input_in_output", True, np.bool_),
    ]
    inputs = {name: _scalar(value, dtype) for name, value, dtype in values if value is not None}
    # An engine knows one end token; the others end an answer as words of one token.
    other_ends = [(i,) for i in request.eos_ids[1:]]
    for name, words in (("stop_words_list", other_ends), ("bad_words_list", sampling.bad_words)):
        if words:
            inputs[name] = _word_list(words)[None]
    if sampling.bias_V is not None:
        inputs["embedding_bias"] = sampling.bias_V[None]
    return inputs


def _scalar(value: object, dtype: type[np.generic]) -> Array:
    return np.array([[value]], dtype)


def _word_list(words: Sequence[Sequence[int]]) -> NDArray[np.int32]:
    """Return TensorRT-LLM's layout, shape [2, n]: all ids in a row, and where each word ends."""
    flat = [i for word in words for i in word]
    ends = np.cumsum([len(word) for word in words])
    offsets = np.full(len(flat), -1, np.int32)
    offsets[: len(words)] = ends
    return np.array([flat, offsets], np.int32)


def _pad(rows: Sequence[Array]) -> Array:
    padded = np.zeros((len(rows), max(row.shape[1] for row in rows)), np.int32)
    for i, row in enumerate(rows):
        padded[i, : row.shape[1]] = row[0]
    return padded


_TRUE = _scalar(True, np.bool_)
