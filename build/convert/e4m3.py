"""FP8 E4M3 ("e4m3fn"): 4 exponent and 3 mantissa bits, no infinities, largest value 448.

Plain numpy, like `elements`: a weight of 16 bits has 65,536 values, so a table of their codes is as exact
as the arithmetic it was made with, and faster.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
import numpy.typing as npt

from trtspec.build.convert.elements import FLOAT_NAMES, Array, cast, to_float32

E4M3 = "F8_E4M3"  # safetensors spelling
LARGEST = np.float32(448.0)

_NAN = 0x7F
# Float32 exponents below 2**-6 are subnormal here: multiples of 2**-9.
_SMALLEST_NORMAL = np.float32(2.0**-6)
_BIAS_SHIFT = (127 - 7) << 3


def encode(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Return the codes nearest to the values, ties to even; beyond 448 becomes 448."""
    magnitudes = np.minimum(np.abs(values), LARGEST)
    bits = magnitudes.view(np.uint32)
    normal = ((bits + 0x7FFFF + (bits >> 20 & 1)) >> 20) - np.uint32(_BIAS_SHIFT)
    with np.errstate(invalid="ignore"):
        subnormal = np.rint(magnitudes * np.float32(512)).astype(np.uint32)
    codes = np.where(magnitudes < _SMALLEST_NORMAL, subnormal, normal)
    codes = np.where(np.isnan(values), np.uint32(_NAN), codes)
    signs = np.signbit(values).astype(np.uint32) << 7
    signed: npt.NDArray[np.uint8] = (codes | signs).astype(np.uint8)
    return signed


@cache
def values_of_codes() -> npt.NDArray[np.float32]:
    """Return the value of each of the 256 codes."""
    codes = np.arange(256, dtype=np.uint32)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    normal = np.ldexp(1 + mantissa / 8, exponent.astype(np.int32) - 7)
    magnitudes = np.where(exponent == 0, mantissa / 512, normal)
    magnitudes[[_NAN, 0x80 | _NAN]] = np.nan
    values: npt.NDArray[np.float32] = np.where(codes < 128, magnitudes, -magnitudes).astype(np.float32)
    return values


@dataclass(frozen=True)
class Encode:
    """Turns raw float weights into codes of weight / scale.

    Attributes:
        dtype: of the weights, safetensors spelling.
        twice: the quotient is rounded to `dtype` before it is rounded to a code: what PyTorch computes
            when the scale has no dimensions, and so what unified Hugging Face checkpoints hold.
    """

    scale: np.float32
    dtype: str
    twice: bool

    def __call__(self, bits: Array) -> Array:
        """Return the codes of raw elements."""
        if bits.itemsize == 2:
            # Every index is in range; "clip" only spares the check.
            return np.take(_codes_of_all(self), bits, mode="clip")
        return _encode_quotient(bits, self)


@lru_cache(maxsize=64)
def _codes_of_all(how: Encode) -> npt.NDArray[np.uint8]:
    return _encode_quotient(np.arange(1 << 16, dtype=np.uint16), how)


def _encode_quotient(bits: Array, how: Encode) -> npt.NDArray[np.uint8]:
    with np.errstate(all="ignore"):
        quotients = to_float32(bits, how.dtype) / how.scale
        if how.twice and how.dtype in FLOAT_NAMES:
            quotients = to_float32(cast(quotients.view(np.uint32), "F32", how.dtype), how.dtype)
        return encode(quotients)


@dataclass(frozen=True)
class Rescale:
    """Turns codes of one scale into codes of a larger one, as TensorRT-LLM does when it fuses q, k and v."""

    scale: np.float32
    into: np.float32

    def __call__(self, codes: Array) -> Array:
        """Return the codes of the other scale."""
        return np.take(_rescaled_codes(self), codes, mode="clip")


@lru_cache(maxsize=64)
def _rescaled_codes(how: Rescale) -> npt.NDArray[np.uint8]:
    return encode(values_of_codes() * how.scale / how.into)
