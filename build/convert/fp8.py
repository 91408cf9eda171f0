"""The scales of an FP8 model, and the tensors that hold them.

A value is its code times the scale. The scales were calibrated here, or came with a checkpoint that
somebody else quantised; the plans of both formats read them from this one value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from trtspec.build.convert.plan import PlannedTensor

PER_TENSOR = "FP8"
PER_CHANNEL = "FP8_PER_CHANNEL_PER_TOKEN"

# Whose layout it is; loaders look for the name.
PRODUCER = {"name": "modelopt", "version": "0.47.0"}

# A key-value cache scale below it is raised to it in TensorRT-LLM checkpoints, as ModelOpt does.
CACHE_SCALE_FLOOR = np.float32(1.0)


@dataclass(frozen=True)
class LinearScales:
    """The scales of one matrix."""

    weight: npt.NDArray[np.float32]  # [] for the whole matrix, or [out]
    input: np.float32 | None  # None: found while the model runs

    @property
    def largest(self) -> np.float32:
        """The weight's scale, or the largest of its rows'."""
        return np.float32(self.weight.max())


@dataclass(frozen=True)
class Fp8Scales:
    """The scales of a model, by the names of its modules."""

    linears: Mapping[str, LinearScales]
    # Key scale and value scale by attention module; empty: the cache is not FP8.
    cache: Mapping[str, tuple[np.float32, np.float32]] = field(default_factory=dict)
    stored: bool = False  # the checkpoint's weights are codes already
    origin: str = "trtspec"  # who quantised: trtspec, modelopt or compressed-tensors
    replaced: frozenset[str] = frozenset()  # scale tensors of the checkpoint, read already
    notes: tuple[str, ...] = ()

    @property
    def algorithm(self) -> str:
        """TensorRT-LLM's name of the layout."""
        per_channel = any(scales.weight.ndim for scales in self.linears.values())
        return PER_CHANNEL if per_channel else PER_TENSOR

    @property
    def static(self) -> bool:
        """Whether every input has a calibrated scale."""
        return all(scales.input is not None for scales in self.linears.values())


def scale_tensor(name: str, values: npt.ArrayLike) -> PlannedTensor:
    """Return a float32 tensor of these values."""
    array = np.asarray(values, dtype=np.float32)
    return PlannedTensor(name, "F32", array.shape, (), array.tobytes())


def quantization_documents(fp8: Fp8Scales, exclude: list[str]) -> tuple[Any, Any]:
    """Return what hf_quant_config.json holds, and config.json's quantization_config.

    Both are needed: TensorRT-LLM up to 1.2 reads only the first, and takes a checkpoint without it for an
    unquantised one.
    """
    eight_bits = {"dynamic": False, "num_bits": 8, "type": "float"}
    per_channel = fp8.algorithm == PER_CHANNEL
    group = {
        "input_activations": {**eight_bits, "dynamic": not fp8.static},
        "weights": {**eight_bits, **({"strategy": "channel"} if per_channel else {})},
        "targets": ["Linear"],
    }
    inline = {
        "quant_method": "modelopt",
        "quant_algo": fp8.algorithm,
        "config_groups": {"group_0": group},
        "ignore": exclude,
        "producer": PRODUCER,
        **({"kv_cache_scheme": eight_bits} if fp8.cache else {}),
    }
    beside = {
        "producer": PRODUCER,
        "quantization": {
            "quant_algo": fp8.algorithm,
            "kv_cache_quant_algo": "FP8" if fp8.cache else None,
            "exclude_modules": exclude,
        },
    }
    return beside, inline
