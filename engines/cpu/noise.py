"""Random numbers that are a pure function of (seed, position, purpose).

A token drawn at a position then depends neither on how many draft tokens were proposed nor on how
the answer was cut into calls, and a draft that draws with the same seed shares the target's noise
(Gumbel-max coupling), which makes the two agree more often than independent draws would.

The numbers come from the raw 64-bit words of Philox, a counter-based generator (Salmon et al. 2011),
which numpy keeps stable across versions.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Purpose(IntEnum):
    """What a number is for; numbers for different purposes are independent."""

    SAMPLE = 0
    ACCEPT = 1
    RESIDUAL = 2


def uniforms(seed: int, position: int, purpose: Purpose, count: int) -> Floats:
    """Return `count` numbers in the open interval (0, 1).

    The seed and the purpose are the key, the position the high words of the counter, so that no two
    streams overlap before 2^66 numbers.
    """
    generator = np.random.Philox(
        key=np.array([seed, purpose], dtype=np.uint64), counter=np.array([0, position, 0, 0], dtype=np.uint64)
    )
    words: NDArray[np.uint64] = generator.random_raw(count)
    return ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def gumbel(seed: int, position: int, purpose: Purpose, count: int) -> Floats:
    """Return standard Gumbel noise; argmax(log p + noise) is a draw from p."""
    noise: Floats = -np.log(-np.log(uniforms(seed, position, purpose, count)))
    return noise
