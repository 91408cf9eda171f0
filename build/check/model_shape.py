"""What a decoder costs and how it is shaped, from its config and the headers of its weights."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtspec.build.check.body import is_embedding, is_head
from trtspec.build.checkpoint import Checkpoint
from trtspec.build.tensor_file import TensorInfo, main_dtype
from trtspec.engines.memory.decoder import positive
from trtspec.engines.memory.ranks import splits_heads

FLOATS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
POSITIONS = re.compile(r"(?:^|\.)(?:wpe|embed_positions)\.weight$")
EXPERT = re.compile(r"\.experts\.")


@dataclass(frozen=True)
class ModelShape:
    """The numbers of a decoder; None where config.json does not give them."""

    parameters: int
    weight_bytes: int
    weight_bytes_per_token: int  # read for one token at batch size 1: of the experts only those that run
    kv_bytes_per_token: int | None  # that one token adds to the cache, in the weights' type
    dtype: str  # of most bytes, safetensors spelling
    tied: bool  # no output head of its own
    layers: int | None
    heads: int | None
    kv_heads: int | None
    head_dim: int | None
    context_length: int | None
    rope: str
    tensor_parallel: tuple[int, ...]  # up to 8: sizes over which heads and kv heads can be split

    def bytes_per_token(self, context_tokens: int) -> int:
        """Return the bytes read to make one token after `context_tokens`: weights and cache."""
        return self.weight_bytes_per_token + (self.kv_bytes_per_token or 0) * context_tokens

    def splits_over(self, ranks: int) -> bool:
        """Whether heads and kv heads can be split over so many ranks; so where they are not known."""
        return not self.heads or not self.kv_heads or splits_heads(self.heads, self.kv_heads, ranks)


def shape_of(checkpoint: Checkpoint) -> ModelShape:
    """Return the shape of a checkpoint; what config.json leaves out stays None."""
    config, tensors = checkpoint.config, checkpoint.tensors
    tied = not any(map(is_head, tensors))
    dtype = main_dtype(tensors.values())
    layers = positive(config, "num_hidden_layers", "n_layer")
    heads = positive(config, "num_attention_heads", "n_head")
    kv_heads = positive(config, "num_key_value_heads") or heads
    hidden = positive(config, "hidden_size", "n_embd")
    head_dim = positive(config, "head_dim") or (hidden // heads if hidden and heads else None)
    # Latent attention (DeepSeek) keeps one compressed row and one rotated key for all heads.
    latent, rotated = positive(config, "kv_lora_rank"), positive(config, "qk_rope_head_dim")
    row = latent + (rotated or 0) if latent else 2 * (kv_heads or 0) * (head_dim or 0)
    return ModelShape(
        parameters=sum(math.prod(tensor.shape) for tensor in tensors.values()),
        weight_bytes=sum(tensor.size_bytes for tensor in tensors.values()),
        weight_bytes_per_token=round(sum(_read(tensor, config, tied) for tensor in tensors.values())),
        kv_bytes_per_token=(layers or 0) * row * FLOATS.get(dtype, 2) or None,
        dtype=dtype,
        tied=tied,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        context_length=positive(config, "max_position_embeddings", "n_positions", "seq_length"),
        rope=_rope(config),
        tensor_parallel=tuple(
            n for n in (1, 2, 4, 8) if heads and kv_heads and splits_heads(heads, kv_heads, n)
        ),
    )


def _read(tensor: TensorInfo, config: Mapping[str, Any], tied: bool) -> float:
    """Return the bytes of a tensor that one token reads: of a table one row, unless it is the head too."""
    if POSITIONS.search(tensor.name) or (is_embedding(tensor.name) and not tied):
        return tensor.size_bytes / max(1, tensor.shape[0])
    if EXPERT.search(tensor.name):
        experts = positive(config, "num_local_experts", "num_experts", "n_routed_experts")
        running = positive(config, "num_experts_per_tok")
        return tensor.size_bytes * (running / experts if experts and running else 1)
    return tensor.size_bytes


def _rope(config: Mapping[str, Any]) -> str:
    """Return theta and scaling in words; transformers 5 writes rope_parameters, older ones two keys.

    Where both are given, the older ones count, as in transformers.
    """
    rope = config.get("rope_scaling") or config.get("rope_parameters")
    if isinstance(rope, dict) and isinstance(rope.get("full_attention"), dict):
        rope = rope["full_attention"]  # Gemma-3: one set for each kind of layer
    rope = rope if isinstance(rope, dict) else {}
    theta, factor = rope.get("rope_theta", config.get("rope_theta")), rope.get("factor")
    if not isinstance(theta, int | float):
        return "none"
    kind = rope.get("rope_type", rope.get("type", "default"))
    scaling = "" if kind == "default" else f", {kind}"
    return f"theta {_brief(theta)}{scaling}" + (
        f" × {_brief(factor)}" if scaling and isinstance(factor, int | float) else ""
    )


def _brief(value: float) -> str:
    """Return a number in a few digits, also an integer that no float holds."""
    try:
        return f"{value:g}"
    except OverflowError:
        return f"{str(value)[:8]}…"
