"""A checkpoint's tensors, packed for the forward pass."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .architecture import Architecture
from .compiled import compile_for, kernels
from .rope import rotation_table
from .weights import Weights


def load_weights(arch: Architecture, weights: Weights, positions: int) -> kernels.Weights:
    """Return all weights packed; every tensor of the checkpoint is taken.

    A checkpoint with a tied head may hold the table once or twice.
    """
    hidden, inner = arch.hidden_size, arch.intermediate_size
    weights.expect(f"model.layers.{arch.layers - 1}.input_layernorm.weight", hidden)
    kind = np.uint16 if weights.narrow else np.float32
    compile_for(kernels.fill, np.zeros((1, 1), kind), np.zeros(1, kind))
    q_size, kv_size = arch.heads * arch.head_dim, arch.kv_heads * arch.head_dim

    def projection(part: str, rows: int, columns: int, biased: bool) -> kernels.Matrix:
        return _matrices(
            weights, [f"model.layers.{i}.{part}" for i in range(arch.layers)], rows, columns, biased
        )

    def norms(part: str, size: int) -> NDArray[np.float32]:
        return _stack(
            weights.take(f"model.layers.{i}.{part}.weight", size).float().numpy() for i in range(arch.layers)
        )

    for i in range(arch.layers):
        weights.drop(f"model.layers.{i}.self_attn.rotary_emb.inv_freq")
    no_norms = np.empty((arch.layers, 0), np.float32)
    embedding = _matrices(weights, ["model.embed_tokens"], arch.vocab_size, hidden, biased=False)
    if arch.tied_head:
        weights.drop("lm_head.weight")
        head = embedding
    else:
        head = _matrices(weights, ["lm_head"], arch.vocab_size, hidden, biased=False)
    rotations = rotation_table(arch.rope, arch.head_dim, positions)
    packed = kernels.Weights(
        embedding=embedding,
        attention_norm=norms("input_layernorm", hidden),
        q=projection("self_attn.q_proj", q_size, hidden, arch.qkv_bias),
        k=projection("self_attn.k_proj", kv_size, hidden, arch.qkv_bias),
        v=projection("self_attn.v_proj", kv_size, hidden, arch.qkv_bias),
        q_norm=norms("self_attn.q_norm", arch.head_dim) if arch.qk_norm else no_norms,
        k_norm=norms("self_attn.k_norm", arch.head_dim) if arch.qk_norm else no_norms,
        output=projection("self_attn.o_proj", hidden, q_size, arch.output_bias),
        mlp_norm=norms("post_attention_layernorm", hidden),
        gate=projection("mlp.gate_proj", inner, hidden, arch.mlp_bias),
        up=projection("mlp.up_proj", inner, hidden, arch.mlp_bias),
        down=projection("mlp.down_proj", hidden, inner, arch.mlp_bias),
        # A copy: the tensor may be a view into the file.
        norm=weights.take("model.norm.weight", hidden).float().numpy().copy(),
        head=head,
        cosines=rotations.real.contiguous().numpy(),
        sines=rotations.imag.contiguous().numpy(),
    )
    weights.finish()
    return packed


def _matrices(weights: Weights, modules: list[str], rows: int, columns: int, biased: bool) -> kernels.Matrix:
    """Return the same module of all layers as one."""
    for module in modules:
        weights.expect(f"{module}.weight", rows, columns)  # before there is room for it
    kind = np.uint16 if weights.narrow else np.float32
    packed = np.empty((len(modules), kernels.padded(rows) * columns), kind)
    bias = np.zeros((len(modules), kernels.padded(rows)), np.float32)
    scale, input_scale = np.ones_like(bias), np.full(len(modules), kernels.NOT_FP8, np.float32)
    for layer, module in enumerate(modules):
        weight, fp8 = weights.take_matrix(module, rows, columns)
        packed[layer] = kernels.pack(_halves(weight) if weights.narrow else weight.float().numpy())
        if biased:
            bias[layer, :rows] = weights.take(f"{module}.bias", rows).float().numpy()
        if fp8 is not None:
            scale[layer, :rows] = fp8.rows.numpy()
            input_scale[layer] = kernels.EACH_TOKEN if fp8.input is None else fp8.input
    return kernels.Matrix(packed, bias, scale, input_scale)


def _halves(weight: Tensor) -> NDArray[np.uint16]:
    """Return bfloat16 values as the upper halves of float32."""
    halves: NDArray[np.uint16] = (
        weight.to(torch.bfloat16).contiguous().view(torch.int16).numpy().view(np.uint16)
    )
    return halves


def _stack(rows: Iterable[NDArray[np.float32]]) -> NDArray[np.float32]:
    return np.stack(list(rows))
