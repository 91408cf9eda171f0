"""Largest magnitudes in, FP8 scales out: scale = largest / 448, in float32."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from trtspec.build.checkpoint import Checkpoint, shown_count
from trtspec.build.convert.e4m3 import LARGEST
from trtspec.build.convert.elements import FLOAT_NAMES, is_float, raw_view, to_float32
from trtspec.build.convert.fp8 import Fp8Scales, LinearScales
from trtspec.build.convert.linears import LayerLinears
from trtspec.build.tensor_file import TensorInfo, main_dtype
from trtspec.errors import BuildError, CheckpointError

# Stays in a core's cache between reading and looking.
BLOCK_BYTES = 1 << 20
_SMALLEST_NORMAL = np.finfo(np.float32).tiny


def weight_scales(checkpoint: Checkpoint, linears: Iterable[LayerLinears]) -> Fp8Scales:
    """Return the scales of the weights of a checkpoint that is to be quantised, and none of activations.

    Raises:
        CheckpointError: a weight is not finite, or all zero.
        BuildError: a scale underflows.
    """
    names = [name for layer in linears for name in layer.names]
    weights = {name: largest_weight(_source(checkpoint, name)) for name in names}
    zero = [name for name, value in weights.items() if value == 0]
    if zero:
        raise CheckpointError(
            f"{checkpoint.path}: {shown_count(zero, 'weight')}, all zero, which no scale fits; the "
            "checkpoint is damaged, or take --quantization none"
        )
    return Fp8Scales(
        {
            name: LinearScales(np.asarray(scale(largest, f"{name}.weight")), None)
            for name, largest in weights.items()
        }
    )


def with_activations(
    weights: Fp8Scales, inputs: Mapping[str, float], cache: Mapping[str, tuple[float, float]]
) -> Fp8Scales:
    """Return scales of weights together with those of activations.

    Args:
        inputs: the largest magnitude at the input of each matrix.
        cache: the largest key and value of each attention module, for an FP8 cache.

    Raises:
        BuildError: the calibration did not reach a matrix, or a scale underflows.
    """
    missed = [name for name in weights.linears if not inputs.get(name)]
    if missed:
        raise BuildError(
            f"{shown_count(missed, 'module')}, whose input calibration never saw, or saw only as zeros; "
            "calibrate on texts that reach all of the model"
        )
    return replace(
        weights,
        linears={
            name: replace(found, input=scale(inputs[name], f"the input of {name}"))
            for name, found in weights.linears.items()
        },
        cache={
            name: (scale(key, f"the keys of {name}"), scale(value, f"the values of {name}"))
            for name, (key, value) in cache.items()
        },
    )


def scale(largest: float, what: str) -> np.float32:
    """Return the scale under which `largest` becomes 448.

    Raises:
        BuildError: it is so small that float32 cannot divide by it.
    """
    found = np.float32(largest) / LARGEST
    if not found >= _SMALLEST_NORMAL:
        raise BuildError(
            f"{what}: the largest magnitude is {largest:.3g}, whose scale underflows float32; FP8 cannot "
            "hold it, take --quantization none"
        )
    return found


def _source(checkpoint: Checkpoint, module: str) -> TensorInfo:
    name = f"{module}.weight"
    tensor = checkpoint.tensors.get(name)
    if tensor is None:
        raise CheckpointError(f"{checkpoint.path}: no tensor {name!r}, which config.json implies")
    if not is_float(tensor.dtype):
        raise CheckpointError(
            f"{checkpoint.path}: {name} is {tensor.dtype}, expected one of {', '.join(FLOAT_NAMES)}; it is "
            "quantised already"
        )
    return tensor


def largest_weight(tensor: TensorInfo) -> float:
    """Return the largest magnitude in a tensor, read in blocks.

    Raises:
        CheckpointError: it holds NaN or Inf.
    """
    largest = 0
    with tensor.file.open("rb") as stream:
        stream.seek(tensor.offset)
        buffer = bytearray(min(BLOCK_BYTES, tensor.size_bytes))
        left = tensor.size_bytes
        while left:
            view = memoryview(buffer)[: min(left, len(buffer))]
            if stream.readinto(view) != len(view):
                raise CheckpointError(
                    f"{tensor.file}: ends inside tensor {tensor.name!r}; it changed while it was read"
                )
            bits = raw_view(view, tensor.element_bytes)
            # Without their sign, bits of floats are in the order of magnitudes: no copy is needed.
            sign = 1 << (8 * bits.itemsize - 1)
            largest = max(largest, int(bits.view(f"i{bits.itemsize}").max()), int(bits.max()) & (sign - 1))
            left -= len(view)
    found = float(to_float32(np.array([largest], dtype=f"u{tensor.element_bytes}"), tensor.dtype)[0])
    if not np.isfinite(found):
        raise CheckpointError(
            f"{tensor.file}: tensor {tensor.name!r} holds NaN or Inf; the checkpoint is damaged or diverged "
            "in training"
        )
    return found


def main_float(checkpoint: Checkpoint) -> str:
    """Return the type that most of the unquantised weights have, as float16, bfloat16 or float32."""
    return FLOAT_NAMES[main_dtype(t for t in checkpoint.tensors.values() if is_float(t.dtype))]
