"""Sizes in config.json that no decoder can have, or that its weights contradict."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from trtspec.build.check.body import Body, is_embedding, layer_of
from trtspec.build.check.drafters import architecture_of
from trtspec.build.check.findings import Finding
from trtspec.build.check.model_shape import FLOATS, POSITIONS, ModelShape
from trtspec.build.check.rope_findings import rope_findings
from trtspec.build.checkpoint import Checkpoint
from trtspec.build.convert.families import families
from trtspec.engines.memory.decoder import positive

COUNTED = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)
# Without which no layer can be made: null is not what the architecture decides about.
NEEDED = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
# Above 0, where they are given.
SCALES = ("rope_theta", "factor", "low_freq_factor", "high_freq_factor")
MATRICES = ("mlp.gate_proj.weight", "mlp.up_proj.weight")
# One value is stored as one element.
UNPACKED = {*FLOATS, "F8_E4M3"}
REPAIR = "take a checkpoint whose config.json belongs to its weights"


def size_findings(role: str, checkpoint: Checkpoint, shape: ModelShape) -> Iterator[Finding]:
    """Yield what engines would stop at, or be built wrong by."""
    config = checkpoint.config
    if architecture_of(config) not in families():
        return  # whose sizes have other names and meanings
    wrong = [
        f"{name} {value!r:.40}"
        for name in COUNTED
        if ((value := config.get(name)) is not None or (name in config and name in NEEDED))
        and positive(config, name) is None
    ]
    if wrong:
        yield _error("sizes.number", f"the {role}'s config.json says {', '.join(wrong)}; expected 1 or more")
    yield from _scales(role, config)
    if shape.heads and shape.kv_heads and shape.heads % shape.kv_heads:
        yield _error(
            "heads.groups",
            f"the {role}'s {shape.heads} heads cannot share {shape.kv_heads} key-value heads evenly",
        )
    yield from _hidden(role, checkpoint)
    yield from _layers(role, checkpoint)
    yield from _rows(role, checkpoint, shape)
    if not any(map(POSITIONS.search, checkpoint.tensors)):
        yield from rope_findings(role, config, shape.head_dim)
        yield from _rotation(role, config, shape)


def _hidden(role: str, checkpoint: Checkpoint) -> Iterator[Finding]:
    hidden = checkpoint.config.get("hidden_size", checkpoint.config.get("n_embd"))
    for name, tensor in checkpoint.tensors.items():
        if is_embedding(name) and type(hidden) is int and tensor.shape[-1] != hidden:
            yield _error(
                "sizes.hidden",
                f"the {role}'s {name} has {tensor.shape[-1]:,} columns, config.json says {hidden:,}",
            )


def _layers(role: str, checkpoint: Checkpoint) -> Iterator[Finding]:
    """Yield where there are more decoder layers than config.json counts; fewer make a part of a model."""
    body = Body.of(checkpoint)
    if body.uncounted and body.expected and body.expected > 0:
        yield _error(
            "sizes.layers",
            f"the {role}'s weights hold {len(body.layers | body.uncounted)} decoder layers, config.json "
            f"counts {body.expected}",
        )


def _rows(role: str, checkpoint: Checkpoint, shape: ModelShape) -> Iterator[Finding]:
    """Yield where the first layer's MLP or keys have other sizes than config.json says."""
    inner = checkpoint.config.get("intermediate_size")
    first = {
        name.split(".0.", 1)[1]: tensor
        for name, tensor in checkpoint.tensors.items()
        if layer_of(name) == 0 and tensor.dtype in UNPACKED
    }
    for part in MATRICES:
        if type(inner) is int and part in first and first[part].shape[0] != inner:
            yield _error(
                "sizes.inner",
                f"the {role}'s {first[part].name} has {first[part].shape[0]:,} rows, config.json says "
                f"intermediate_size {inner:,}",
            )
    query, key = first.get("self_attn.q_proj.weight"), first.get("self_attn.k_proj.weight")
    # Left out, their number is the architecture's own; latent attention has heads of other sizes.
    is_given = "num_key_value_heads" in checkpoint.config and "kv_lora_rank" not in checkpoint.config
    if is_given and query and key and shape.heads and shape.kv_heads:
        rows = query.shape[0] * shape.kv_heads
        if key.shape[0] * shape.heads != rows:
            yield _error(
                "heads.keys",
                f"the {role}'s {key.name} has {key.shape[0]:,} rows, {shape.kv_heads} key-value heads for "
                f"{shape.heads} heads give {rows / shape.heads:,.10g}",
            )


def _scales(role: str, config: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield numbers that make every logit NaN."""
    wrong = []
    eps = config.get("rms_norm_eps")
    if eps is not None and not (_is_number(eps) and eps >= 0):
        wrong.append(f"rms_norm_eps {eps!r:.40}")
    for settings in (config, config.get("rope_parameters"), config.get("rope_scaling")):
        if isinstance(settings, dict):
            given = {name: settings[name] for name in SCALES if settings.get(name) is not None}
            wrong += [f"{n} {v!r:.40}" for n, v in given.items() if not (_is_number(v) and v > 0)]
    if wrong:
        yield _error(
            "sizes.scale",
            f"the {role}'s config.json says {', '.join(wrong)}; expected finite numbers above 0",
        )


def _is_number(value: Any) -> bool:
    """Whether a float can hold a value: JSON's integers have no end, and no number is NaN."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def _rotation(role: str, config: Mapping[str, Any], shape: ModelShape) -> Iterator[Finding]:
    """Yield where rotary embedding, which turns coordinates in pairs, leaves one alone."""
    rope = config.get("rope_scaling") or config.get("rope_parameters")
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
