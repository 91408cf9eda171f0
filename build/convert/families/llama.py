"""Llama 2, 3 and 3.1, and Mistral, which has the same tensors.

Surprise: `mlp.fc` is the gate projection, `mlp.gate` the up projection.
"""

from __future__ import annotations

from typing import Any

from trtspec.build.convert.rope import DEFAULT_BASE, read_rope, rotary_settings
from trtspec.build.convert.settings import Settings, activation, flag, number
from trtspec.build.convert.tables import (
    Dimensions,
    Family,
    Table,
    by_columns,
    by_heads,
    by_rows,
    read_dimensions,
    whole,
)

ACTIVATIONS = ("silu",)  # by this name TensorRT-LLM takes the MLP as gated


def attention(d: Dimensions, *, qkv_bias: bool, dense_bias: bool) -> Table:
    """Return the attention block's tensors: q, k and v fused into one."""
    weights = ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight")
    biases = ("self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias")
    table = {
        "attention.qkv.weight": by_heads(d, weights, d.hidden),
        "attention.dense.weight": by_columns("self_attn.o_proj.weight", d.hidden, d.query),
    }
    if qkv_bias:
        table["attention.qkv.bias"] = by_heads(d, biases)
    if dense_bias:
        table["attention.dense.bias"] = whole("self_attn.o_proj.bias", d.hidden)
    return table


def mlp(d: Dimensions, *, bias: bool = False) -> Table:
    """Return the gated MLP's tensors."""
    table = {
        "mlp.fc.weight": by_rows("mlp.gate_proj.weight", d.intermediate, d.hidden),
        "mlp.gate.weight": by_rows("mlp.up_proj.weight", d.intermediate, d.hidden),
        "mlp.proj.weight": by_columns("mlp.down_proj.weight", d.hidden, d.intermediate),
    }
    if bias:
        table["mlp.fc.bias"] = by_rows("mlp.gate_proj.bias", d.intermediate)
        table["mlp.gate.bias"] = by_rows("mlp.up_proj.bias", d.intermediate)
        table["mlp.proj.bias"] = whole("mlp.down_proj.bias", d.hidden)
    return table


def norms(d: Dimensions) -> Table:
    """Return the two norms of a layer."""
    return {
        "input_layernorm.weight": whole("input_layernorm.weight", d.hidden),
        "post_layernorm.weight": whole("post_attention_layernorm.weight", d.hidden),
    }


def embeddings(d: Dimensions) -> Table:
    """Return the first stage's own tensor."""
    return {"vocab_embedding.weight": whole("embed_tokens.weight", d.vocabulary, d.hidden)}


def final_norm(d: Dimensions) -> Table:
    """Return the last stage's own tensor besides the head."""
    return {"ln_f.weight": whole("norm.weight", d.hidden)}


def llama_settings(settings: Settings, default_base: float = DEFAULT_BASE) -> dict[str, Any]:
    """Return LLaMAConfig's keys."""
    return {
        "hidden_act": activation(settings, "hidden_act", ACTIVATIONS),
        "norm_epsilon": number(settings, "rms_norm_eps"),
        "position_embedding_type": "rope_gpt_neox",
        "attn_bias": flag(settings, "attention_bias", False),
        "mlp_bias": flag(settings, "mlp_bias", False),
        **rotary_settings(read_rope(settings, default_base)),
    }


def _layer(d: Dimensions, settings: Settings) -> Table:
    bias = flag(settings, "attention_bias", False)
    return {
        **norms(d),
        **attention(d, qkv_bias=bias, dense_bias=bias),
        **mlp(d, bias=flag(settings, "mlp_bias", False)),
    }


FAMILY = Family(
    architectures=("LlamaForCausalLM", "MistralForCausalLM"),
    layer=_layer,
    outer=final_norm,
    embeddings=embeddings,
    dimensions=read_dimensions,
    settings=lambda settings, d: llama_settings(settings),
    tied_by_default=False,
)
