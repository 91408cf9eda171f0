"""Mixtral: Mistral's attention, and experts stacked into one tensor, up rows before gate rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trtspec.build.convert.families.llama import attention, embeddings, final_norm, llama_settings, norms
from trtspec.build.convert.settings import Settings, integer
from trtspec.build.convert.tables import Dimensions, Family, Part, Split, Table, Weight, read_dimensions

ROPE_BASE = 1_000_000.0  # transformers' default for this family

# MoeConfig.ExpertScaleNormalizationMode: the weights of the chosen experts sum to one.
RENORMALIZE = 1


def _experts(d: Dimensions) -> Table:
    up_and_gate, down = [], []
    for expert in range(d.experts):
        prefix = f"block_sparse_moe.experts.{expert}"
        for name in ("w3", "w1"):
            up_and_gate.append(Part(f"{prefix}.{name}.weight", (d.intermediate, d.hidden), Split.ROWS))
        down.append(Part(f"{prefix}.w2.weight", (d.hidden, d.intermediate), Split.COLUMNS))
    router = Part("block_sparse_moe.gate.weight", (d.experts, d.hidden))
    return {
        "mlp.fc.weight": Weight(tuple(up_and_gate), stacked=d.experts),
        "mlp.proj.weight": Weight(tuple(down), stacked=d.experts),
        "mlp.router.weight": Weight((router,), dtype="F32"),
    }


def _layer(d: Dimensions, settings: Settings) -> Table:
    return {**norms(d), **attention(d, qkv_bias=False, dense_bias=False), **_experts(d)}


def _dimensions(settings: Settings, vocabulary: int) -> Dimensions:
    return replace(read_dimensions(settings, vocabulary), experts=integer(settings, "num_local_experts"))


def _settings(settings: Settings, d: Dimensions) -> dict[str, Any]:
    return {
        **llama_settings(settings, ROPE_BASE),
        # Experts need the gated activation by its own name.
        "hidden_act": "swiglu",
        "moe": {
            "num_experts": d.experts,
            "top_k": integer(settings, "num_experts_per_tok"),
            "normalization_mode": RENORMALIZE,
        },
    }


FAMILY = Family(
    architectures=("MixtralForCausalLM",),
    layer=_layer,
    outer=final_norm,
    embeddings=embeddings,
    dimensions=_dimensions,
    settings=_settings,
    tied_by_default=False,
)
