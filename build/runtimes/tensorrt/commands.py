"""The `trtllm-build` command of each engine: everything draft-target needs, said and not left to defaults.

Flags are those of TensorRT-LLM 1.2.1 (commands/build.py, plugin/plugin.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trtspec.build.options import BuildOptions
from trtspec.build.runtimes.tensorrt.conflicts import FUSED_REDUCTION, Model

PROGRAM = "trtllm-build"

# trtllm-build's own default for --max_num_tokens.
DEFAULT_TOKENS = 8192

DRAFT_TARGET = "draft_tokens_external"


@dataclass(frozen=True)
class BuildCommand:
    """One run of `trtllm-build`, apart from where it reads and writes."""

    flags: Mapping[str, str]  # without dashes; "" for a switch

    def argv(self, checkpoint: Path | str, output: Path | str) -> tuple[str, ...]:
        """Return the whole command."""
        places = {"checkpoint_dir": str(checkpoint), "output_dir": str(output)}
        words = [PROGRAM]
        for name, value in {**places, **self.flags}.items():
            words += [f"--{name}", value] if value else [f"--{name}"]
        return tuple(words)

    @staticmethod
    def parse(argv: Sequence[str]) -> BuildCommand:
        """Return the command that `argv` was made of."""
        flags: dict[str, str] = {}
        for word in argv[1:]:
            if word.startswith("--"):
                flags[name := word.removeprefix("--")] = ""
            else:
                flags[name] = word
        return BuildCommand({k: v for k, v in flags.items() if k not in ("checkpoint_dir", "output_dir")})

    def number(self, name: str) -> int:
        """Return the value of a flag, 0 where it is not given."""
        return int(self.flags.get(name, 0))


def build_command(model: Model, options: BuildOptions, max_seq_len: int) -> BuildCommand:
    """Return how one engine of a pair is compiled that holds `max_seq_len` tokens.

    Every round sends the whole sequence again, so inputs are as long as sequences; and with
    `draft_tokens_external` trtllm-build adds `max_draft_len` to the target's `max_seq_len`. The draft
    gets as much, where its context allows: then both engines say the same.
    """
    asked, is_target = options.tensorrt, model.role == "target"
    length = max_seq_len
    if not is_target:
        length = min(max_seq_len + options.max_draft_len, model.context)
    flags = {
        "max_batch_size": str(options.max_batch_size),
        "max_beam_width": "1",
        "max_input_len": str(max_seq_len),
        "max_seq_len": str(length),
        "max_num_tokens": str(_tokens(options, max_seq_len)),
        "kv_cache_type": "paged",
        "logits_dtype": asked.logits_dtype,
        "workers": str(asked.workers or model.tp * model.pp),
        "log_level": "info",
    }
    if asked.opt_num_tokens is not None:
        flags["opt_num_tokens"] = str(asked.opt_num_tokens)
    if is_target:
        flags |= {"speculative_decoding_mode": DRAFT_TARGET, "max_draft_len": str(options.max_draft_len)}
    if asked.acceptance == "logits":
        flags["gather_generation_logits"] = ""
    return BuildCommand(flags | _plugins(model, options))


def _tokens(options: BuildOptions, max_seq_len: int) -> int:
    """Return what an engine computes at once: by default any prompt in one go.

    trtllm-build raises it to a round of all sequences, and lowers it to all their tokens together.
    """
    drafted = options.max_batch_size * (options.max_draft_len + 1)
    wanted = options.tensorrt.max_num_tokens or max(DEFAULT_TOKENS, max_seq_len, drafted)
    return min(wanted, max_seq_len * options.max_batch_size)


def _plugins(model: Model, options: BuildOptions) -> dict[str, str]:
    asked = options.tensorrt
    fused_mlp = asked.fused_mlp and (model.quantization is None or model.fp8)
    # That the target can has been checked; the draft takes part where it can.
    reduces = asked.reduce_fusion and model.tp > 1 and model.architecture in FUSED_REDUCTION
    flags = {
        "gpt_attention_plugin": "auto",
        "gemm_plugin": _gemm_plugin(model, options),
        "remove_input_padding": "enable",
        "context_fmha": "enable",
        "use_paged_context_fmha": "enable",
        "use_fp8_context_fmha": _switch(model.fp8 and model.fp8_cache),
        "tokens_per_block": str(asked.tokens_per_block),
        "use_fused_mlp": _switch(fused_mlp),
        "multiple_profiles": _switch(asked.multiple_profiles),
        "reduce_fusion": _switch(reduces),
        "user_buffer": _switch(asked.user_buffer and reduces and model.fp8),
    }
    if asked.low_latency_gemm and model.fp8:
        flags["low_latency_gemm_plugin"] = "fp8"
    if asked.gemm_swiglu and model.fp8:
        flags["gemm_swiglu_plugin"] = "fp8"
    return flags


def _gemm_plugin(model: Model, options: BuildOptions) -> str:
    """NVIDIA advises against the plugin for FP8 engines."""
    wanted = options.tensorrt.gemm_plugin
    by_default = "auto" if model.quantization is None else "disable"
    if wanted is None or (wanted == "fp8" and not model.fp8):
        return by_default
    return wanted


def _switch(on: bool) -> str:
    return "enable" if on else "disable"
