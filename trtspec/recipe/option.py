"""The option --recipe of a command. Light: what reads the file is imported when there is one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def recipe_option(section: str) -> Callable[[Command], Command]:
    """Give a command the option --recipe, whose file stands in for whatever is not given."""

    def take(ctx: click.Context, param: click.Parameter, value: Path | None) -> None:
        if value is not None:
            from trtspec.recipe.file import read_recipe

            ctx.default_map = read_recipe(value).section(section)

    return click.option(
        "--recipe",
        type=click.Path(path_type=Path),
        is_eager=True,
        expose_value=False,
        callback=take,
        help="A recipe.toml for whatever is not given here; see `trtspec recipe`.",
    )
