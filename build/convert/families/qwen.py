"""Qwen2, Qwen2.5 (always a bias on q, k and v) and dense Qwen3 (norms on the heads of q and k)."""

from __future__ import annotations

from typing import Any

from trtspec.build.convert.families.llama import ACTIVATIONS, attention, embeddings, final_norm, mlp, norms
from trtspec.build.convert.rope import read_rope, rotary_settings
from trtspec.build.convert.settings import Settings, activation, flag, number, text
from trtspec.build.convert.tables import Dimensions, Family, Table, read_dimensions, whole
from trtspec.errors import BuildError

MODEL_TYPES = ("qwen2", "qwen3")


def _qwen_type(settings: Settings) -> str:
    name = text(settings, "model_type")
    if name not in MODEL_TYPES:
        raise BuildError(f"config.json: model_type is {name!r}, expected {' or '.join(MODEL_TYPES)}")
    return name


def _qkv_bias(settings: Settings) -> bool:
    if _qwen_type(settings) == "qwen2":
        return True
    if flag(settings, "attention_bias", False):
        raise BuildError(
            "config.json: attention_bias is true, which also biases the output projection; TensorRT-LLM's "
            "Qwen3 has no biases in its attention; use the pytorch runtime"
        )
    return False


def _layer(d: Dimensions, settings: Settings) -> Table:
    table = {**norms(d), **attention(d, qkv_bias=_qkv_bias(settings), dense_bias=False), **mlp(d)}
    if _qwen_type(settings) == "qwen3":
        table["attention.q_layernorm.weight"] = whole("self_attn.q_norm.weight", d.head_size)
        table["attention.k_layernorm.weight"] = whole("self_attn.k_norm.weight", d.head_size)
    return table


def _settings(settings: Settings, d: Dimensions) -> dict[str, Any]:
    qwen_type = _qwen_type(settings)
    return {
        "hidden_act": activation(settings, "hidden_act", ACTIVATIONS),
        "norm_epsilon": number(settings, "rms_norm_eps"),
        "position_embedding_type": "rope_gpt_neox",
        "qwen_type": qwen_type,
        "qk_layernorm": qwen_type == "qwen3",
        "attn_bias": _qkv_bias(settings),
        "mlp_bias": False,
        "seq_length": d.positions,
        "use_logn_attn": False,
        **rotary_settings(read_rope(settings)),
    }


FAMILY = Family(
    architectures=("Qwen2ForCausalLM", "Qwen3ForCausalLM"),
    layer=_layer,
    outer=final_norm,
    embeddings=embeddings,
    dimensions=read_dimensions,
    settings=_settings,
    tied_by_default=False,
)
