"""What config.json says about a decoder, for the families that model.py computes itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .errors import EngineLoadError
from .rope import ROPE_TYPES, rope_parameters

# Which projections carry a bias where config.json does not say, and whether queries and keys are normalised.
_FAMILIES: dict[str, tuple[bool, bool]] = {
    "LlamaForCausalLM": (False, False),
    "MistralForCausalLM": (False, False),
    "Qwen2ForCausalLM": (True, False),
    "Qwen3ForCausalLM": (False, True),
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """The sizes and switches of a decoder; `rope` is in the spelling of `rope_parameters`."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    rope: dict[str, Any]
    tied_head: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool


def read_architecture(config: dict[str, Any], max_seq_len: int) -> Architecture | None:
    """Return the architecture, or None where it is not one of ours and transformers must compute it.

    Attention windows shorter than `max_seq_len`, partial rotation and RoPE types that depend on the
    length are left to transformers.
    """
    name = next(iter(config.get("architectures") or []), None)
    if name not in _FAMILIES or _needs_more(config, name, max_seq_len):
        return None
    bias_default, qk_norm = _FAMILIES[name]
    attention_bias = bool(config.get("attention_bias", bias_default))
    if name == "Qwen2ForCausalLM":
        attention_bias = True
    try:
        heads: int = config["num_attention_heads"]
        architecture = Architecture(
            vocab_size=config["vocab_size"],
            hidden_size=config["hidden_size"],
            intermediate_size=config["intermediate_size"],
            layers=config["num_hidden_layers"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            norm_eps=config.get("rms_norm_eps", 1e-6),
            rope=rope_parameters(config),
            tied_head=bool(config.get("tie_word_embeddings", False)),
            qkv_bias=attention_bias,
            output_bias=attention_bias and name != "Qwen2ForCausalLM",
            mlp_bias=bool(config.get("mlp_bias", False)),
            qk_norm=qk_norm,
        )
    except KeyError as missing:
        raise EngineLoadError(f"config.json of a {name} has no {missing}") from None
    except (TypeError, ZeroDivisionError) as error:
        raise EngineLoadError(f"config.json of a {name}: no head size ({error})") from None
    _refuse_sizes(architecture)
    return architecture


def _refuse_sizes(arch: Architecture) -> None:
    """Compiled code would read and write other memory."""
    names = ("vocab_size", "hidden_size", "intermediate_size", "layers", "heads", "kv_heads", "head_dim")
    sizes = {name: getattr(arch, name) for name in names}
    wrong = [f"{n} {s!r}" for n, s in sizes.items() if type(s) is not int or s < 1]
    if type(arch.norm_eps) not in (int, float):
        wrong.append(f"rms_norm_eps {arch.norm_eps!r}")
    if wrong:
        raise EngineLoadError(f"config.json: {', '.join(wrong)}; expected numbers above 0")
    if arch.head_dim % 2:
        raise EngineLoadError(
            f"config.json: a head of {arch.head_dim} has no pairs to rotate, expected an even number"
        )
    if arch.heads % arch.kv_heads:
        raise EngineLoadError(
            f"config.json: {arch.heads} heads cannot share {arch.kv_heads} key-value heads evenly"
        )


def _needs_more(config: dict[str, Any], name: str, max_seq_len: int) -> bool:
    window = config.get("sliding_window")
    windowed = window is not None and window < max_seq_len
    if name != "MistralForCausalLM":
        windowed = windowed and bool(config.get("use_sliding_window", False))
    rope = rope_parameters(config)
    return (
        windowed
        or rope["rope_type"] not in ROPE_TYPES
        or rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)) != 1.0
        or config.get("hidden_act", "silu") != "silu"
        or not _is_plain_or_fp8(config)
    )


def _is_plain_or_fp8(config: dict[str, Any]) -> bool:
    quantization = config.get("quantization_config")
    return quantization is None or str(quantization.get("quant_algo")).startswith("FP8")
