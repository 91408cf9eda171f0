"""`trtspec build`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("target", type=click.Path(path_type=Path))
@click.argument("draft", type=click.Path(path_type=Path))
@click.option(
    "--output", type=click.Path(path_type=Path), required=True, help="Folder to make; must not exist."
)
@click.option(
    "--runtime", type=click.Choice(["cpu"]), default="cpu", show_default=True, help="Where the engines run."
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16"]),
    default="float32",
    show_default=True,
    help="What the engines compute in; float32 equals Hugging Face token for token.",
)
@click.option(
    "--max-seq-len", type=int, help="Tokens of prompt and answer.  [default: the context, at most 4096]"
)
@click.option("--max-batch-size", type=int, default=16, show_default=True, help="Sequences in flight.")
@click.option(
    "--max-draft-len", type=int, default=8, show_default=True, help="Largest γ a request may ask for."
)
@click.option("--json", "as_json", is_flag=True, help="Print the manifest as JSON.")
def command(target: Path, draft: Path, output: Path, as_json: bool, **options: Any) -> None:
    """Build an engine pair from two Hugging Face checkpoints, TARGET and DRAFT.

    The checkpoints are checked against each other first; nothing is written when they do not fit.

    \b
    Example:
      trtspec build models/target models/draft --output work/pair
    """
    from trtspec.build.pair import BuildOptions, build

    report = (lambda line: None) if as_json else (lambda line: click.echo(line, err=True))
    pair = build(target, draft, output, BuildOptions(**options), report=report)
    click.echo(
        pair.manifest.model_dump_json()
        if as_json
        else f"{pair.path}: built for --runtime {options['runtime']}"
    )
