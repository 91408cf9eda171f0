"""`trtspec recipe`: a commented recipe.toml for a known pair."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command("recipe")
@click.argument("name", required=False)
@click.option("--list", "list_pairs", is_flag=True, help="List the known pairs and end.")
@click.option("--output", type=click.Path(path_type=Path), help="File to write; must not exist.")
@click.option("--json", "as_json", is_flag=True, help="Print what the recipe says, or the list, as JSON.")
def command(name: str | None, list_pairs: bool, output: Path | None, as_json: bool) -> None:
    """Write the recipe of a known pair, NAME: a commented TOML file for `trtspec build --recipe`.

    Nothing is downloaded. Flags beside --recipe override what the file says.

    \b
    Example:
      trtspec recipe --list
      trtspec recipe llama-3.3-70b --output llama.toml
      trtspec build --recipe llama.toml --max-batch-size 32
    """
    if (name is None) != list_pairs:
        raise click.UsageError("give a NAME or --list")
    if list_pairs and output is not None:
        raise click.UsageError("--output is for the recipe of a NAME, and not for --list")
    if name is None:
        _list(as_json)
        return
    from trtspec.recipe.known import known_pair
    from trtspec.recipe.text import recipe_of, render_known

    pair = known_pair(name)
    text = render_known(pair)
    if output is not None:
        _write(output, text)
    if as_json:
        click.echo(json.dumps(recipe_of(pair).sections))
    elif output is None:
        click.echo(text, nl=False)
    else:
        click.echo(f"{output}: for `trtspec build --recipe {output}`")


def _write(output: Path, text: str) -> None:
    from trtspec.errors import OutputError

    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise OutputError(f"{output}: exists already; remove it or choose another --output") from None
    except OSError as error:
        raise OutputError(f"{output}: {error.strerror}; choose another --output") from error


def _list(as_json: bool) -> None:
    from trtspec.recipe.known import PAIRS

    if as_json:
        rows = [
            {"name": pair.name, "target": pair.target.hub_id, "draft": pair.draft.hub_id, "gpus": pair.gpus}
            for pair in PAIRS
        ]
        click.echo(json.dumps(rows))
        return
    for pair in PAIRS:
        click.echo(f"{pair.name}\n  {pair.target.hub_id} + {pair.draft.hub_id}, {pair.gpus}")
