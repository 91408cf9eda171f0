"""What a caller may ask for, and the tensors it becomes.

The tensors are those of NVIDIA's `tensorrt_llm_bls` (TensorRT-LLM 1.2.1), plus `input_ids`. Only what
was given is sent: the server's defaults hold for the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from trtspec.client._errors import InvalidArgument

Prompt = str | Sequence[int]
Words = str | Sequence[str]
Array = NDArray[Any]

DEFAULT_MAX_TOKENS = 128


class Options(TypedDict, total=False):
    """The keyword arguments of `Client.generate` and `Client.stream`; all may be left out.

    Greedy unless `temperature`, `top_k` or `top_p` is given. A string in place of several words is
    one word.
    """

    # Tokens to generate at most; 128.
    max_tokens: int
    # γ, the tokens drafted ahead; the answer does not depend on it. 0: without a draft.
    num_draft_tokens: int
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
    # Accept by the ratio of probabilities in place of exact match.
    use_draft_logits: bool


_WORDS = ("stop_words", "bad_words")
_SCALARS: dict[str, type[np.generic]] = {
    **dict.fromkeys(("max_tokens", "num_draft_tokens", "end_id", "min_tokens", "top_k"), np.int32),
    **dict.fromkeys(("temperature", "top_p"), np.float32),
    **dict.fromkeys(("repetition_penalty", "presence_penalty", "frequency_penalty"), np.float32),
    "seed": np.uint64,
    **dict.fromkeys(("return_log_probs", "use_draft_logits"), np.bool_),
}


def tensors(prompt: Prompt, options: Options, *, stream: bool) -> dict[str, Array]:
    """Return the inputs of one request, each with the leading batch dimension of 1.

    Raises:
        TypeError: for an option there is not, as Python does.
        InvalidArgument: for a value that the option's tensor cannot hold.
    """
    given: dict[str, Any] = {"max_tokens": DEFAULT_MAX_TOKENS, **options}
    if unknown := sorted(given.keys() - Options.__annotations__.keys()):
        raise TypeError(
            f"no such option: {', '.join(unknown)}; there are {', '.join(Options.__annotations__)}"
        )
    # The prompt is never echoed: the caller has it.
    inputs = {"stream": np.array([[stream]]), "exclude_input_in_output": np.array([[True]])}
    inputs |= _prompt(prompt)
    for name, value in given.items():
        if name == "embedding_bias":
            inputs |= _bias(name, value)
        else:
            inputs[name] = _words(name, value) if name in _WORDS else _scalar(name, value)
    # No words are as good as words not given, and Triton takes no tensor without elements.
    return {name: array for name, array in inputs.items() if array.size}


def _prompt(prompt: Prompt) -> dict[str, Array]:
    if isinstance(prompt, str):
        return {"text_input": _words("prompt", prompt)}
    ids = np.asarray(prompt)
    if ids.ndim != 1 or not ids.size or ids.dtype.kind not in "iu":
        raise InvalidArgument(f"prompt: found {prompt!r:.60}, expected a string or some token ids")
    if ids.min() < 0 or ids.max() > np.iinfo(np.int32).max:
        raise InvalidArgument(
            f"prompt: found token ids from {ids.min()} to {ids.max()}, expected 0 to {np.iinfo(np.int32).max}"
        )
    return {"input_ids": ids.astype(np.int32)[None]}


def _scalar(name: str, value: object) -> Array:
    return np.array([[_checked(name, value, _SCALARS[name])]], _SCALARS[name])


def _bias(name: str, value: object) -> dict[str, Array]:
    if not isinstance(value, Mapping):
        raise InvalidArgument(f"{name}: found {value!r:.60}, expected words with their weights")
    weights = [_checked(name, weight, np.float32) for weight in value.values()]
    return {
        "embedding_bias_words": _words(name, list(value)),
        "embedding_bias_weights": np.array([weights], np.float32),
    }


def _checked(name: str, value: object, dtype: type[np.generic]) -> object:
    """Return the value if the dtype can hold it; numpy would wrap, cut or convert some that it cannot."""
    is_bool = isinstance(value, bool | np.bool_)
    if issubclass(dtype, np.bool_):
        fits, expected = is_bool, "True or False"
    elif issubclass(dtype, np.floating):
        fits, expected = isinstance(value, int | float | np.number) and not is_bool, "a number"
    else:
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max  # type: ignore[type-var]
        fits = isinstance(value, int | np.integer) and not is_bool and bool(low <= value <= high)
        expected = f"a whole number from {low} to {high}"
    if not fits:
        raise InvalidArgument(f"{name}: found {value!r:.60}, expected {expected}")
    return value


def _words(name: str, value: object) -> Array:
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, Collection) or not all(isinstance(word, str) for word in words):
        raise InvalidArgument(f"{name}: found {value!r:.60}, expected a string or some strings")
    try:
        return np.array([[word.encode() for word in words]], dtype=object)
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"{name}: found {error.object[error.start]!r} at character {error.start}, which is no text "
            "(a lone surrogate, as from bytes that were not UTF-8); decode the bytes first"
        ) from None
