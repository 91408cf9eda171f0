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

            said = read_recipe(value).section(section)
            ctx.default_map = {key: _as_typed(value) for key, value in said.items()}

    return click.option(
        "--recipe",
        type=click.Path(path_type=Path),
        is_eager=True,
        expose_value=False,
        callback=take,
        help="A recipe.toml for whatever is not given here; see `trtspec recipe`.",
    )


def yields(name: str, *to: str) -> bool:
    """Whether an option stands in the recipe and one of those that exclude it on the command line."""
    ctx = click.get_current_context()
    typed = click.core.ParameterSource.COMMANDLINE
    in_recipe = ctx.get_parameter_source(name) is click.core.ParameterSource.DEFAULT_MAP
    return in_recipe and any(ctx.get_parameter_source(other) is typed for other in to)


def _as_typed(value: Any) -> Any:
    """Return a value as the command line would have it, which is what the options' types convert."""
    if isinstance(value, list):
        return [str(part) for part in value]
    return value if isinstance(value, bool) else str(value)
