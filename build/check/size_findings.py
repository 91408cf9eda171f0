"""Sizes in config.json that no decoder can have, or that its weights contradict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trtspec.build.check.body import is_embedding
from trtspec.build.check.drafters import architecture_of
from trtspec.build.check.findings import Finding
from trtspec.build.check.model_shape import POSITIONS, ModelShape
from trtspec.build.checkpoint import Checkpoint
from trtspec.build.convert.families import families

__all__ = ["size_findings"]

COUNTED = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)
REPAIR = "take a checkpoint whose config.json belongs to its weights"


def size_findings(role: str, checkpoint: Checkpoint, shape: ModelShape) -> Iterator[Finding]:
    """Yield what engines would stop at, or be built wrong by."""
    config = checkpoint.config
    if architecture_of(config) not in families():
        return  # whose sizes have other names and meanings
    # A list gives each layer a size of its own; null leaves it to the architecture.
    wrong = [
        f"{name} {value!r:.40}"
        for name in COUNTED
        if (value := config.get(name)) is not None
        and not isinstance(value, list)
        and (type(value) is not int or value < 1)
    ]
    if wrong:
        yield _error("sizes.number", f"the {role}'s config.json says {', '.join(wrong)}; expected 1 or more")
    if shape.heads and shape.kv_heads and shape.heads % shape.kv_heads:
        yield _error(
            "heads.groups",
            f"the {role}'s {shape.heads} heads cannot share {shape.kv_heads} key-value heads evenly",
        )
    yield from _hidden(role, checkpoint)
    if not any(map(POSITIONS.search, checkpoint.tensors)):
        yield from _rotation(role, config, shape)


def _hidden(role: str, checkpoint: Checkpoint) -> Iterator[Finding]:
    hidden = checkpoint.config.get("hidden_size", checkpoint.config.get("n_embd"))
    for name, tensor in checkpoint.tensors.items():
        if is_embedding(name) and type(hidden) is int and tensor.shape[-1] != hidden:
            yield _error(
                "sizes.hidden",
                f"the {role}'s {name} has {tensor.shape[-1]:,} columns, config.json says {hidden:,}",
            )


def _rotation(role: str, config: Mapping[str, Any], shape: ModelShape) -> Iterator[Finding]:
    """Yield where rotary embedding, which turns coordinates in pairs, leaves one alone."""
    rope = config.get("rope_parameters")
    settings = {**config, **(rope if isinstance(rope, dict) else {})}
    part = settings.get("partial_rotary_factor", 1.0)
    if shape.head_dim is None or type(part) not in (int, float) or not 0 < part <= 1:
        return
    turned = int(shape.head_dim * part)
    if turned % 2:
        yield _error(
            "heads.odd",
            f"the {role}'s heads have {turned} coordinates to rotate, expected an even number: "
            "they are turned in pairs",
        )


def _error(id_: str, message: str) -> Finding:
    return Finding(id_, "error", message, REPAIR)
