"""What the `config.json` of an engine has to say, from the command that it was compiled with.

`trtllm-build` switches off what it cannot do and ends with 0 all the same, so its exit code proves little.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trtspec.build.runtimes.tensorrt.commands import DRAFT_TARGET, BuildCommand

# How `speculative_decoding_mode` is written into config.json.
MODES = {None: 1, DRAFT_TARGET: 2}

SWITCHES = (
    "use_paged_context_fmha",
    "use_fp8_context_fmha",
    "context_fmha",
    "remove_input_padding",
    "reduce_fusion",
    "user_buffer",
)
KERNELS = ("gemm_swiglu_plugin", "low_latency_gemm_plugin")


@dataclass(frozen=True)
class Expectation:
    """What one entry of config.json has to be."""

    entry: str  # its path, with dots
    value: Any
    how: Literal["is", "at least"] = "is"

    def fault(self, found: Any) -> str | None:
        """Return what is wrong about a value; None where nothing is."""
        if isinstance(found, str) and isinstance(self.value, str):
            met = found.lower() == self.value.lower()
        elif self.value is False:
            met = not found
        elif self.how == "at least":
            met = isinstance(found, int) and found >= self.value
        else:
            met = found == self.value
        if met:
            return None
        least = "at least " if self.how == "at least" else ""
        return f"{self.entry} is {found}, expected {least}{self.value}"


def expectations(command: BuildCommand, checkpoint: Mapping[str, Any]) -> tuple[Expectation, ...]:
    """Return what config.json has to say of an engine.

    Args:
        checkpoint: config.json of the TensorRT-LLM checkpoint that it was compiled from.
    """
    flags = command.flags
    mapping, quantization = checkpoint["mapping"], checkpoint["quantization"]
    mode = flags.get("speculative_decoding_mode")
    # With drafted tokens trtllm-build adds them to the length of a sequence.
    length = command.number("max_seq_len") + command.number("max_draft_len")
    model = {
        "architecture": checkpoint["architecture"],
        "dtype": checkpoint["dtype"],
        "vocab_size": checkpoint["vocab_size"],
        "logits_dtype": flags["logits_dtype"],
        "mapping.tp_size": mapping["tp_size"],
        "mapping.pp_size": mapping["pp_size"],
        "quantization.quant_algo": quantization["quant_algo"],
        "quantization.kv_cache_quant_algo": quantization["kv_cache_quant_algo"],
    }
    built = {
        "max_batch_size": command.number("max_batch_size"),
        "max_beam_width": command.number("max_beam_width"),
        "max_seq_len": length,
        "max_draft_len": command.number("max_draft_len"),
        "speculative_decoding_mode": MODES[mode],
        "kv_cache_type": flags["kv_cache_type"],
        "gather_context_logits": False,
        "gather_generation_logits": "gather_generation_logits" in flags,
    }
    at_least = {name: command.number(name) for name in ("max_input_len", "max_num_tokens")}
    return (
        *(Expectation(f"pretrained_config.{name}", value) for name, value in model.items()),
        *(Expectation(f"build_config.{name}", value) for name, value in built.items()),
        *(Expectation(f"build_config.{name}", value, "at least") for name, value in at_least.items()),
        *(Expectation(f"build_config.plugin_config.{name}", value) for name, value in _plugins(flags)),
    )


def _plugins(flags: Mapping[str, str]) -> Sequence[tuple[str, Any]]:
    return (
        *((name, flags[name] == "enable") for name in SWITCHES),
        *((name, flags.get(name)) for name in KERNELS),
        ("tokens_per_block", int(flags["tokens_per_block"])),
    )


def as_json(expected: Sequence[Expectation]) -> str:
    """Return expectations for a program in another language."""
    return json.dumps([[one.entry, one.how, one.value] for one in expected])
