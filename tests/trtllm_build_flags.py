"""The command line of `trtllm-build` 1.2.1 as data: what a flag takes, and what it is without.

Read from TensorRT-LLM's commands/build.py and plugin/plugin.py. Nothing here comes from trtspec.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Flag:
    """One flag; a switch takes no value."""

    kind: type = str
    default: Any = None
    choices: tuple[str, ...] = ()
    switch: bool = False
    aliases: tuple[str, ...] = ()


def _switches(*names: str) -> dict[str, Flag]:
    return {name: Flag(switch=True, default=False) for name in names}


def _toggles(default: str, *names: str) -> dict[str, Flag]:
    return {name: Flag(default=default, choices=("enable", "disable")) for name in names}


DTYPES = ("auto", "float16", "float32", "bfloat16", "int32", "disable")

FLAGS: dict[str, Flag] = {
    **{name: Flag() for name in ("checkpoint_dir", "model_config", "build_config")},
    **{name: Flag() for name in ("model_cls_file", "model_cls_name", "visualize_network")},
    "output_dir": Flag(default="engine_outputs"),
    "max_batch_size": Flag(int, 2048),
    "max_input_len": Flag(int, 1024),
    "max_seq_len": Flag(int, aliases=("max_decoder_seq_len",)),
    "max_beam_width": Flag(int, 1),
    "max_num_tokens": Flag(int, 8192),
    "opt_num_tokens": Flag(int),
    "max_encoder_input_len": Flag(int, 1024),
    "max_prompt_embedding_table_size": Flag(int, 0, aliases=("max_multimodal_len",)),
    "kv_cache_type": Flag(default="paged", choices=("continuous", "paged", "disabled")),
    "paged_kv_cache": Flag(),
    "input_timing_cache": Flag(),
    "output_timing_cache": Flag(default="model.cache"),
    "profiling_verbosity": Flag(default="layer_names_only", choices=("layer_names_only", "detailed", "none")),
    "workers": Flag(int, 1),
    "log_level": Flag(
        default="info",
        choices=("internal_error", "error", "warning", "info", "verbose", "debug", "trace"),
    ),
    "logits_dtype": Flag(choices=("float16", "float32")),
    "speculative_decoding_mode": Flag(
        choices=("draft_tokens_external", "lookahead_decoding", "medusa", "explicit_draft_tokens", "eagle")
    ),
    "max_draft_len": Flag(int, 0),
    "max_lora_rank": Flag(int, 64),
    "lora_ckpt_source": Flag(default="hf", choices=("hf", "nemo")),
    **_switches("strip_plan", "weight_sparsity", "weight_streaming", "fast_build", "enable_debug_output"),
    **_switches("dry_run", "monitor_memory"),
    **_switches("gather_context_logits", "gather_generation_logits", "gather_all_token_logits"),
    **{name: Flag(default="auto", choices=DTYPES) for name in ("bert_attention_plugin", "nccl_plugin")},
    **{name: Flag(default="auto", choices=DTYPES) for name in ("gpt_attention_plugin", "moe_plugin")},
    "mamba_conv1d_plugin": Flag(default="auto", choices=DTYPES),
    "gemm_plugin": Flag(choices=(*DTYPES, "fp8", "nvfp4")),
    "gemm_swiglu_plugin": Flag(default="disable", choices=("fp8", "disable")),
    "low_latency_gemm_plugin": Flag(default="disable", choices=("fp8", "disable")),
    "low_latency_gemm_swiglu_plugin": Flag(default="disable", choices=("fp8", "disable")),
    "fp8_rowwise_gemm_plugin": Flag(default="disable", choices=DTYPES),
    "lora_plugin": Flag(default="disable", choices=DTYPES),
    "gemm_allreduce_plugin": Flag(default="disable", choices=("float16", "bfloat16", "disable")),
    "tokens_per_block": Flag(int, 32),
    **_toggles("enable", "context_fmha", "remove_input_padding", "use_paged_context_fmha"),
    **_toggles("enable", "use_fp8_context_fmha", "use_fused_mlp", "paged_state"),
    **_toggles("disable", "multiple_profiles", "norm_quant_fusion", "reduce_fusion", "user_buffer"),
    **_toggles("disable", "fuse_fp4_quant", "pp_reduce_scatter", "streamingllm", "dora_plugin"),
    **_toggles("disable", "bert_context_fmha_fp32_acc"),
}
