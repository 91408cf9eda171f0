"""The terminal, as every command writes to it: words of servers and files neither style nor steer it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from trtspec.cli.parts.printable import printable


class _PrintableConsole(Console):
    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text that is measured as it will be printed."""
        return super().render_str(printable(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield what is printed, of a `Text` too; a style's own codes are no segment's text."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def console(*, stderr: bool = False, width: int | None = None) -> Console:
    """Return the console of this moment's stdout or stderr; lines are as long as they are."""
    return _PrintableConsole(stderr=stderr, width=width, soft_wrap=True, highlight=False, markup=False)
