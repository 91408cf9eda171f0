"""How far apart the logits of two correct computations may lie, from arithmetic alone.

A computation in a dtype of unit roundoff u rounds every stored value by a relative error that is
uniform up to u of its binade; for values without a preferred scale its root mean square is
u / √(8 ln 2) = 0.42 u. The residual stream is rounded at each of its 2 L additions, and those errors
add like a random walk: 2 L. The branches add what is rounded inside one of them (its weights, its
inputs, its inner values: 16 at most), once and not for every layer, because the stream is the sum of
branches that point into different directions. So the hidden state is off by

    ε = u √((2 L + 16) / (8 ln 2))

of its length, in a direction that knows nothing of the output matrix: each logit moves by ε s, where
s is the standard deviation of the row of logits, and the difference of two by √2 ε s. The bound is
four of those (6 in 100,000), and u of the logits themselves, which are stored too.

- float16, bfloat16: u = 2^-11, 2^-8; sums are kept in float32 and add nothing.
- float32: u = 2^-24, but sums of n products are kept in float32 too, and add √n: n roundings for one.
- fp8: the computation is bfloat16's, and the inputs of the matrix products are E4M3, u = 2^-4. Which
  way a value is rounded is decided by its last bits, so that two computations differ by two roundings
  of each of the two products that lie one after the other in a branch: 4 more, of that u.
- fp8-float32: the same inputs in a float32 computation. Before they are rounded, values differ by so
  little that few are rounded the other way; those few make the next inputs differ, and more are. How
  far that goes depends on the depth and has no simple form. One rounding for the four is measured, not
  derived, and would be three standard deviations if every rounding went its own way.

Measured on the demo pair's target (16 layers, 660 positions, transformers against float64; bound, mean
and largest in units of u): bfloat16 2.9, 1.7, 4.7; float16 2.9, 1.7, 4.9; float32 47, 8.2, 20. Where
bfloat16 changed the choice, in 6 positions, the gap was at most 0.026 logits; the bound is 0.18.

Measured on its FP8 codes (1083 positions of 20 greedy answers, `benchmarks/verify.py --fp8`): with all
values of the stream rounded to bfloat16, 34 choices changed, with gaps of at most 0.37 of the bound,
0.34 logits; the difference of the two best logits was off by at most 0.76 of it. Tails are longer than
normal ones, so that there is nothing to take away. In float32 with relative noise of 2^-22, 6 choices
changed, with gaps of at most 0.11 of the bound; the difference was off by at most 0.57 of it. Served by
the cpu runtime, 29 ties in 46,080 tokens had gaps of at most 0.11 logits, 0.25 of the bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtspec.choices import Dtype, EngineDtype

# A row over the vocabulary.
Row = NDArray[np.floating[Any]]

_ROUNDOFF: dict[Dtype, float] = {
    "float32": 2.0**-24,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "fp8": 2.0**-8,
    "fp8-float32": 2.0**-24,
}
_E4M3_ROUNDOFF = 2.0**-4
# Of an input, in one branch.
_E4M3_ROUNDINGS: dict[Dtype, int] = {"fp8": 4, "fp8-float32": 1}
_IN_A_BRANCH = 16
_SIGMAS = 4


def served_dtype(dtype: EngineDtype, *, quantized: bool) -> Dtype:
    """Return what an engine of a dtype computes in, its matrices in FP8 where it is quantised."""
    if not quantized:
        return dtype
    return "fp8-float32" if dtype == "float32" else "fp8"


@dataclass(frozen=True)
class Noise:
    """The noise of a served dtype for a model of this depth and width."""

    dtype: Dtype
    layers: int
    width: int

    @cached_property
    def relative(self) -> float:
        """ε: what a logit moves by, in standard deviations of its row."""
        roundoff = _ROUNDOFF[self.dtype]
        sums = self.width if roundoff == _ROUNDOFF["float32"] else 1
        variance = (2 * self.layers + _IN_A_BRANCH) * sums * roundoff**2
        variance += _E4M3_ROUNDINGS.get(self.dtype, 0) * _E4M3_ROUNDOFF**2
        return math.sqrt(variance / (8 * math.log(2)))

    def bound(self, logits_V: Row) -> float:
        """Return by how much two logits of a row, or a log-prob of it, may be off."""
        spread, largest = _extent(logits_V)
        stored = 2 * _ROUNDOFF[self.dtype] * largest
        return _SIGMAS * math.sqrt(2) * self.relative * spread + stored

    def kl(self, logits_V: Row) -> float:
        """Return the KL divergence that such noise makes on average, in nats: (ε s)² / 2."""
        return (self.relative * _extent(logits_V)[0]) ** 2 / 2

    def largest_kl(self, logits_V: Row) -> float:
        """Return the KL divergence of logits that are off by no more than `bound` from each other.

        For q ∝ p exp(δ), D(p ‖ q) = log E exp(δ) - E δ under p, which is at most range(δ)² / 8
        (Hoeffding 1963, lemma 1).
        """
        return self.bound(logits_V) ** 2 / 8


def _extent(logits_V: Row) -> tuple[float, float]:
    """Return standard deviation and largest magnitude of the logits that are not masked."""
    row_V = logits_V.astype(np.float64)
    finite_V = row_V[np.isfinite(row_V)]
    mean = finite_V.mean()
    variance = float(np.dot(finite_V, finite_V)) / len(finite_V) - mean * mean
    return math.sqrt(max(0.0, variance)), float(np.abs(finite_V).max())
