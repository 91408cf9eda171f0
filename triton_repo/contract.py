"""The tensors of the served models, as data.

Names, types, dims and flags are those of NVIDIA's templates for TensorRT-LLM 1.2
(`triton_backend/all_models/inflight_batcher_llm/{tensorrt_llm,tensorrt_llm_bls}/config.pbtxt`),
so that clients and engines of that recipe keep working. What trtspec adds stands apart, in `OUR_*`.
Dims are without the batch dimension, as in `config.pbtxt`.
"""

from __future__ import annotations

from dataclasses import dataclass

PUBLIC_MODEL = "tensorrt_llm_bls"
TARGET_MODEL = "tensorrt_llm"
DRAFT_MODEL = "tensorrt_llm_draft"


@dataclass(frozen=True)
class Tensor:
    """One input or output of a model."""

    name: str
    dtype: str
    dims: tuple[int, ...] = (1,)
    optional: bool = True
    ragged: bool = False
    # Triton hands the model a tensor without the last dimension: `reshape: { shape: [ ] }`.
    scalar: bool = False


def _scalars(dtype: str, *names: str, optional: bool = True) -> tuple[Tensor, ...]:
    return tuple(Tensor(name, dtype, optional=optional, scalar=True) for name in names)


def _ragged(dtype: str, dims: tuple[int, ...], *names: str) -> tuple[Tensor, ...]:
    return tuple(Tensor(name, dtype, dims, ragged=True) for name in names)


def _singles(dtype: str, *names: str) -> tuple[Tensor, ...]:
    return tuple(Tensor(name, dtype) for name in names)


def _outputs(dtype: str, dims: tuple[int, ...], *names: str) -> tuple[Tensor, ...]:
    return tuple(Tensor(name, dtype, dims, optional=False) for name in names)


LEAF_INPUTS = (
    *_scalars("INT32", "input_lengths", "request_output_len", optional=False),
    *_ragged("INT32", (-1,), "input_ids", "draft_input_ids", "decoder_input_ids"),
    *_ragged("FP32", (-1, -1), "draft_logits"),
    *_ragged("INT32", (2, -1), "stop_words_list", "bad_words_list"),
    *_ragged("FP32", (-1,), "embedding_bias"),
    *_scalars(
        "INT32",
        *("num_return_sequences", "decoder_input_lengths", "encoder_output_lengths", "end_id", "pad_id"),
        *("beam_width", "runtime_top_k", "runtime_top_p_reset_ids", "min_tokens", "prompt_vocab_size"),
    ),
    *_scalars(
        "FP32",
        *("draft_acceptance_threshold", "temperature", "runtime_top_p", "runtime_top_p_min"),
        *("runtime_top_p_decay", "len_penalty", "repetition_penalty", "beam_search_diversity_rate"),
        *("presence_penalty", "frequency_penalty"),
    ),
    *_scalars("UINT64", "seed", "lora_task_id"),
    *_scalars(
        "BOOL",
        *("early_stopping", "return_log_probs", "return_context_logits", "return_generation_logits"),
        *("return_perf_metrics", "return_num_input_tokens", "return_num_output_tokens"),
        *("exclude_input_in_output", "stop", "streaming"),
    ),
    *_ragged("FP16", (-1, -1), "encoder_input_features", "prompt_embedding_table", "lora_weights"),
    *_ragged("UINT64", (-1,), "prompt_table_extra_ids"),
    *_ragged("BOOL", (-1, -1), "cross_attention_mask"),
    Tensor("mrope_rotary_cos_sin", "FP32", (-1,)),
    Tensor("mrope_position_deltas", "INT64"),
    *_ragged("INT32", (-1, 3), "lora_config"),
    *_ragged("UINT8", (-1,), "context_phase_params"),
    *_ragged("BOOL", (1,), "skip_cross_attn_blocks"),
    *_ragged(
        "INT32",
        (-1,),
        *("retention_token_range_starts", "retention_token_range_ends"),
        *("retention_token_range_priorities", "retention_token_range_durations_ms"),
    ),
    *_ragged("INT32", (1,), "retention_decode_priority", "retention_decode_duration_ms"),
    *_ragged("STRING", (1,), "guided_decoding_guide_type", "guided_decoding_guide"),
    *_ragged(
        "INT32", (1,), "lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size"
    ),
)

