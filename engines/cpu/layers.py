"""The weights of a decoder layer, arranged for the forward pass.

Two rearrangements leave the function unchanged and make a pass cheaper (K key-value heads, each
shared by G query heads, H = K · G):
- within a query or key head the two halves of RoPE's coordinates are interleaved, so that the
  rotation is one complex product;
- query heads are ordered (G, K) instead of (K, G), and the output projection's columns with them,
  so that attention over grouped heads yields rows that need no copy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .architecture import Architecture
from .fp8 import Fp8, fp8_linear
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

    def projection(part: str, rows: int, columns: int, biased: bool) -> _Projection:
        weight, fp8 = weights.take_matrix(f"{name}{part}", rows, columns)
        return _Projection(weight, weights.take(f"{name}{part}.bias", rows) if biased else None, fp8)

    q = projection("self_attn.q_proj", q_size, hidden, arch.qkv_bias)
    k = projection("self_attn.k_proj", kv_size, hidden, arch.qkv_bias)
    v = projection("self_attn.v_proj", kv_size, hidden, arch.qkv_bias)
    output = projection("self_attn.o_proj", hidden, q_size, arch.output_bias)
    gate = projection("mlp.gate_proj", inner, hidden, arch.mlp_bias)
    up = projection("mlp.up_proj", inner, hidden, arch.mlp_bias)
    down = projection("mlp.down_proj", hidden, inner, arch.mlp_bias)
    q_rows = _group_heads(_interleave(torch.arange(q_size), head_dim), arch)
    k_rows = _interleave(torch.arange(kv_size), head_dim)
    weights.drop(f"{name}self_attn.rotary_emb.inv_freq")
    return Layer(
        attention_norm=_norm(arch, weights, f"{name}input_layernorm.weight"),
        qkv=_stacked(q.rows(q_rows), k.rows(k_rows), v),
        qk_norm=_qk_norm(arch, weights, name) if arch.qk_norm else None,
        output=_stacked(output.columns(_group_heads(torch.arange(q_size), arch))),
        mlp_norm=_norm(arch, weights, f"{name}post_attention_layernorm.weight"),
        gate_up=_stacked(gate, up),
        down=_stacked(down),
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


@dataclass(frozen=True, slots=True)
class _Projection:
    """One matrix of the checkpoint, or several stacked."""

    weight: Tensor
    bias: Tensor | None
    fp8: Fp8 | None

    def rows(self, order: Tensor) -> _Projection:
        """Return it with its outputs in another order."""
        bias = self.bias if self.bias is None else self.bias[order]
        fp8 = self.fp8 if self.fp8 is None else replace(self.fp8, rows=self.fp8.rows[order])
        return _Projection(self.weight[order], bias, fp8)

    def columns(self, order: Tensor) -> _Projection:
        """Return it for inputs in another order."""
        return replace(self, weight=self.weight[:, order].contiguous())

    def linear(self) -> Linear:
        """Return its product, packed."""
        if self.fp8 is None:
            return linear(self.weight, self.bias)
        return fp8_linear(self.weight, self.fp8, self.bias)


def _stacked(*parts: _Projection) -> Linear:
    """Return several projections of the same input as one."""
    if len({(part.fp8 is None, part.fp8 and part.fp8.input) for part in parts}) > 1:
        # Each rounds its input with a scale of its own.
        products = [part.linear() for part in parts]
        return lambda x: torch.cat([product(x) for product in products], dim=-1)
    biases = [part.bias for part in parts if part.bias is not None]
    scales = [part.fp8 for part in parts if part.fp8 is not None]
    return _Projection(
        torch.cat([part.weight for part in parts]),
        torch.cat(biases) if biases else None,
        Fp8(torch.cat([fp8.rows for fp8 in scales]), scales[0].input) if scales else None,
    ).linear()


def _interleave(x: Tensor, head_dim: int) -> Tensor:
    """Return coordinates (a₀ a₁ … b₀ b₁ …) of each head as (a₀ b₀ a₁ b₁ …)."""
    return x.view(-1, 2, head_dim // 2).transpose(1, 2).reshape(-1)


def _group_heads(x: Tensor, arch: Architecture) -> Tensor:
    """Return query heads that are ordered (K, G) as (G, K)."""
    return x.view(arch.kv_heads, -1, arch.head_dim).transpose(0, 1).reshape(-1)
