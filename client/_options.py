"""What a caller may ask for, and the tensors it becomes.

The tensors are those of NVIDIA's `tensorrt_llm_bls` (TensorRT-LLM 1.2.1), plus `input_ids`, `messages`
and `return_prompt_ids`. Only what was given is sent: the server's defaults hold for the rest.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

from trtspec.choices import AUTO
from trtspec.client._errors import InvalidArgument
from trtspec.prompts import Message as Message

# Text, token ids, or a conversation, to which the server applies the model's chat template.
Prompt = str | Sequence[int] | Sequence[Message]
Words = str | Sequence[str]
Array = NDArray[Any]

DEFAULT_MAX_TOKENS = 128


class Options(TypedDict, total=False):
    """The keyword arguments of `Client.generate` and `Client.stream`; all may be left out.

    Greedy unless `temperature`, `top_k` or `top_p` is given. A string in place of several words is
    one word.
    """

    # Tokens to generate at most; 128. 0: only read the prompt.
    max_tokens: int
    # γ, the tokens drafted ahead; the answer does not depend on it. 0: without a draft; "auto": as many
    # as pay, by what the server sees being accepted.
    num_draft_tokens: int | Literal["auto"]
    # Strings that end the answer, left out of it.
    stop_words: Words
    # Strings that must not be generated.
    bad_words: Words
    # A token id that ends the answer, in place of the model's own.
    end_id: int
    # Neither a stop string nor the end token counts before that many tokens.
    min_tokens: int
    temperature: float
    top_k: int
    top_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    # Same seed, same sampled answer.
    seed: int
    # Word -> what is added to the logits of its tokens.
    embedding_bias: Mapping[str, float]
    return_log_probs: bool
    # The target's raw logits at every token; over gRPC only.
    return_generation_logits: bool
    # Accept by the ratio of probabilities in place of exact match.
    use_draft_logits: bool
    # The prompt's token ids, as the server reads them.
    return_prompt_ids: bool
    # Counts and times from a server of NVIDIA's; ours gives them unasked.
    return_perf_metrics: bool


_WORDS = ("stop_words", "bad_words")
_SCALARS: dict[str, type[np.generic]] = {
    **dict.fromkeys(("max_tokens", "num_draft_tokens", "end_id", "min_tokens", "top_k"), np.int32),
    **dict.fromkeys(("temperature", "top_p"), np.float32),
    **dict.fromkeys(("repetition_penalty", "presence_penalty", "frequency_penalty"), np.float32),
    "seed": np.uint64,
    **dict.fromkeys(("return_log_probs", "return_generation_logits", "use_draft_logits"), np.bool_),
    **dict.fromkeys(("return_prompt_ids", "return_perf_metrics"), np.bool_),
}
_TRITON_TYPES: dict[type[np.generic], str] = {
    np.int32: "INT32",
    np.uint64: "UINT64",
    np.float32: "FP32",
    np.bool_: "BOOL",
}
# Every input that a request may have, with Triton's name of its type.
DATATYPES: dict[str, str] = {
    **{name: _TRITON_TYPES[dtype] for name, dtype in _SCALARS.items()},
    **dict.fromkeys((*_WORDS, "text_input", "messages", "embedding_bias_words"), "BYTES"),
    "input_ids": "INT32",
    "embedding_bias_weights": "FP32",
    **dict.fromkeys(("stream", "exclude_input_in_output"), "BOOL"),
}


def tensors(prompt: Prompt, options: Options, *, stream: bool) -> dict[str, Array]:
    """Return what a request says, as one-dimensional arrays by name.

    Raises:
        TypeError: for an option there is not, as Python does.
        InvalidArgument: for a value that the option's tensor cannot hold.
    """
    given: dict[str, Any] = {"max_tokens": DEFAULT_MAX_TOKENS, **options}
    if unknown := sorted(given.keys() - Options.__annotations__.keys()):
        raise TypeError(
            f"no such option: {', '.join(unknown)}; there are {', '.join(Options.__annotations__)}"
        )
    if given.get("num_draft_tokens") == "auto":
        given["num_draft_tokens"] = AUTO
    # The prompt is never echoed: the caller has it.
    inputs = {"stream": np.array([stream]), "exclude_input_in_output": np.array([True])}
    inputs |= _prompt(prompt)
    for name, value in given.items():
        if name == "embedding_bias":
            inputs |= _bias(name, value)
        else:
            inputs[name] = _words(name, value) if name in _WORDS else _scalar(name, value)
    # No words are as good as words not given, and Triton takes no tensor without elements.
    return {name: array for name, array in inputs.items() if array.size}


def _prompt(prompt: object) -> dict[str, Array]:
    if isinstance(prompt, str):
        return {"text_input": _words("prompt", prompt)}
    if isinstance(prompt, Sequence) and prompt and all(isinstance(turn, Mapping) for turn in prompt):
        return {"messages": _messages(prompt)}
    ids = np.asarray(prompt)
    if ids.ndim != 1 or not ids.size or ids.dtype.kind not in "iu":
        raise InvalidArgument(
            f"prompt: found {prompt!r:.60}, expected a string, some token ids, or some messages"
        )
    if ids.min() < 0 or ids.max() > np.iinfo(np.int32).max:
        raise InvalidArgument(
            f"prompt: found token ids from {ids.min()} to {ids.max()}, expected 0 to {np.iinfo(np.int32).max}"
        )
    return {"input_ids": ids.astype(np.int32)}


def _messages(messages: Sequence[Mapping[str, object]]) -> Array:
    for number, message in enumerate(messages):
        if set(message) != {"role", "content"} or not all(isinstance(v, str) for v in message.values()):
            raise InvalidArgument(
                f"messages[{number}]: found {dict(message)!r:.60}, expected the strings role and content"
            )
        _words(f"messages[{number}]", list(message.values()))
    return _words("messages", json.dumps([dict(message) for message in messages], ensure_ascii=False))


def _scalar(name: str, value: object) -> Array:
    return np.array([_checked(name, value, _SCALARS[name])], _SCALARS[name])


def _bias(name: str, value: object) -> dict[str, Array]:
    if not isinstance(value, Mapping):
        raise InvalidArgument(f"{name}: found {value!r:.60}, expected words with their weights")
    weights = [_checked(name, weight, np.float32) for weight in value.values()]
    return {
        "embedding_bias_words": _words(name, list(value)),
        "embedding_bias_weights": np.array(weights, np.float32),
    }


def _checked(name: str, value: object, dtype: type[np.generic]) -> object:
    """Return the value if the dtype can hold it; numpy would wrap, cut or convert some that it cannot."""
    is_bool = isinstance(value, bool | np.bool_)
    if issubclass(dtype, np.bool_):
        fits, expected = is_bool, "True or False"
    elif issubclass(dtype, np.floating):
        is_number = isinstance(value, int | float | np.integer | np.floating) and not is_bool
        # JSON has neither infinity nor nan, and no model a use for them.
        fits, expected = is_number and _is_finite(value, dtype), "a finite number"
    else:
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max  # type: ignore[type-var]
        fits = isinstance(value, int | np.integer) and not is_bool and bool(low <= value <= high)
        expected = f"a whole number from {low} to {high}"
    if not fits:
        raise InvalidArgument(f"{name}: found {value!r:.60}, expected {expected}")
    return value


def _is_finite(value: Any, dtype: type[np.floating[Any]]) -> bool:
    return math.isfinite(value) and abs(value) <= np.finfo(dtype).max


def _words(name: str, value: object) -> Array:
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, Collection) or not all(isinstance(word, str) for word in words):
        raise InvalidArgument(f"{name}: found {value!r:.60}, expected a string or some strings")
    try:
        return np.array([word.encode() for word in words], dtype=object)
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"{name}: found {error.object[error.start]!r} at character {error.start}, which is no text "
            "(a lone surrogate, as from bytes that were not UTF-8); decode the bytes first"
        ) from None
