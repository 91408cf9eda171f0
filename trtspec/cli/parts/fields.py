"""Flags of a command from the fields of a dataclass, so that a choice and its help are written once.

A field is a flag where its type is annotated with a text, which is the help.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import click

Command = TypeVar("Command", bound=Callable[..., Any])


class Number(click.FloatRange):
    """A number in a range; click lets "nan" into every range, which then compares with nothing."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return float(number)


@dataclass(frozen=True)
class _Flag:
    field: str
    kind: Any  # bool, int, str or a Literal
    help: str
    default: Any

    @property
    def name(self) -> str:
        return f"--{self.field.replace('_', '-')}"

    def option(self) -> Callable[[Command], Command]:
        """Return the click option: a bool as --x/--no-x, a Literal as a choice, a number from 1 or 0 on."""
        shows = self.default is not None
        if self.kind is bool:
            names = f"{self.name}/--no-{self.name[2:]}"
            return click.option(names, default=self.default, show_default=True, help=self.help)
        if get_origin(self.kind) is Literal:
            choices = {str(choice): choice for choice in get_args(self.kind)}
            return click.option(
                self.name,
                type=click.Choice(list(choices)),
                default=str(self.default) if shows else None,
                callback=lambda ctx, param, value: choices.get(value),
                show_default=shows,
                help=self.help,
            )
        kind = {int: click.IntRange(min=1), float: Number(min=0)}.get(self.kind, self.kind)
        return click.option(self.name, type=kind, default=self.default, show_default=shows, help=self.help)


def flags_of(kind: type[Any]) -> Callable[[Command], Command]:
    """Return a decorator that adds the flags of a dataclass to a command."""

    def decorate(command: Command) -> Command:
        for flag in reversed(_flags(kind)):
            command = flag.option()(command)
        return command

    return decorate


def take(kind: type[Any], values: dict[str, Any]) -> dict[str, Any]:
    """Take the values of a dataclass's flags out of all that a command was given."""
    return {flag.field: values.pop(flag.field) for flag in _flags(kind)}


def changed(kind: type[Any], values: Mapping[str, Any]) -> list[str]:
    """Return the flags whose value is not the default."""
    return [flag.name for flag in _flags(kind) if values[flag.field] != flag.default]


def _flags(kind: type[Any]) -> list[_Flag]:
    hints = get_type_hints(kind, include_extras=True)
    found = []
    for field in fields(kind):
        hint = hints[field.name]
        if get_origin(hint) is Annotated:
            value, text = get_args(hint)
            found.append(_Flag(field.name, _without_none(value), text, field.default))
    return found


def _without_none(hint: Any) -> Any:
    """Return the type of a value that may be None."""
    if get_origin(hint) is Literal or not get_args(hint):
        return hint
    (kind,) = (part for part in get_args(hint) if part is not NoneType)
    return kind
