"""What a long command is doing, as one display on a terminal and as plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from trtspec.cli.parts.printable import printable

Report = Callable[[str], None]


def silent(line: str) -> None:
    """Say nothing: stdout is for one JSON object."""


def to_stderr(line: str) -> None:
    """Print a line on stderr."""
    click.echo(printable(line), err=True)


@contextmanager
def reporting(*, quiet: bool = False) -> Iterator[Report]:
    """Yield what takes the lines of a build, `model: what is done to it` among them, and writes to stderr.

    A terminal shows below them what each model is waiting for, and for how long.
    """
    from trtspec.cli.parts.console import console

    screen = console(stderr=True)
    if quiet:
        yield silent
    elif not screen.is_terminal:
        yield to_stderr
    else:
        from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        with Progress(*columns, console=screen, transient=True) as progress:
            rows: dict[str, TaskID] = {}

            def show(line: str) -> None:
                screen.print(line)
                model, colon, _ = line.partition(": ")
                if colon and model in ("target", "draft"):
                    if model in rows:
                        progress.remove_task(rows[model])
                    rows[model] = progress.add_task(line, total=None)

            yield show
