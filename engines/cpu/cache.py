"""Which token ids each cache slot holds, and which slot a new request gets.

A request resumes from the longest prefix any slot holds; nothing held is computed twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Placement:
    """A slot for a request, how many leading ids it need not compute, and the slot they are copied from."""

    slot: int
    reused: int
    copied_from: int | None


@dataclass(slots=True)
class _Slot:
    length: int = 0
    prompt_length: int = 0
    busy: bool = False
    last_used: int = 0


class PrefixCache:
    """The bookkeeping of the cache slots; the tensors are the model's."""

    def __init__(self, slots: int, max_seq_len: int) -> None:
        # First, since it is what finds that there is no room for so many.
        self._ids = np.zeros((slots, max_seq_len), np.int64)
        self._slots = [_Slot() for _ in range(slots)]
        self._clock = 0

    @property
    def busy(self) -> int:
        """How many slots requests are running in."""
        return sum(slot.busy for slot in self._slots)

    def acquire(self, ids: Sequence[int]) -> Placement:
        """Return where a request with these ids runs; at most len(ids) - 1 of them are reused.

        An idle slot is continued in place if the request extends what its last one was asked: what
        that one generated and this one dropped, such as refused draft tokens, is not worth keeping.
        Any other slot keeps what it holds, and the shared prefix is copied to the idle slot that was
        used longest ago.
        """
        wanted = np.asarray(ids, dtype=np.int64)
        most = len(wanted) - 1
        shared = self._shared(wanted, most)
        longest = max(shared)
        idle = [index for index, slot in enumerate(self._slots) if not slot.busy]
        place = min(idle, key=lambda index: self._slots[index].last_used)
        for index in idle:
            extends = shared[index] >= min(self._slots[index].prompt_length, most)
            if longest and shared[index] == longest and extends:
                place = index
        slot = self._slots[place]
        copied_from = None
        if shared[place] < longest:
            copied_from = shared.index(longest)
            self._ids[place, :longest] = wanted[:longest]
        slot.length, slot.prompt_length, slot.busy = longest, len(wanted), True
        return Placement(place, longest, copied_from)

    def hold(self, slot: int, start: int, ids: Sequence[int]) -> None:
        """Record that a busy slot holds `ids` from position `start` on, and nothing after them."""
        end = start + len(ids)
        self._ids[slot, start:end] = ids
        self._slots[slot].length = end

    def release(self, slot: int) -> None:
        """Make a slot idle; what it holds can be reused."""
        self._clock += 1
        self._slots[slot].busy = False
        self._slots[slot].last_used = self._clock

    def forget(self, slot: int) -> None:
        """Make a slot idle and empty, after a pass that may have left it half written."""
        self._slots[slot].length = 0
        self._slots[slot].busy = False
        self._slots[slot].last_used = 0

    def _shared(self, wanted: NDArray[np.int64], most: int) -> list[int]:
        """Return how many leading ids each slot has in common with these, `most` at most."""
        differ = self._ids[:, :most] != wanted[:most]
        same = np.where(differ.any(1), differ.argmax(1), most) if most else np.zeros(len(differ), np.int64)
        return [min(length, slot.length) for length, slot in zip(same.tolist(), self._slots, strict=True)]
