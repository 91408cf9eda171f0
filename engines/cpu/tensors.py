"""Requests and answers as the tensors of TensorRT-LLM's `tensorrt_llm` Triton model.

Plain numpy on both sides, so that it can be tested without a server. Each row of the leading batch
dimension is a request of its own; scalars come as [1] or [1, 1].
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from .errors import RequestError
from .request import Chunk, Request
from .sampling import SamplingParams

Array = NDArray[Any]
T = TypeVar("T")

# Optional inputs that are accepted only at a value at which they change nothing.
_INERT = {
    "beam_width": 1,
    "num_return_sequences": 1,
    "return_context_logits": False,
    "return_perf_metrics": False,
    "return_num_input_tokens": False,
    "return_num_output_tokens": False,
    "return_kv_cache_reuse_stats": False,
    "stop": False,
}

_KNOWN = frozenset(
    {
        "input_ids",
        "input_lengths",
        "request_output_len",
        "draft_input_ids",
        "draft_logits",
        "end_id",
        "pad_id",  # an answer is as long as it is, so nothing is ever padded
        "stop_words_list",
        "bad_words_list",
        "embedding_bias",
        "temperature",
        "runtime_top_k",
        "runtime_top_p",
        "seed",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "prompt_ignore_length",
        "min_tokens",
        "return_log_probs",
        "return_generation_logits",
        "exclude_input_in_output",
        "streaming",
    }
)


def split_rows(tensors: Mapping[str, Array]) -> list[Mapping[str, Array]]:
    """Return the tensors of each row; every tensor must have as many rows as `input_lengths`."""
    count = tensors["input_lengths"].size if "input_lengths" in tensors else 1
    if count == 1:
        return [tensors]
    faults = [f"{name} has {len(array)}" for name, array in tensors.items() if len(array) != count]
    if faults:
        raise RequestError(f"input_lengths has {count} rows, {', '.join(faults)}")
    return [{name: array[i : i + 1] for name, array in tensors.items()} for i in range(count)]


def join_rows(rows: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Return the outputs of several rows as those of one response; tokens are padded with zeros."""
    if len(rows) == 1:
        return dict(rows[0])
    joined = {}
    for name in rows[0]:
        arrays = [row[name] for row in rows]
        shape = np.max([array.shape for array in arrays], axis=0)
        joined[name] = np.zeros((len(rows), *shape[1:]), arrays[0].dtype)
        for i, array in enumerate(arrays):
            joined[name][(i, *map(slice, array.shape[1:]))] = array[0]
    return joined


def read_request(tensors: Mapping[str, Array]) -> Request:
    """Return the request the tensors make; an input that would have to be ignored is refused by name."""
    _refuse_unsupported(tensors)
    draft_logits = tensors.get("draft_logits")
    sampling = SamplingParams(
        temperature=_optional(tensors, "temperature", float),
        top_k=_optional(tensors, "runtime_top_k", int),
        top_p=_optional(tensors, "runtime_top_p", float),
        seed=_scalar(tensors, "seed", int, 0),
        repetition_penalty=_scalar(tensors, "repetition_penalty", float, 1.0),
        presence_penalty=_scalar(tensors, "presence_penalty", float, 0.0),
        frequency_penalty=_scalar(tensors, "frequency_penalty", float, 0.0),
        prompt_ignore_length=_scalar(tensors, "prompt_ignore_length", int, 0),
        min_tokens=_scalar(tensors, "min_tokens", int, 0),
        bad_words=read_words(tensors, "bad_words_list"),
        embedding_bias=tensors["embedding_bias"].reshape(-1) if "embedding_bias" in tensors else None,
    )
    end_id = _scalar(tensors, "end_id", int, -1)
    return Request(
        input_ids=_prompt(tensors),
        max_new_tokens=_required(tensors, "request_output_len"),
        draft_ids=_ids(tensors, "draft_input_ids"),
        draft_logits=None if draft_logits is None else draft_logits.reshape(draft_logits.shape[-2:]),
        end_id=None if end_id == -1 else end_id,
        stop_words=read_words(tensors, "stop_words_list"),
        sampling=sampling,
        return_log_probs=flag(tensors, "return_log_probs"),
        return_generation_logits=flag(tensors, "return_generation_logits"),
        streaming=flag(tensors, "streaming"),
    )


