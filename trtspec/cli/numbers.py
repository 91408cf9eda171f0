"""Several numbers in one option."""

from __future__ import annotations

import math
from typing import Any

import click


class Numbers(click.ParamType):  # type: ignore[type-arg]
    """Numbers with commas between them, each once; with `auto`, that word is -1."""

    def __init__(self, kind: type[int] | type[float], *, low: float, high: float, auto: bool = False) -> None:
        self.name = "N,N,…"
        self._kind, self._low, self._high, self._auto = kind, low, high, auto

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
        if self._auto and part == "auto":
            return -1
        try:
            number: int | float = self._kind(part)
        except ValueError:
            number = math.nan
        if self._low <= number <= self._high:
            return number
        auto = " or auto" if self._auto else ""
        expected = f"numbers from {self._low:g} to {self._high:g}{auto}, with commas between them"
        raise click.BadParameter(f"found {value!r}, expected {expected}", ctx, param)
