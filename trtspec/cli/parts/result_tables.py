"""A result as tables in the terminal, or as one JSON object."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.table import Table

# Columns of a table at most.
WIDEST = 200


def show(as_json: bool, result: dict[str, Any], parts: Iterable[Table | str]) -> None:
    """Print a result: its tables and lines, or all of it as JSON."""
    if as_json:
        click.echo(json.dumps(result))
        return
    from trtspec.cli.parts.console import console

    screen = console()
    wide = screen.options.update(width=WIDEST)
    for part in parts:
        # Wider than the terminal rather than cut off.
        screen.width = max(screen.width, screen.measure(part, options=wide).maximum)
        screen.print(part)
