"""What a recipe may say: a section for each command, in it the command's own arguments and options.

They are read from the commands, so that names, types, choices and help exist once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Annotated, Any, Literal

import click
from pydantic import BaseModel, ConfigDict, Field, create_model

SECTIONS = ("build", "repo")
OWN_TYPE = int | float | str
# How a command is to talk is no part of what it makes.
LEFT_OUT = {"recipe", "as_json", "rules", "dry_run"}


@cache
def parameters(section: str) -> Mapping[str, click.Parameter]:
    """Return what a section may say, by its key, in the order of the command's help."""
    module = import_module(f"trtspec.cli.{section}")
    command = module.command
    if isinstance(command, click.Group):
        command = command.commands[module.DEFAULT]
    assert isinstance(command, click.Command)
    return {
        parameter.name: parameter for parameter in command.params if parameter.name and _is_key(parameter)
    }


@cache
def schema(section: str) -> type[BaseModel]:
    """Return the model of a section; every key may be left out, none may be made up."""
    fields: dict[str, Any] = {
        name: (_type(parameter), Field(default=None, description=summary(parameter)))
        for name, parameter in parameters(section).items()
    }
    config = ConfigDict(extra="forbid", strict=True, frozen=True)
    return create_model(f"{section.capitalize()}Section", __config__=config, **fields)


def summary(parameter: click.Parameter) -> str:
    """Return what a key means, in one line."""
    text = getattr(parameter, "help", None) or f"The {parameter.name}, as on the command line."
    choices = f" {' | '.join(parameter.type.choices)}." if isinstance(parameter.type, click.Choice) else ""
    return " ".join(text.split()) + choices


def has_own_type(parameter: click.Parameter) -> bool:
    """Whether what an option takes is spelt in a way of the command's own, such as "auto" or a number."""
    return not parameter.multiple and _element(parameter.type) == OWN_TYPE


def _is_key(parameter: click.Parameter) -> bool:
    return parameter.name not in LEFT_OUT and not parameter.is_eager


def _type(parameter: click.Parameter) -> Any:
    one = _element(parameter.type)
    return list[one] if parameter.multiple else one  # type: ignore[valid-type]  # a type made at run time


def _element(kind: click.ParamType[Any]) -> Any:
    """Return the type of a value in TOML; what has no type there is written as on the command line."""
    match kind:
        case click.Choice():
            numbers = [int(choice) for choice in kind.choices if choice.isdecimal()]
            return Literal[(*numbers, *kind.choices)]
        case click.IntRange() | click.FloatRange():
            number = int if isinstance(kind, click.IntRange) else float
            return Annotated[number, Field(ge=kind.min, le=kind.max)]
        case click.types.BoolParamType():
            return bool
        case click.types.IntParamType():
            return int
        case click.types.FloatParamType():
            return float
        case click.types.StringParamType() | click.Path():
            return str
        case _:
            return OWN_TYPE
