"""`trtspec convert`: one checkpoint in, a TensorRT-LLM or Hugging Face checkpoint out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import click

from trtspec.build.convert.formats import FLOATS, FORMATS


@click.command("convert")
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option("--output", required=True, type=click.Path(path_type=Path), help="Folder to make.")
@click.option(
    "--format", type=click.Choice(FORMATS), default="trtllm", show_default=True, help="What to write."
)
@click.option("--dtype", type=click.Choice(list(FLOATS)), help="Cast the weights.")
@click.option("--tp", type=click.IntRange(min=1), default=1, show_default=True, help="Tensor-parallel ranks.")
@click.option("--pp", type=click.IntRange(min=1), default=1, show_default=True, help="Pipeline stages.")
@click.option("--workers", type=click.IntRange(min=1), help="Threads; one a core by default.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def command(
    checkpoint: Path,
    output: Path,
    format: str,
    dtype: str | None,
    tp: int,
    pp: int,
    workers: int | None,
    as_json: bool,
) -> None:
    """Convert a Hugging Face CHECKPOINT folder, streaming, for trtllm-build or for its PyTorch backend.

    The weights are checked on the way (NaN, Inf, values too large for --dtype), and the output folder
    appears whole or not at all.

    \b
    Example:
      trtspec convert Llama-3.1-8B-Instruct --output work/target --tp 2
      trtllm-build --checkpoint_dir work/target --output_dir work/engine
    """
    from trtspec.build.convert.converter import convert

    with _progress(checkpoint.name, quiet=as_json) as progress:
        made = convert(
            checkpoint, output, format=format, dtype=dtype, tp=tp, pp=pp, workers=workers, progress=progress
        )
    if as_json:
        click.echo(json.dumps({**asdict(made), "output": str(made.output)}))
        return
    for note in made.notes:
        click.echo(f"note: {note}", err=True)
    from rich.filesize import decimal

    click.echo(
        f"{made.output}: {made.architecture}, {made.dtype}, {made.tensors} tensors, "
        f"{decimal(made.size_bytes)}, tp {made.tp} x pp {made.pp}"
    )


@contextmanager
def _progress(name: str, *, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Show bytes, bytes/s and the time left on stderr, where that is a terminal."""
    if quiet:
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
