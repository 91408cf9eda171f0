"""`trtspec adopt`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("pair", type=click.Path(path_type=Path))
@click.argument("engines", type=click.Path(path_type=Path))
@click.option(
    "--output", type=click.Path(path_type=Path), required=True, help="Folder to make; must not exist."
)
@click.option("--json", "as_json", is_flag=True, help="Print the manifest as JSON.")
def command(pair: Path, engines: Path, output: Path, as_json: bool) -> None:
    """Finish PAIR, which was converted for TensorRT-LLM, with the ENGINES that its script has compiled.

    Every engine must be the one that was asked for, by its own config.json, and whole.

    \b
    Example:
      trtspec build TARGET DRAFT --output work/converted --runtime tensorrt --script compile.sh
      ./compile.sh work/converted work/engines          # on the GPU host
      trtspec adopt work/converted work/engines --output work/pair
    """
    from trtspec.build.adoption import adopt

    finished = adopt(pair, engines, output)
    if as_json:
        click.echo(finished.manifest.model_dump_json())
    else:
        click.echo(f"{finished.path}: built for --runtime {finished.manifest.runtime}")