# How many leading ids presence and frequency penalties do not count: TensorRT-LLM's sampling
# parameter of that name, which its Triton model does not expose.
OUR_LEAF_INPUTS = _scalars("INT32", "prompt_ignore_length")

# What every response may carry about the request, in both models.
_BOOKKEEPING = (
    *_outputs("INT32", (1,), "batch_index", "sequence_index"),
    *_outputs(
        "INT32", (1,), "kv_cache_alloc_new_blocks", "kv_cache_reused_blocks", "kv_cache_alloc_total_blocks"
    ),
    *_outputs(
        "INT64",
        (1,),
        *("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns"),
    ),
    *_outputs("FP32", (1,), "acceptance_rate"),
    *_outputs(
        "INT32",
        (1,),
        *("total_accepted_draft_tokens", "total_draft_tokens", "num_input_tokens", "num_output_tokens"),
    ),
)

_SCORES = (
    *_outputs("FP32", (-1,), "cum_log_probs"),
    *_outputs("FP32", (-1, -1), "output_log_probs", "context_logits"),
    *_outputs("FP32", (-1, -1, -1), "generation_logits"),
)

LEAF_OUTPUTS = (
    *_outputs("INT32", (-1, -1), "output_ids"),
    *_outputs("INT32", (-1,), "sequence_length"),
    *_SCORES,
    *_outputs("UINT8", (-1,), "context_phase_params"),
    *_BOOKKEEPING,
)

BLS_INPUTS = (
    Tensor("text_input", "STRING", optional=False),
    Tensor("max_tokens", "INT32", optional=False),
    *_singles("STRING", "decoder_text_input", "image_url_input"),
    Tensor("image_input", "FP16", (-1, 3, -1, -1)),
    Tensor("image_bytes_input", "UINT8", (-1, -1, -1, -1)),
    Tensor("video_bytes_input", "UINT8", (-1, -1, -1, -1)),
    Tensor("bad_words", "STRING", (-1,)),
    Tensor("stop_words", "STRING", (-1,)),
    *_singles("INT32", "end_id", "pad_id", "top_k", "min_tokens", "beam_width", "num_draft_tokens"),
    *_singles(
        "FP32",
        *("top_p", "temperature", "length_penalty", "repetition_penalty"),
        *("presence_penalty", "frequency_penalty"),
    ),
    *_singles("UINT64", "seed", "prompt_table_extra_id"),
    *_singles("BOOL", "exclude_input_in_output", "stream"),
    *_scalars("INT32", "num_return_sequences"),
    *_scalars(
        "BOOL",
        *("return_log_probs", "return_context_logits", "return_generation_logits", "use_draft_logits"),
        *("return_perf_metrics", "return_num_input_tokens", "return_num_output_tokens"),
    ),
    Tensor("prompt_embedding_table", "FP16", (-1, -1)),
    *_singles("INT32", "prompt_vocab_size"),
    Tensor("embedding_bias_words", "STRING", (-1,)),
    Tensor("embedding_bias_weights", "FP32", (-1,)),
    *_scalars("UINT64", "lora_task_id"),
    *_ragged("FP16", (-1, -1), "lora_weights"),
    *_ragged("INT32", (-1, 3), "lora_config"),
    *_singles("STRING", "guided_decoding_guide_type", "guided_decoding_guide"),
)

# Token ids, or a conversation as a JSON list of {role, content}, in place of text: `text_input` becomes
# optional, exactly one of the three is given.
OUR_BLS_INPUTS = (
    Tensor("input_ids", "INT32", (-1,)),
    Tensor("messages", "STRING"),
    *_scalars("BOOL", "return_prompt_ids"),
)

BLS_OUTPUTS = (
    *_outputs("STRING", (-1,), "text_output"),
    *_SCORES,
    *_BOOKKEEPING,
)

OUR_BLS_OUTPUTS = (
    *_outputs("INT32", (-1,), "output_ids", "prompt_ids", "proposed_per_position", "accepted_per_position"),
    *_outputs("STRING", (1,), "finish_reason", "stop_reason", "speculation_off_reason"),
    *_outputs("INT32", (1,), "num_rounds"),
    *_outputs("INT64", (1,), "engine_time_ns"),
)
