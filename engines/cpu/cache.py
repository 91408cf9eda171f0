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


class _Slot:
    def __init__(self, max_seq_len: int) -> None:
        self.buffer: NDArray[np.int64] = np.empty(max_seq_len, dtype=np.int64)
        self.length = 0
        self.prompt_length = 0
        self.busy = False
        self.last_used = 0

    def shared(self, wanted: NDArray[np.int64]) -> int:
        """Return the length of the common prefix."""
        length = min(self.length, len(wanted))
        differ = np.flatnonzero(self.buffer[:length] != wanted[:length])
        return int(differ[0]) if len(differ) else length


class PrefixCache:
    """The bookkeeping of the cache slots; the tensors are the model's."""

    def __init__(self, slots: int, max_seq_len: int) -> None:
        self._slots = [_Slot(max_seq_len) for _ in range(slots)]
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
        shared = [min(slot.shared(wanted), most) for slot in self._slots]
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
            slot.buffer[:longest] = wanted[:longest]
        slot.length, slot.prompt_length, slot.busy = longest, len(wanted), True
        return Placement(place, longest, copied_from)

    def hold(self, slot: int, start: int, ids: Sequence[int]) -> None:
        """Record that a busy slot holds `ids` from position `start` on, and nothing after them."""
        end = start + len(ids)
        self._slots[slot].buffer[start:end] = ids
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
