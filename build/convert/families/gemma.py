"""Gemma, Gemma-2 and Gemma-3 (text): every norm is stored plus one, the embedding is split over ranks.

The network multiplies by 1 + weight in Hugging Face and by the weight in TensorRT-LLM.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trtspec.build.convert.families.llama import attention, embeddings, final_norm, mlp, norms
from trtspec.build.convert.rope import Rope, read_rope, rotary_settings
from trtspec.build.convert.settings import Settings, activation, flag, integer, number, section, text
from trtspec.build.convert.tables import Dimensions, Family, Table, read_dimensions, whole
from trtspec.errors import BuildError

MODEL_TYPES = ("gemma", "gemma2", "gemma3_text")
ACTIVATIONS = ("gelu_pytorch_tanh", "gelu")

# transformers' defaults for Gemma-3's two kinds of layers.
GLOBAL_BASE, LOCAL_BASE = 1_000_000.0, 10_000.0
DEFAULT_PATTERN = 6


def _model_type(settings: Settings) -> str:
    name = text(settings, "model_type")
    if name not in MODEL_TYPES:
        raise BuildError(f"config.json: model_type is {name!r}, expected {', '.join(MODEL_TYPES)}")
    return name


def _plus_one(table: Table) -> Table:
    return {name: replace(weight, plus=1.0) for name, weight in table.items()}


def _layer(d: Dimensions, settings: Settings) -> Table:
    model_type, bias = _model_type(settings), flag(settings, "attention_bias", False)
    layer_norms = dict(norms(d))
    if model_type != "gemma":
        for name in ("pre_feedforward_layernorm.weight", "post_feedforward_layernorm.weight"):
            layer_norms[name] = whole(name, d.hidden)
    if model_type == "gemma3_text":
        layer_norms["attention.q_layernorm.weight"] = whole("self_attn.q_norm.weight", d.head_size)
        layer_norms["attention.k_layernorm.weight"] = whole("self_attn.k_norm.weight", d.head_size)
    return {**_plus_one(layer_norms), **attention(d, qkv_bias=bias, dense_bias=bias), **mlp(d)}


def _settings(settings: Settings, d: Dimensions) -> dict[str, Any]:
    model_type = _model_type(settings)
    if flag(settings, "use_bidirectional_attention", False):
        raise BuildError("config.json: use_bidirectional_attention is true, expected a causal model")
    written: dict[str, Any] = {
        # The key changed its name with Gemma-2.
        "hidden_act": activation(
            settings, "hidden_act" if model_type == "gemma" else "hidden_activation", ACTIVATIONS
        ),
        "norm_epsilon": number(settings, "rms_norm_eps"),
        "position_embedding_type": "rope_gpt_neox",
        "attn_bias": flag(settings, "attention_bias", False),
        "mlp_bias": False,
        "inter_layernorms": model_type != "gemma",
    }
    if model_type != "gemma":
        written["query_pre_attn_scalar"] = number(settings, "query_pre_attn_scalar")
        written["final_logit_softcapping"] = settings.get("final_logit_softcapping")
    if model_type == "gemma2":
        written["attn_logit_softcapping"] = settings.get("attn_logit_softcapping")
    if model_type == "gemma3_text":
        return {**written, **_gemma3(settings, d)}
    return {**written, **rotary_settings(read_rope(settings))}


def _gemma3(settings: Settings, d: Dimensions) -> dict[str, Any]:
    if settings.get("attn_logit_softcapping") is not None:
        raise BuildError("config.json: attn_logit_softcapping is set, TensorRT-LLM's Gemma-3 has none")
    everywhere, local = _two_ropes(settings)
    if everywhere.scaling is not None or local.scaling is not None:
        # Its tables of the sliding layers would take the scaling of the others.
        raise BuildError(
            f"config.json: RoPE type {everywhere.kind!r}, TensorRT-LLM's engine path takes unscaled Gemma-3 "
            "only; use the pytorch runtime"
        )
    return {
        **rotary_settings(everywhere),
        "rope_local_base_freq": local.base,
        "sliding_window": integer(settings, "sliding_window"),
        "_sliding_window_pattern": _pattern(settings, d.layers),
        "qk_layernorm": True,
    }


def _two_ropes(settings: Settings) -> tuple[Rope, Rope]:
    """Return the tables of the full-attention layers and of the sliding ones."""
    nested = section(settings, "rope_parameters")
    if "full_attention" in nested or "sliding_attention" in nested:
        full, sliding = section(nested, "full_attention"), section(nested, "sliding_attention")
        return (
            read_rope({**settings, "rope_parameters": full}, GLOBAL_BASE),
            read_rope({"rope_parameters": sliding, "rope_theta": LOCAL_BASE}),
        )
    return (
        read_rope(settings, GLOBAL_BASE),
        Rope(number(settings, "rope_local_base_freq", LOCAL_BASE), None),
    )


def _pattern(settings: Settings, layers: int) -> int:
    """Return p where layers p, 2p, … attend to everything and the others to their window."""
    kinds = settings.get("layer_types")
    stated = integer(
        settings, "_sliding_window_pattern", integer(settings, "sliding_window_pattern", DEFAULT_PATTERN)
    )
    if kinds is None:
        return stated
    pattern = kinds.index("full_attention") + 1 if "full_attention" in kinds else max(stated, layers + 1)
    expected = ["sliding_attention" if (i + 1) % pattern else "full_attention" for i in range(layers)]
    if kinds != expected:
        raise BuildError(
            f"config.json: layer_types is not a full layer after every {pattern - 1} sliding ones, the "
            "only order of TensorRT-LLM's Gemma-3; use the pytorch runtime"
        )
    return pattern


FAMILY = Family(
    architectures=("GemmaForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM"),
    layer=_layer,
    outer=lambda d: _plus_one(final_norm(d)),
    embeddings=embeddings,
    dimensions=read_dimensions,
    settings=_settings,
    tied_by_default=True,
    parallel_embedding=True,
)
