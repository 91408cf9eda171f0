"""Several numbers in one option."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import click


class Numbers(click.ParamType):  # type: ignore[type-arg]
    """Numbers with commas between them, each once; `words` stand for numbers of their own."""

    def __init__(
        self,
        kind: type[int] | type[float],
        *,
        low: float,
        high: float,
        words: Mapping[str, int] | None = None,
    ) -> None:
        self.name = "N,N,…"
        self._kind, self._low, self._high, self._words = kind, low, high, words or {}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        found = [self._number(part.strip(), value, param, ctx) for part in value.split(",")]
        # As they are printed: what is measured at each goes by that name.
        if len({f"{number:g}" for number in found}) < len(found):
            self.fail(f"found {value!r}, expected each number once, to six digits", param, ctx)
        return tuple(found)

    def _number(
        self, part: str, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | float:
        if part in self._words:
            return self._words[part]
        try:
            number: int | float = self._kind(part)
        except ValueError:
            number = math.nan
        if self._low <= number <= self._high:
            return number
        or_words = "".join(f" or {word}" for word in self._words)
        expected = f"numbers from {self._low:g} to {self._high:g}{or_words}, with commas between them"
        raise click.BadParameter(f"found {value!r}, expected {expected}", ctx, param)
