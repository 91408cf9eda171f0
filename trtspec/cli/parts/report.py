"""What a long command is doing, as one display on a terminal and as plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

Report = Callable[[str], None]


@contextmanager
def reporting(*, quiet: bool = False) -> Iterator[Report]:
    """Yield what takes the lines of a build, `model: what is done to it` among them, and writes to stderr.

    A terminal shows below them what each model is waiting for, and for how long.
    """
    from rich.console import Console

    console = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    if quiet:
        yield lambda line: None
    elif not console.is_terminal:
        yield lambda line: click.echo(line, err=True)
    else:
        from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            rows: dict[str, TaskID] = {}

            def show(line: str) -> None:
                console.print(line)
                model, colon, _ = line.partition(": ")
                if colon and model in ("target", "draft"):
                    if model in rows:
                        progress.remove_task(rows[model])
                    rows[model] = progress.add_task(line, total=None)

            yield show
