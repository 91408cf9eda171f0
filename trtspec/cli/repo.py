"""`trtspec repo`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from trtspec.recipe.option import recipe_option


class DraftTokens(click.ParamType):  # type: ignore[type-arg]
    """A number of draft tokens, or auto."""

    name = "auto|N"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        return value if value == "auto" else click.IntRange(min=0).convert(value, parameter, context)


@click.command()
@click.argument("pair", type=click.Path(path_type=Path))
@click.option(
    "--output", type=click.Path(path_type=Path), required=True, help="Folder to make; must not exist."
)
@click.option(
    "--num-draft-tokens",
    type=DraftTokens(),
    help="γ of a request that asks for none; auto: chosen for every round.  [default: 5]",
)
@click.option(
    "--chat-template",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Jinja file that renders conversations, in place of the checkpoint's.",
)
@click.option(
    "--exclude-input-in-output/--include-input-in-output",
    default=True,
    show_default=True,
    help="What text_output holds when a request does not say.",
)
@click.option(
    "--max-inflight-requests",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="More than that are told: busy.",
)
@recipe_option("repo")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(pair: Path, output: Path, as_json: bool, **options: Any) -> None:
    """Write the Triton model repository of an engine PAIR.

    It needs nothing outside itself: move it, copy it to another host, serve it there.

    \b
    Example:
      trtspec repo work/pair --output work/repo
    """
    from trtspec.engines.pair import open_pair
    from trtspec.triton_repo.repository import RepositoryOptions, write_repository

    write_repository(open_pair(pair), output, RepositoryOptions(**options))
    click.echo(json.dumps({"repository": str(output)}) if as_json else f"{output}: ready for `trtspec serve`")
