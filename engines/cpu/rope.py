"""Rotary position embedding: the rotation of each position and frequency, as one complex table.

A pair of coordinates (a, b) at position t is turned by the angle t · f. Written as a + ib that is a
product with e^(i t f); the kernels take its real and its imaginary part, the cosines and the sines.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .errors import EngineLoadError

ROPE_TYPES = ("default", "linear", "llama3", "yarn")


def rope_parameters(config: dict[str, Any]) -> dict[str, Any]:
    """Return the RoPE settings of a config.json under one set of names.

    transformers 5 writes `rope_parameters`; before it there were `rope_theta` and `rope_scaling`,
    whose type was spelt `type` or `rope_type`. As there, `rope_scaling` counts alone where both are given,
    and the original positions of the config itself before those of the settings.
    """
    settings = dict(config.get("rope_scaling") or config.get("rope_parameters") or {})
    settings["rope_type"] = settings.get("rope_type", settings.pop("type", "default"))
    settings.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    settings.setdefault("original_max_position_embeddings", config.get("max_position_embeddings"))
    if config.get("original_max_position_embeddings") is not None:
        settings["original_max_position_embeddings"] = config["original_max_position_embeddings"]
    return settings


def rotation_table(settings: dict[str, Any], head_dim: int, positions: int) -> Tensor:
    """Return the complex64 rotations [positions, head_dim / 2], scaled by YaRN's attention factor.

    Angles are float32 products, as in the reference implementation, so that far positions agree.
    """
    rope_type = settings["rope_type"]
    if rope_type not in ROPE_TYPES:
        raise EngineLoadError(f"rope_type is {rope_type!r}, expected one of {', '.join(ROPE_TYPES)}")
    magnitude = 1.0
    try:
        base = float(settings["rope_theta"])
        frequencies = 1.0 / base ** (torch.arange(0, head_dim, 2).float() / head_dim)
        if rope_type == "linear":
            frequencies = frequencies / settings["factor"]
        elif rope_type == "llama3":
            frequencies = _llama3(frequencies, settings)
        elif rope_type == "yarn":
            frequencies = _yarn(frequencies, settings, base, head_dim)
            magnitude = _yarn_magnitude(settings)
    except KeyError as missing:
        raise EngineLoadError(f"config.json: rope_type {rope_type!r} needs {missing}") from None
    except (TypeError, ValueError, ArithmeticError) as error:
        raise EngineLoadError(f"config.json: rope settings {settings} give no angles ({error})") from None
    angles = torch.outer(torch.arange(positions).float(), frequencies)
    return torch.complex(angles.cos() * magnitude, angles.sin() * magnitude)


def _llama3(frequencies: Tensor, settings: dict[str, Any]) -> Tensor:
    """Llama 3.1: long wavelengths are divided by `factor`, short ones kept, those between blended."""
    factor = float(settings["factor"])
    low, high = float(settings["low_freq_factor"]), float(settings["high_freq_factor"])
    turns = frequencies * (settings["original_max_position_embeddings"] / (2 * math.pi))
    kept: Tensor = ((turns - low) / (high - low)).clamp(0, 1)
    return frequencies * (kept + (1 - kept) / factor)


def _yarn(frequencies: Tensor, settings: dict[str, Any], base: float, head_dim: int) -> Tensor:
    """YaRN (arXiv:2309.00071): a linear ramp from kept to divided frequencies over the dimensions."""
    context = settings["original_max_position_embeddings"]

    def dimension(turns: float) -> float:
        return head_dim * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(base))

    first = dimension(settings.get("beta_fast") or 32)
    last = dimension(settings.get("beta_slow") or 1)
    if settings.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    ramp: Tensor = (torch.arange(head_dim // 2).float() - first) / max(last - first, 1e-3)
    divided = ramp.clamp(0, 1)
    return frequencies * (divided / float(settings["factor"]) + (1 - divided))


def _yarn_magnitude(settings: dict[str, Any]) -> float:
    """Return the factor on queries and keys that keeps the attention's entropy (YaRN, section 3.4)."""
    if settings.get("attention_factor") is not None:
        return float(settings["attention_factor"])

    def scale(weight: float) -> float:
        factor: float = settings["factor"]
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    numerator, denominator = settings.get("mscale"), settings.get("mscale_all_dim")
    if numerator and denominator:
        return scale(numerator) / scale(denominator)
    return scale(1.0)
