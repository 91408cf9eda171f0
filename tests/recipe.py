"""What NVIDIA's recipe has, written down by hand, and how a written configuration is read back."""

from __future__ import annotations

from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

# What clients and engines of NVIDIA's recipe rely on, written down by hand from the templates of
# TensorRT-LLM 1.2: type, dims, optional, reshaped to a scalar, ragged.
NVIDIA_ENGINE_INPUTS = {
    "input_ids": ("TYPE_INT32", [-1], True, False, True),
    "input_lengths": ("TYPE_INT32", [1], False, True, False),
    "request_output_len": ("TYPE_INT32", [1], False, True, False),
    "draft_input_ids": ("TYPE_INT32", [-1], True, False, True),
    "draft_logits": ("TYPE_FP32", [-1, -1], True, False, True),
    "draft_acceptance_threshold": ("TYPE_FP32", [1], True, True, False),
    "end_id": ("TYPE_INT32", [1], True, True, False),
    "stop_words_list": ("TYPE_INT32", [2, -1], True, False, True),
    "bad_words_list": ("TYPE_INT32", [2, -1], True, False, True),
    "embedding_bias": ("TYPE_FP32", [-1], True, False, True),
    "runtime_top_k": ("TYPE_INT32", [1], True, True, False),
    "runtime_top_p": ("TYPE_FP32", [1], True, True, False),
    "temperature": ("TYPE_FP32", [1], True, True, False),
    "seed": ("TYPE_UINT64", [1], True, True, False),
    "streaming": ("TYPE_BOOL", [1], True, True, False),
    "stop": ("TYPE_BOOL", [1], True, True, False),
}
NVIDIA_PUBLIC_INPUTS = {
    "max_tokens": ("TYPE_INT32", [1], False, False, False),
    "stop_words": ("TYPE_STRING", [-1], True, False, False),
    "num_draft_tokens": ("TYPE_INT32", [1], True, False, False),
    "use_draft_logits": ("TYPE_BOOL", [1], True, True, False),
    "return_log_probs": ("TYPE_BOOL", [1], True, True, False),
    "stream": ("TYPE_BOOL", [1], True, False, False),
    "seed": ("TYPE_UINT64", [1], True, False, False),
    "temperature": ("TYPE_FP32", [1], True, False, False),
    "embedding_bias_words": ("TYPE_STRING", [-1], True, False, False),
    "exclude_input_in_output": ("TYPE_BOOL", [1], True, False, False),
}


def config(repository: Path, model: str) -> ModelConfig:
    return text_format.Parse((repository / model / "config.pbtxt").read_text(), ModelConfig())


def inputs(config: ModelConfig) -> dict[str, tuple[str, list[int], bool, bool, bool]]:
    return {
        entry.name: (
            DataType.Name(entry.data_type),
            list(entry.dims),
            entry.optional,
            entry.HasField("reshape"),
            entry.allow_ragged_batch,
        )
        for entry in config.input
    }
