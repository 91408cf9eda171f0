"""Tensors of the public model to values, and back.

Names, types and shapes: `trtspec.triton_repo.contract`. Every tensor here has a leading batch
dimension of 1.
"""

from __future__ import annotations

import json
import secrets
from typing import Any

import numpy as np
import triton_python_backend_utils as pb
from numpy.typing import NDArray

from .call_times import CallTimes
from .chat import Chat
from .input_limits import check_sizes
from .loop import Speculation
from .output import Delta, Output
from .request import GenerationRequest, Limits, RequestError, Sampling
from .tokenizer import Tokenizer

# Inputs of NVIDIA's public model that ask for more than text in, text out: refused, never ignored.
UNSUPPORTED = (
    *("decoder_text_input", "image_input", "image_bytes_input", "image_url_input", "video_bytes_input"),
    *("prompt_embedding_table", "prompt_vocab_size", "prompt_table_extra_id", "lora_task_id"),
    *("lora_weights", "lora_config", "guided_decoding_guide_type", "guided_decoding_guide"),
    "length_penalty",
)
ONLY_FALSE = ("return_context_logits", "return_perf_metrics")
ONLY_ONE = ("beam_width", "num_return_sequences")
# What may stand beside the tensors. Triton's HTTP frontend puts every key there that is no input, so
# that an option we do not know, or one misspelt, would be ignored; forwarded headers arrive there too.
NO_OPTIONS = {
    *("id", "model", "priority", "timeout", "sequence_id", "sequence_start", "sequence_end"),
    *("authorization", "traceparent", "tracestate"),
}


class Inputs:
    """The tensors of one request, by name; an absent one is None."""

    def __init__(self, request: Any) -> None:
        self._request = request

    def array(self, name: str) -> NDArray[Any] | None:
        tensor = pb.get_input_tensor_by_name(self._request, name)
        return None if tensor is None else tensor.as_numpy().reshape(-1)

    def integer(self, name: str) -> int | None:
        value = self.array(name)
        return None if value is None else int(value[0])

    def real(self, name: str) -> float | None:
        value = self.array(name)
        return None if value is None else float(value[0])

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.array(name)
        return default if value is None else bool(value[0])

    def unknown_options(self) -> list[str]:
        """Return the names of what was sent beside the tensors as if it were an option."""
        beside = json.loads(self._request.parameters() or "{}")
        return sorted(name for name in beside if name not in NO_OPTIONS and "-" not in name)

    def texts(self, name: str) -> tuple[str, ...]:
        value = self.array(name)
        try:
            return () if value is None else tuple(item.decode() for item in value)
        except UnicodeDecodeError as error:
            raise RequestError(f"{name}: not UTF-8 text ({error.reason})") from error


def read_request(
    inputs: Inputs,
    tokenizer: Tokenizer,
    chat: Chat,
    limits: Limits,
    eos_ids: tuple[int, ...],
    excludes_input: bool,
) -> GenerationRequest:
    """Return the checked request; RequestError for what cannot be served."""
    _refuse_unsupported(inputs)
    check_sizes(inputs.array, limits.max_seq_len)
    text, prompt_ids = _read_prompt(inputs, tokenizer, chat)
    echoes = not inputs.flag("exclude_input_in_output", excludes_input)
    max_tokens = inputs.integer("max_tokens")
    if max_tokens is None:
        # Triton counts required inputs and does not look at their names.
        raise RequestError("max_tokens is missing; say how many tokens to generate at most")
    end_id = inputs.integer("end_id")
    if end_id is not None:
        eos_ids = (end_id,) if end_id >= 0 else ()
    num_draft_tokens = inputs.integer("num_draft_tokens")
    request = GenerationRequest(
        prompt_ids=prompt_ids,
        max_tokens=max_tokens,
        num_draft_tokens=limits.default_draft_len if num_draft_tokens is None else num_draft_tokens,
        eos_ids=eos_ids,
        min_tokens=inputs.integer("min_tokens") or 0,
        stop_strings=inputs.texts("stop_words"),
        sampling=_read_sampling(inputs, tokenizer, limits),
        use_draft_logits=inputs.flag("use_draft_logits"),
        return_log_probs=inputs.flag("return_log_probs"),
        return_logits=inputs.flag("return_generation_logits"),
        return_prompt_ids=inputs.flag("return_prompt_ids"),
        echo=(tokenizer.decode(prompt_ids) if text is None else text) if echoes else "",
    )
    request.check(limits)
    return request


def _read_prompt(inputs: Inputs, tokenizer: Tokenizer, chat: Chat) -> tuple[str | None, tuple[int, ...]]:
    """Return the prompt's text, None where it came as ids, and its ids."""
    texts, conversations = inputs.texts("text_input"), inputs.texts("messages")
    ids = inputs.array("input_ids")
    if bool(texts) + bool(conversations) + (ids is not None) != 1:
        raise RequestError("exactly one of text_input, input_ids and messages must be given")
    if ids is not None:
        return None, tuple(ids.tolist())
    if conversations:
        text = chat.prompt(conversations[0])
        return text, tokenizer.encode(text, special_tokens=False)
    return texts[0], tokenizer.encode(texts[0])