def flag(tensors: Mapping[str, Array], name: str, default: bool = False) -> bool:
    """Return a BOOL scalar."""
    return _scalar(tensors, name, bool, default)


def read_words(tensors: Mapping[str, Array], name: str) -> tuple[tuple[int, ...], ...]:
    """Return the id sequences of a [2, n] word list: flat ids, and where each word ends, padded with -1."""
    if name not in tensors:
        return ()
    words = tensors[name].reshape(2, -1) if tensors[name].size % 2 == 0 else None
    if words is None:
        raise RequestError(f"{name} is {list(tensors[name].shape)}, expected [1, 2, n]")
    ids, ends = words.tolist()
    if -1 in ends:
        ends = ends[: ends.index(-1)]
    spans = list(zip([0, *ends], ends, strict=False))
    if any(not start < end <= len(ids) for start, end in spans):
        raise RequestError(f"{name} has offsets {ends}, expected them to rise within 1..{len(ids)}")
    return tuple(tuple(ids[start:end]) for start, end in spans)


class Reply:
    """Turns the chunks of one answer into output tensors; only those that were asked for are built.

    A streamed answer consists of the new tokens of each chunk. One that comes as a whole begins with
    the prompt unless `exclude_input`.
    """

    def __init__(self, request: Request, outputs: Collection[str], *, exclude_input: bool) -> None:
        self._outputs = outputs
        self._prefix = [] if exclude_input or request.streaming else list(request.input_ids)
        self._cum_log_prob = 0.0

    def tensors(self, chunk: Chunk) -> dict[str, Array]:
        """Return the outputs of a chunk by name."""
        ids = [*self._prefix, *chunk.ids]
        makers: dict[str, Callable[[], Array]] = {
            "output_ids": lambda: np.array([[ids]], dtype=np.int32),
            "sequence_length": lambda: np.array([[len(ids)]], dtype=np.int32),
        }
        if chunk.log_probs is not None:
            log_probs = chunk.log_probs
            self._cum_log_prob += sum(log_probs)
            makers["cum_log_probs"] = lambda: np.array([[self._cum_log_prob]], dtype=np.float32)
            makers["output_log_probs"] = lambda: np.array([[log_probs]], dtype=np.float32)
        if chunk.logits is not None:
            logits = chunk.logits
            makers["generation_logits"] = lambda: logits[None, None]
        return {name: make() for name, make in makers.items() if name in self._outputs}


def _refuse_unsupported(tensors: Mapping[str, Array]) -> None:
    faults = []
    for name in sorted(tensors.keys() - _KNOWN):
        if name not in _INERT:
            faults.append(f"{name} is not supported by the cpu engine; leave it out")
        elif (value := tensors[name].reshape(-1).tolist()) != [_INERT[name]]:
            faults.append(f"{name} is {value}, the cpu engine supports only {_INERT[name]}")
    if faults:
        raise RequestError("; ".join(faults))


def _prompt(tensors: Mapping[str, Array]) -> list[int]:
    ids = _ids(tensors, "input_ids")
    length = _required(tensors, "input_lengths")
    if not 0 <= length <= len(ids):
        raise RequestError(f"input_lengths is {length}, input_ids holds {len(ids)} ids")
    return ids[:length]


def _ids(tensors: Mapping[str, Array], name: str) -> list[int]:
    ids: list[int] = tensors[name].reshape(-1).tolist() if name in tensors else []
    return ids


def _required(tensors: Mapping[str, Array], name: str) -> int:
    value = _optional(tensors, name, int)
    if value is None:
        raise RequestError(f"{name} is missing")
    return value


def _optional(tensors: Mapping[str, Array], name: str, kind: Callable[[Any], T]) -> T | None:
    if name not in tensors:
        return None
    values = tensors[name].reshape(-1).tolist()
    if len(values) != 1:
        raise RequestError(f"{name} is {list(tensors[name].shape)}, expected one value")
    return kind(values[0])


def _scalar(tensors: Mapping[str, Array], name: str, kind: Callable[[Any], T], default: T) -> T:
    value = _optional(tensors, name, kind)
    return default if value is None else value
