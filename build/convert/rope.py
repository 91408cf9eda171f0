"""Rotary position embeddings: what Hugging Face says, in the words of a TensorRT-LLM checkpoint.

Read from both spellings: `rope_parameters` (transformers 5) and `rope_theta` + `rope_scaling` (before), which
count alone where both are given, as in transformers.
TensorRT-LLM takes `rotary_base` and `rotary_scaling` and builds its own tables (layers/attention.py,
create_attention_const_params, read near 1.2.1). What its tables cannot say is refused here: ignored
scaling is exact at position 0 and wrong at 8192.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from trtspec.build.convert.settings import Settings, integer, number, numbers, section
from trtspec.errors import BuildError, CheckpointError

DEFAULT_BASE = 10000.0  # of transformers, for every family here but Mixtral and Gemma-3


@dataclass(frozen=True)
class Rope:
    """One set of rotary tables."""

    base: float
    scaling: dict[str, Any] | None  # TensorRT-LLM's `rotary_scaling`; None: unscaled
    fraction: float = 1.0  # of each head that turns

    @property
    def kind(self) -> str:
        """The scaling's name: default, linear, llama3, yarn or longrope."""
        return str(self.scaling["rope_type"]) if self.scaling else "default"


def read_rope(settings: Settings, default_base: float = DEFAULT_BASE) -> Rope:
    """Return the tables of a model whose layers all turn alike."""
    parameters = section(settings, "rope_scaling") or section(settings, "rope_parameters")
    base = number(parameters, "rope_theta", number(settings, "rope_theta", default_base))
    fraction = number(parameters, "partial_rotary_factor", number(settings, "partial_rotary_factor", 1.0))
    return Rope(base, _scaling(parameters, settings), fraction)


def rotary_settings(rope: Rope) -> dict[str, Any]:
    """Return `rotary_base` and `rotary_scaling` for families that turn whole heads, without longrope.

    Raises:
        BuildError: the family's network in TensorRT-LLM has no such tables.
    """
    if rope.kind == "longrope":
        raise BuildError(
            "config.json: RoPE type 'longrope' exists in TensorRT-LLM's engine path for Phi-3 only; "
            "use the pytorch runtime"
        )
    if rope.fraction != 1.0:
        raise BuildError(
            f"config.json: partial_rotary_factor is {rope.fraction:g}, this family turns whole heads in "
            "TensorRT-LLM's engine path; use the pytorch runtime"
        )
    return {"rotary_base": rope.base, "rotary_scaling": rope.scaling}


def _scaling(parameters: Settings, settings: Settings) -> dict[str, Any] | None:
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    # Both spellings are written: TensorRT-LLM looks for "type", then for "rope_type".
    named = {"rope_type": kind, "type": kind}
    if kind == "default":
        # Not written as a type: TensorRT-LLM 1.2.1 knows no "default".
        return None
    if kind == "linear":
        return {**named, "factor": number(parameters, "factor")}
    if kind == "llama3":
        return {
            **named,
            "factor": number(parameters, "factor"),
            "low_freq_factor": number(parameters, "low_freq_factor"),
            "high_freq_factor": number(parameters, "high_freq_factor"),
            "original_max_position_embeddings": _original_positions(parameters, settings),
        }
    if kind == "yarn":
        return {**named, **_yarn(parameters, settings)}
    if kind in ("longrope", "su"):
        return {"rope_type": "longrope", "type": "longrope", **_longrope(parameters, settings)}
    raise BuildError(
        f"config.json: RoPE type {kind!r} has no equal in TensorRT-LLM's engine path (default, linear, "
        "llama3, yarn, longrope have); use the pytorch runtime"
    )


def _original_positions(parameters: Settings, settings: Settings) -> int:
    """Return the context the model was pretrained for, with transformers' order of places."""
    inside = integer(
        parameters, "original_max_position_embeddings", integer(settings, "max_position_embeddings")
    )
    return integer(settings, "original_max_position_embeddings", inside)


def _yarn(parameters: Settings, settings: Settings) -> dict[str, Any]:
    if parameters.get("truncate") is False:
        raise BuildError(
            "config.json: YaRN with truncate = false has no equal in TensorRT-LLM's engine path; "
            "use the pytorch runtime"
        )
    original = _original_positions(parameters, settings)
    factor = number(parameters, "factor", integer(settings, "max_position_embeddings") / original)
    # transformers takes the two only together; TensorRT-LLM's defaults are these numbers.
    scales = (parameters.get("mscale"), parameters.get("mscale_all_dim"))
    mscale, mscale_all_dim = (
        (number(parameters, "mscale"), number(parameters, "mscale_all_dim")) if all(scales) else (1.0, 0.0)
    )
    _refuse_attention_factor(
        parameters, _yarn_magnitude(factor, mscale) / _yarn_magnitude(factor, mscale_all_dim)
    )
    return {
        "factor": factor,
        "original_max_position_embeddings": original,
        "beta_fast": number(parameters, "beta_fast", 32.0),
        "beta_slow": number(parameters, "beta_slow", 1.0),
        "mscale": mscale,
        "mscale_all_dim": mscale_all_dim,
    }


def _yarn_magnitude(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1.0 else 0.1 * mscale * math.log(factor) + 1.0


def _longrope(parameters: Settings, settings: Settings) -> dict[str, Any]:
    original = _original_positions(parameters, settings)
    ratio = integer(settings, "max_position_embeddings") / original
    short, long = numbers(parameters, "short_factor"), numbers(parameters, "long_factor")
    if len(short) != len(long):
        raise CheckpointError(
            f"config.json: {len(short)} values in short_factor and {len(long)} in long_factor, "
            "expected as many"
        )
    magnitude = 1.0 if ratio <= 1.0 else math.sqrt(1.0 + math.log(ratio) / math.log(original))
    # A stated factor replaces the ratio in transformers; TensorRT-LLM always takes the ratio.
    stated = number(parameters, "factor", ratio)
    if stated != ratio and parameters.get("attention_factor") is None:
        raise BuildError(
            f"config.json: longrope factor {stated:g} is not max / original positions {ratio:g}, the only "
            "one TensorRT-LLM's engine path takes; use the pytorch runtime"
        )
    _refuse_attention_factor(parameters, magnitude)
    return {"short_factor": short, "long_factor": long, "original_max_position_embeddings": original}


def _refuse_attention_factor(parameters: Settings, implied: float) -> None:
    """A stated magnitude of the tables must be the one that TensorRT-LLM computes itself."""
    stated = number(parameters, "attention_factor", implied)
    if not math.isclose(stated, implied, rel_tol=1e-6):
        raise BuildError(
            f"config.json: attention_factor {stated:g}, TensorRT-LLM's engine path computes {implied:g}; "
            "use the pytorch runtime"
        )