def _refuse_unsupported(inputs: Inputs) -> None:
    asked = [name for name in UNSUPPORTED if inputs.array(name) is not None]
    asked += [name for name in ONLY_FALSE if inputs.flag(name)]
    asked += [name for name in ONLY_ONE if (inputs.integer(name) or 1) != 1]
    asked += inputs.unknown_options()
    if asked:
        raise RequestError(f"not supported by this model: {', '.join(asked)}; leave them out")


def _read_sampling(inputs: Inputs, tokenizer: Tokenizer, limits: Limits) -> Sampling:
    seed = inputs.integer("seed")
    return Sampling(
        temperature=inputs.real("temperature"),
        top_k=inputs.integer("top_k"),
        top_p=inputs.real("top_p"),
        repetition_penalty=inputs.real("repetition_penalty"),
        presence_penalty=inputs.real("presence_penalty"),
        frequency_penalty=inputs.real("frequency_penalty"),
        # One seed for the whole answer: engines derive each position's randomness from it.
        seed=secrets.randbits(63) if seed is None else seed,
        bias_V=_read_bias(inputs, tokenizer, limits),
        bad_words=tuple(ids for word in inputs.texts("bad_words") for ids in tokenizer.word_variants(word)),
    )


def _read_bias(inputs: Inputs, tokenizer: Tokenizer, limits: Limits) -> NDArray[np.float32] | None:
    words, weights = inputs.texts("embedding_bias_words"), inputs.array("embedding_bias_weights")
    count = 0 if weights is None else len(weights)
    if len(words) != count:
        raise RequestError(
            f"embedding_bias_words has {len(words)} entries, embedding_bias_weights {count}; "
            "give one weight for each word"
        )
    if weights is None or not words:
        return None
    bias_V = np.zeros(limits.vocab_size, np.float32)
    for word, weight in zip(words, weights, strict=True):
        ids = {i for variant in tokenizer.word_variants(word) for i in variant}
        bias_V[list(ids)] += weight
    return bias_V


def delta_tensors(delta: Delta, request: GenerationRequest, cum_log_prob: float) -> list[Any]:
    """Return what a response carries of the answer; `cum_log_prob` is that of all tokens up to here."""
    tensors = [
        _text("text_output", delta.text),
        pb.Tensor("output_ids", np.array([[token.id for token in delta.tokens]], np.int32)),
    ]
    if delta.finish_reason:
        tensors += [_text("finish_reason", delta.finish_reason), _text("stop_reason", delta.stop_reason)]
    if request.return_log_probs:
        log_probs = np.array([[[token.log_prob for token in delta.tokens]]], np.float32)
        tensors.append(pb.Tensor("output_log_probs", log_probs))
        tensors.append(pb.Tensor("cum_log_probs", np.array([[cum_log_prob]], np.float32)))
    if request.return_logits and delta.tokens:
        rows = [token.logits_V for token in delta.tokens if token.logits_V is not None]
        tensors.append(pb.Tensor("generation_logits", np.stack(rows)[None, None].astype(np.float32)))
    return tensors


def usage_tensors(
    request: GenerationRequest, output: Output, speculation: Speculation, times: CallTimes
) -> list[Any]:
    """Return what the last response says about the whole answer."""
    rate = speculation.accepted / speculation.proposed if speculation.proposed else 0.0
    counts = {
        "num_input_tokens": len(request.prompt_ids),
        "num_output_tokens": output.num_tokens,
        "num_rounds": speculation.rounds,
        "total_draft_tokens": speculation.proposed,
        "total_accepted_draft_tokens": speculation.accepted,
    }
    lists = {
        "proposed_per_position": speculation.proposed_per_position,
        "accepted_per_position": speculation.accepted_per_position,
        **({"prompt_ids": request.prompt_ids} if request.return_prompt_ids else {}),
    }
    return [
        *(_scalar(name, value, np.int32) for name, value in counts.items()),
        *(pb.Tensor(name, np.array([values], np.int32)) for name, values in lists.items()),
        *(_scalar(name, nanoseconds, np.int64) for name, nanoseconds in times.nanoseconds().items()),
        _scalar("acceptance_rate", rate, np.float32),
        _text("speculation_off_reason", speculation.off_reason),
    ]


def _scalar(name: str, value: object, dtype: type[np.generic]) -> Any:
    return pb.Tensor(name, np.array([[value]], dtype))


def _text(name: str, value: str) -> Any:
    return pb.Tensor(name, np.array([[value.encode()]], np.object_))
