"""Phi-3, Phi-3.5 and Phi-4-mini: q | k | v and gate | up come fused; TensorRT-LLM wants up | gate."""

from __future__ import annotations

from typing import Any

from trtspec.build.convert.families.llama import ACTIVATIONS, embeddings, final_norm, norms
from trtspec.build.convert.rope import Rope, read_rope
from trtspec.build.convert.settings import Settings, activation, number
from trtspec.build.convert.tables import (
    Dimensions,
    Family,
    Part,
    Split,
    Table,
    Weight,
    by_columns,
    by_fused_heads,
    read_dimensions,
)
from trtspec.errors import BuildError, CheckpointError


def _layer(d: Dimensions, settings: Settings) -> Table:
    gate_up, shape = "mlp.gate_up_proj.weight", (2 * d.intermediate, d.hidden)
    up = Part(gate_up, shape, Split.ROWS, rows=(d.intermediate, 2 * d.intermediate))
    gate = Part(gate_up, shape, Split.ROWS, rows=(0, d.intermediate))
    return {
        **norms(d),
        "attention.qkv.weight": by_fused_heads(d, "self_attn.qkv_proj.weight", d.hidden),
        "attention.dense.weight": by_columns("self_attn.o_proj.weight", d.hidden, d.query),
        "mlp.fc.weight": Weight((up, gate)),
        "mlp.proj.weight": by_columns("mlp.down_proj.weight", d.hidden, d.intermediate),
    }


def _rotary(rope: Rope, d: Dimensions) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "rotary_base": rope.base,
        "rotary_pct": rope.fraction,
        "rotary_scaling": None,
        "position_embedding_type": "rope_gpt_neox",
    }
    if rope.scaling is None:
        return settings
    if rope.kind != "longrope":
        raise BuildError(
            f"config.json: RoPE type {rope.kind!r}, TensorRT-LLM's Phi-3 takes default and longrope"
        )
    short, turning = rope.scaling["short_factor"], int(d.head_size * rope.fraction)
    if len(short) != turning // 2:
        raise CheckpointError(
            f"config.json: {len(short)} values in short_factor, expected {turning // 2}, one for each "
            "frequency"
        )
    return {
        **settings,
        "position_embedding_type": "long_rope",
        "longrope_scaling_short_factors": short,
        "longrope_scaling_long_factors": rope.scaling["long_factor"],
        "original_max_position_embeddings": rope.scaling["original_max_position_embeddings"],
    }


def _settings(settings: Settings, d: Dimensions) -> dict[str, Any]:
    if settings.get("hidden_act") is not None:
        activation(settings, "hidden_act", ACTIVATIONS)
    return {
        "hidden_act": "swiglu",
        "norm_epsilon": number(settings, "rms_norm_eps"),
        **_rotary(read_rope(settings), d),
    }


FAMILY = Family(
    architectures=("Phi3ForCausalLM",),
    layer=_layer,
    outer=final_norm,
    embeddings=embeddings,
    dimensions=read_dimensions,
    settings=_settings,
    tied_by_default=False,
)
