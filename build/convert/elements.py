"""Element types of weights: their names here and there, whether values are finite, and casts.

Plain numpy over the raw bits: a copy stays a copy, nothing is imported that takes seconds to load, and
numpy releases the interpreter while it works.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from trtspec.build.convert.formats import FLOATS

Array = npt.NDArray[Any]

FLOAT_NAMES: Mapping[str, str] = {spelling: name for name, spelling in FLOATS.items()}

# The bits of positive infinity; of NaN for the type that has none.
_INFINITY: Mapping[str, int] = {
    "F8_E4M3": 0x7F,
    "F16": 0x7C00,
    "BF16": 0x7F80,
    "F32": 0x7F80_0000,
    "F64": 0x7FF0_0000_0000_0000,
}


def is_float(dtype: str) -> bool:
    """Whether a type is one of the three that TensorRT-LLM computes in."""
    return dtype in FLOAT_NAMES


def raw_view(data: memoryview, element_bytes: int) -> Array:
    """Return the elements as unsigned integers of their width."""
    return np.frombuffer(data, dtype=f"u{element_bytes}")


def is_finite(bits: Array, dtype: str) -> bool:
    """Whether no element is NaN or infinite; of types narrower than 16 bits only F8_E4M3 is looked at.

    An element is not finite when its bits, without the sign, reach those of infinity. Two maxima, of the
    signed and of the unsigned reading, see both signs without a copy.
    """
    infinity = _INFINITY.get(dtype)
    if infinity is None or bits.size == 0:
        return True
    negative_infinity = infinity | 1 << (8 * bits.itemsize - 1)
    return int(bits.view(f"i{bits.itemsize}").max()) < infinity and int(bits.max()) < negative_infinity


def first_not_finite(bits: Array, dtype: str) -> int:
    """Return the flat index of the first element that `is_finite` objects to."""
    infinity = _INFINITY[dtype]
    return int(np.argmax((bits & infinity).ravel() == infinity))


def cast(bits: Array, source: str, target: str, plus: float = 0.0) -> Array:
    """Return raw elements of another float type, after adding `plus` in float32.

    One rounding, to nearest even. Out of range becomes infinity, which the caller looks for.

    Args:
        bits: raw elements, as `raw_view` gives them, none of them NaN.
    """
    if source == target and plus == 0.0:
        return bits
    values = to_float32(bits, source)
    if plus:
        values = values + np.float32(plus)
    return _from_float32(values, target)


def to_float32(bits: Array, dtype: str) -> npt.NDArray[np.float32]:
    """Return raw elements of a float type as float32 values."""
    if dtype == "BF16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    if dtype == "F16":
        return bits.view(np.float16).astype(np.float32)
    return bits.view(np.float32)


def _from_float32(values: npt.NDArray[np.float32], dtype: str) -> Array:
    if dtype == "F16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).view(np.uint16)
    bits = np.ascontiguousarray(values).view(np.uint32)
    if dtype == "BF16":
        half_to_even = (bits >> 16 & 1) + np.uint32(0x7FFF)
        return ((bits + half_to_even) >> 16).astype(np.uint16)
    return bits
