"""γ by the number of requests in flight, as a repository may set it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from .draft_length import FixedDraftLength, Step


@dataclass(frozen=True)
class DraftTable:
    """Rows of requests in flight and γ: one holds from its number on, up to that of the next."""

    rows: tuple[tuple[int, int], ...]

    def at(self, in_flight: int) -> int:
        """Return γ for so many requests in flight, at least 1."""
        return [length for start, length in self.rows if start <= in_flight][-1]

    def __str__(self) -> str:
        return ",".join(f"{start}:{length}" for start, length in self.rows)


DraftTokens = int | DraftTable


def read_draft_tokens(text: str) -> DraftTokens:
    """Read a number, or a table such as 1:5,4:3,16:0. ValueError says what is wrong."""
    if re.fullmatch(r"[0-9]{1,9}", text):
        return int(text)
    matches = [re.fullmatch(r"\s*([0-9]{1,9})\s*:\s*([0-9]{1,9})\s*", row) for row in text.split(",")]
    rows = tuple((int(match[1]), int(match[2])) for match in matches if match)
    if len(rows) < len(matches):
        raise ValueError(
            f"found {text!r}, expected a number of draft tokens, auto, or a table such as 1:5,4:3,16:0: 5 "
            "from one request in flight on, 3 from four, none from sixteen"
        )
    starts = [start for start, _ in rows]
    if starts[0] != 1 or any(later <= start for start, later in pairwise(starts)):
        raise ValueError(
            f"found {text!r}, whose rows begin at {', '.join(map(str, starts))} requests in flight; expected "
            "the first to begin at 1 and each further one at more"
        )
    return DraftTable(rows)


def longest(tokens: DraftTokens) -> int:
    """Return the largest number of draft tokens that may be asked for."""
    return max(length for _, length in tokens.rows) if isinstance(tokens, DraftTable) else tokens


class TabledDraftLength(FixedDraftLength):
    """The γ of a table, looked up for every round."""

    def __init__(self, table: DraftTable, in_flight: Callable[[], int]) -> None:
        super().__init__(0)
        self._table = table
        self._in_flight = in_flight

    def choose(self, remaining: int) -> Step:
        in_flight = self._in_flight()
        self._num_draft_tokens = self._table.at(in_flight)
        self.off_reason = (
            ""
            if self._num_draft_tokens
            else f"the repository sets no draft tokens with {in_flight} in flight ({self._table})"
        )
        return super().choose(remaining)
