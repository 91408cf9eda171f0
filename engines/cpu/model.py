"""A decoder of one of our families: its weights, its cache, and passes over segments of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from .architecture import Architecture
from .compiled import compile_for, kernels
from .errors import EngineLoadError
from .layers import load_weights
from .weights import Weights


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive tokens of one sequence, to be computed at positions start, start + 1, ….

    The last `logit_rows` of them yield logits; the ones before only fill the cache.
    """

    slot: int
    start: int
    ids: Sequence[int]
    logit_rows: int


class Model:
    """A decoder with `slots` independent caches of `max_seq_len` positions each."""

    def __init__(self, architecture: Architecture, weights: Weights, *, slots: int, max_seq_len: int) -> None:
        arch = architecture
        self.vocab_size = arch.vocab_size
        self._max_seq_len = max_seq_len
        self._sizes = kernels.Sizes(
            arch.heads, arch.kv_heads, arch.head_dim, arch.intermediate_size, float(arch.norm_eps)
        )
        self._weights = load_weights(arch, weights, max_seq_len)
        self._cache = _cache(arch, slots, max_seq_len)
        # Before the first request, which would have to wait for it.
        numbers = np.zeros(1, np.int64)
        segments = kernels.Segments(numbers, numbers, numbers)
        compile_for(
            kernels.run,
            self._weights,
            self._sizes,
            self._cache,
            numbers,
            segments,
            numbers,
            numbers,
            1,
            np.zeros((1, 1), np.int64),
        )

    def copy_prefix(self, source: int, destination: int, length: int) -> None:
        """Copy the first `length` cached positions of one slot to another."""
        layers, kv_heads, positions = self._cache.keys.shape[1], self._sizes.kv_heads, self._cache.positions
        blocks = kernels.padded(length) // kernels.BLOCK
        keys = self._cache.keys.reshape(
            -1, layers, kv_heads, positions // kernels.BLOCK, kernels.BLOCK * self._sizes.head_dim
        )
        keys[destination, :, :, :blocks] = keys[source, :, :, :blocks]
        values = self._cache.values.reshape(len(keys), layers, kv_heads, -1, positions, kernels.BLOCK)
        values[destination, ..., :length, :] = values[source, ..., :length, :]

    def forward(self, segments: Sequence[Segment]) -> Tensor:
        """Run one pass and return float32 logits [Σ logit_rows, V], segment after segment.

        Raises:
            IndexError: an id, a position or a slot is outside of what the model has.
        """
        ends = np.cumsum([len(segment.ids) for segment in segments])
        wanted = [
            row
            for segment, end in zip(segments, ends, strict=True)
            for row in range(end - segment.logit_rows, end)
        ]
        logits = self._run(segments, wanted, (), np.empty((0, 0), np.int64))
        return torch.from_numpy(logits)[:, : self.vocab_size]

    def run_greedily(self, segments: Sequence[Segment], ends: Sequence[int], steps: int) -> NDArray[np.int64]:
        """Run `steps` passes at most and return the most probable token of each, [S, passes].

        The second pass reads what the first chose for each segment, and so on; none follows once every
        segment has met its end (-1: it has none).

        Raises:
            IndexError: as `forward` does.
        """
        chosen = np.full((len(segments), steps), -1)
        last = np.cumsum([len(segment.ids) for segment in segments]) - 1
        self._run(segments, last, ends, chosen)
        return chosen[:, chosen[0] >= 0]

    def _run(
        self,
        segments: Sequence[Segment],
        wanted: ArrayLike,
        ends: Sequence[int],
        chosen: NDArray[np.int64],
    ) -> NDArray[np.float32]:
        ids = np.array([token for segment in segments for token in segment.ids], np.int64)
        self._refuse_outside(segments, ids, max(0, chosen.shape[1] - 1))
        logits: NDArray[np.float32] = kernels.run(
            self._weights,
            self._sizes,
            self._cache,
            ids,
            kernels.Segments(
                np.cumsum([0, *(len(segment.ids) for segment in segments)]),
                np.array([segment.slot for segment in segments], np.int64),
                np.array([segment.start for segment in segments], np.int64),
            ),
            np.asarray(wanted, np.int64),
            np.array(ends, np.int64),
            self.vocab_size,
            chosen,
        )
        return logits

    def _refuse_outside(self, segments: Sequence[Segment], ids: NDArray[np.int64], more: int) -> None:
        """Compiled code would read and write other memory."""
        if ids.min() < 0 or ids.max() >= self.vocab_size:
            raise IndexError(f"token ids {ids.min()} to {ids.max()}, expected 0 to {self.vocab_size - 1}")
        for segment in segments:
            end = segment.start + len(segment.ids)
            if not (0 <= segment.slot < len(self._cache.keys) and 0 <= segment.start < end):
                raise IndexError(f"slot {segment.slot}, start {segment.start}, {len(segment.ids)} ids")
            if end + more > self._max_seq_len:
                raise IndexError(f"positions up to {end + more - 1}, the cache has {self._max_seq_len}")


def _cache(arch: Architecture, slots: int, max_seq_len: int) -> kernels.Cache:
    """Return an empty cache; raises EngineLoadError where this machine has no room for it."""
    positions = kernels.padded(max_seq_len)
    shape = (slots, arch.layers, arch.kv_heads)
    sizes = positions * arch.head_dim, positions * kernels.padded(arch.head_dim)
    try:
        # Pages are touched only when a slot grows into them.
        keys, values = (np.zeros((*shape, size), np.float32) for size in sizes)
    except (MemoryError, ValueError):  # ValueError: beyond what numpy counts to
        gigabytes = slots * arch.layers * arch.kv_heads * sum(sizes) * 4 // 10**9
        raise EngineLoadError(
            f"engine.json: the cache of {slots} slots of {max_seq_len} tokens takes {gigabytes:,} GB, "
            "more than this machine gives; make max_batch_size or max_seq_len smaller"
        ) from None
    return kernels.Cache(keys, values, positions)
