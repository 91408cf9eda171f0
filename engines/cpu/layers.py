"""The weights of a decoder layer, arranged for the forward pass.

Two rearrangements leave the function unchanged and make a pass cheaper (K key-value heads, each
shared by G query heads, H = K · G):
- within a query or key head the two halves of RoPE's coordinates are interleaved, so that the
  rotation is one complex product;
- query heads are ordered (G, K) instead of (K, G), and the output projection's columns with them,
  so that attention over grouped heads yields rows that need no copy.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .architecture import Architecture
from .linear import Linear, linear
from .norm import Norm, rms_norm
from .weights import Weights


@dataclass(frozen=True, slots=True)
class Layer:
    """The functions of one layer; queries, keys and values are one product, gate and up another."""

    attention_norm: Norm
    qkv: Linear
    qk_norm: Norm | None
    output: Linear
    mlp_norm: Norm
    gate_up: Linear
    down: Linear


def load_ends(arch: Architecture, weights: Weights) -> tuple[Tensor, Norm, Linear]:
    """Return the embedding table, the last norm and the head.

    A checkpoint with a tied head may hold the table once or twice.
    """
    shape = (arch.vocab_size, arch.hidden_size)
    embedding = weights.take("model.embed_tokens.weight", *shape)
    norm = _norm(arch, weights, "model.norm.weight")
    if arch.tied_head:
        weights.drop("lm_head.weight")
        return embedding, norm, linear(embedding)
    return embedding, norm, linear(weights.take("lm_head.weight", *shape))


def load_layer(arch: Architecture, weights: Weights, index: int) -> Layer:
    """Return layer `index`, fused, rearranged and packed."""
    name = f"model.layers.{index}."
    hidden, inner, head_dim = arch.hidden_size, arch.intermediate_size, arch.head_dim
    q_size, kv_size = arch.heads * head_dim, arch.kv_heads * head_dim

    def projection(part: str, rows: int, columns: int, biased: bool) -> tuple[Tensor, Tensor | None]:
        bias = weights.take(f"{name}{part}.bias", rows) if biased else None
        return weights.take(f"{name}{part}.weight", rows, columns), bias

    q = projection("self_attn.q_proj", q_size, hidden, arch.qkv_bias)
    k = projection("self_attn.k_proj", kv_size, hidden, arch.qkv_bias)
    v = projection("self_attn.v_proj", kv_size, hidden, arch.qkv_bias)
    output, output_bias = projection("self_attn.o_proj", hidden, q_size, arch.output_bias)
    gate = projection("mlp.gate_proj", inner, hidden, arch.mlp_bias)
    up = projection("mlp.up_proj", inner, hidden, arch.mlp_bias)
    down = projection("mlp.down_proj", hidden, inner, arch.mlp_bias)
    q_rows = _group_heads(_interleave(torch.arange(q_size), head_dim), arch)
    k_rows = _interleave(torch.arange(kv_size), head_dim)
    weights.drop(f"{name}self_attn.rotary_emb.inv_freq")
    return Layer(
        attention_norm=_norm(arch, weights, f"{name}input_layernorm.weight"),
        qkv=_stacked(_rows(q, q_rows), _rows(k, k_rows), v),
        qk_norm=_qk_norm(arch, weights, name) if arch.qk_norm else None,
        output=linear(output[:, _group_heads(torch.arange(q_size), arch)].contiguous(), output_bias),
        mlp_norm=_norm(arch, weights, f"{name}post_attention_layernorm.weight"),
        gate_up=_stacked(gate, up),
        down=linear(*down),
    )


def _norm(arch: Architecture, weights: Weights, name: str) -> Norm:
    return rms_norm(weights.take(name, arch.hidden_size), arch.norm_eps)


def _qk_norm(arch: Architecture, weights: Weights, layer: str) -> Norm:
    """Return the norm of all query and key heads at once, [R, H + K, D]."""
    parts = []
    for part, heads in (("q_norm", arch.heads), ("k_norm", arch.kv_heads)):
        weight = weights.take(f"{layer}self_attn.{part}.weight", arch.head_dim)
        parts.append(_interleave(weight, arch.head_dim).expand(heads, -1))
    return rms_norm(torch.cat(parts), arch.norm_eps)


def _stacked(*parts: tuple[Tensor, Tensor | None]) -> Linear:
    """Return several projections of the same input as one."""
    biases = [bias for _, bias in parts if bias is not None]
    return linear(torch.cat([weight for weight, _ in parts]), torch.cat(biases) if biases else None)


def _rows(part: tuple[Tensor, Tensor | None], rows: Tensor) -> tuple[Tensor, Tensor | None]:
    weight, bias = part
    return weight[rows], bias if bias is None else bias[rows]


def _interleave(x: Tensor, head_dim: int) -> Tensor:
    """Return coordinates (a₀ a₁ … b₀ b₁ …) of each head as (a₀ b₀ a₁ b₁ …)."""
    return x.view(-1, 2, head_dim // 2).transpose(1, 2).reshape(-1)


def _group_heads(x: Tensor, arch: Architecture) -> Tensor:
    """Return query heads that are ordered (K, G) as (G, K)."""
    return x.view(arch.kv_heads, -1, arch.head_dim).transpose(0, 1).reshape(-1)
