"""The parameters of TensorRT-LLM's C++ model in Triton, as data.

Keys, values and defaults are those of its `config.pbtxt` template and of the backend's sources
(`triton_backend/inflight_batcher_llm/src/{model_instance_state,model_state}.cc`, TensorRT-LLM 1.2).
The backend reads text: what it cannot convert counts as not set, without an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "text", "path", "integer", "number", "seconds", "fraction", "flag", "choice", "integers", "groups"
]

TRUE_TEXTS = ("True", "true", "TRUE", "1")
FALSE_TEXTS = ("False", "false", "FALSE", "0")

# A value as the recipe's `fill_template.py` leaves it when nobody gave one.
PLACEHOLDER = re.compile(r"\$\{\w+\}")

WORKER = "/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker"


@dataclass(frozen=True)
class Parameter:
    """One entry of `parameters`."""

    name: str
    kind: Kind = "text"
    # What the backend takes when the entry is not set.
    default: str | None = None
    choices: tuple[str, ...] = ()
    # The model does not load without a value.
    required: bool = False
    # The model does not load without the entry, whatever its value.
    present: bool = False

    def fault(self, value: str) -> str | None:
        """Return what is expected when the backend cannot use a value, else None."""
        patterns: dict[Kind, str] = {
            "integer": r"-?\d+",
            "number": r"-?\d*\.?\d+(e-?\d+)?",
            "seconds": r"(?=[0.]*[1-9])\d*\.?\d+(e-?\d+)?",
            "fraction": r"0?\.\d+|[01](\.0*)?",
            "flag": "|".join((*TRUE_TEXTS, *FALSE_TEXTS)),
            "choice": "|".join(self.choices),
            "integers": r"\d+(,\d+)*",
            "groups": r"\d+(,\d+)*(;\d+(,\d+)*)*",
        }
        expected: dict[Kind, str] = {
            "integer": "a whole number",
            "number": "a number",
            "seconds": "seconds, above 0",
            "fraction": "a number from 0 to 1",
            "flag": "true or false",
            "choice": " or ".join(self.choices),
            "integers": "whole numbers with commas between",
            "groups": "whole numbers with commas, instances with semicolons between",
        }
        if self.kind not in patterns or re.fullmatch(patterns[self.kind], value):
            return None
        return expected[self.kind]


def is_set(value: str) -> bool:
    """Whether a value says anything: it is neither empty nor a placeholder."""
    return bool(value) and not PLACEHOLDER.search(value)


BATCHING = ("inflight_fused_batching", "inflight_batching", "V1", "v1")
POLICIES = ("guaranteed_no_evict", "max_utilization")
DECODING_MODES = (
    *("top_k", "top_p", "top_k_top_p", "beam_search"),
    *("medusa", "redrafter", "lookahead", "eagle"),
)

LEAF_PARAMETERS = (
    Parameter("gpt_model_type", "choice", choices=BATCHING, required=True),
    Parameter("gpt_model_path", "path", required=True),
    Parameter("encoder_model_path", "path"),
    Parameter("batch_scheduler_policy", "choice", "guaranteed_no_evict", POLICIES),
    Parameter("kv_cache_free_gpu_mem_fraction", "fraction", "0.9"),
    Parameter("max_tokens_in_paged_kv_cache", "integer"),
    Parameter("max_attention_window_size", "integers"),
    Parameter("sink_token_length", "integer"),
    Parameter("enable_kv_cache_reuse", "flag", "true"),
    Parameter("kv_cache_host_memory_bytes", "integer", "0"),
    Parameter("kv_cache_onboard_blocks", "flag", "true"),
    Parameter("cross_kv_cache_fraction", "fraction"),
    Parameter("max_beam_width", "integer", "1"),
    Parameter("normalize_log_probs", "flag", "true"),
    Parameter("enable_chunked_context", "flag", "false"),
    Parameter("exclude_input_in_output", "flag", "false"),
    Parameter("cancellation_check_period_ms", "integer", "100"),
    Parameter("stats_check_period_ms", "integer", "100"),
    Parameter("recv_poll_period_ms", "integer", "0"),
    Parameter("iter_stats_max_iterations", "integer", "1000"),
    Parameter("request_stats_max_iterations", "integer", "0"),
    Parameter("gpu_device_ids", "groups"),
    Parameter("participant_ids", "groups"),
    Parameter("num_nodes", "integer", "1"),
    Parameter("decoding_mode", "choice", choices=DECODING_MODES),
    Parameter("medusa_choices"),
    Parameter("eagle_choices"),
    Parameter("lookahead_window_size", "integer"),
    Parameter("lookahead_ngram_size", "integer"),
    Parameter("lookahead_verification_set_size", "integer"),
    Parameter("gpu_weights_percent", "fraction", "1.0"),
    Parameter("enable_context_fmha_fp32_acc", "flag", "false"),
    Parameter("multi_block_mode", "flag", "true"),
    Parameter("cuda_graph_mode", "flag", "false"),
    Parameter("cuda_graph_cache_size", "integer", "0"),
    Parameter("speculative_decoding_fast_logits", "flag", "false"),
    Parameter("executor_worker_path", "path", WORKER),
    Parameter("lora_cache_optimal_adapter_size", "integer", "8"),
    Parameter("lora_cache_max_adapter_size", "integer", "64"),
    Parameter("lora_cache_gpu_memory_fraction", "fraction", "0.05"),
    Parameter("lora_cache_host_memory_bytes", "integer"),
    Parameter("lora_prefetch_dir", "path"),
    # Read without a guard when the model loads, though only guided decoding uses them.
    Parameter("tokenizer_dir", "path", present=True),
    Parameter("guided_decoding_backend", present=True),
    Parameter("xgrammar_tokenizer_info_path", "path", present=True),
    Parameter("FORCE_CPU_ONLY_INPUT_TENSORS"),
    # Read by no release that is supported here; the template still has it.
    Parameter("enable_trt_overlap"),
)

# Old key -> the one that took its place; the backend refuses the old one.
OBSOLETE_LEAF_PARAMETERS = {"worker_path": "executor_worker_path"}
