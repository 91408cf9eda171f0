"""Read a recipe; every fault in it is said at once, with file and key."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from trtspec.errors import RecipeError
from trtspec.recipe.schema import SECTIONS, has_own_type, parameters, schema

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class Recipe:
    """What a recipe says, by section and key; what it leaves out is not there."""

    sections: Mapping[str, Mapping[str, Any]]

    def section(self, name: str) -> dict[str, Any]:
        """Return a section, empty where it is left out."""
        return dict(self.sections.get(name, {}))


def read_recipe(file: Path) -> Recipe:
    """Return the recipe in a file. Raises RecipeError with every fault in it."""
    try:
        text = file.read_text("utf-8-sig")
    except OSError as error:
        raise RecipeError(
            f"{file}: cannot be read ({error.strerror}); `trtspec recipe` writes one"
        ) from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"{file}: not UTF-8 text ({error.reason}); expected TOML") from error
    return parse_recipe(text, str(file))


def parse_recipe(text: str, where: str) -> Recipe:
    """Return the recipe in a text; `where` names it in messages. Raises RecipeError."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{where}: not TOML: {error}") from error
    faults = [fault for name, section in content.items() for fault in _faults(name, section)]
    if faults:
        raise RecipeError(f"{where}: {'; '.join(faults)}")
    return Recipe(content)


def _faults(name: str, section: object) -> Iterator[str]:
    """Yield what is wrong with a section."""
    if name not in SECTIONS:
        home = next((known for known in SECTIONS if name in parameters(known)), None)
        hint = f"put it under [{home}]" if home else _meant(name, SECTIONS)
        yield f"{name} is no section; {hint}"
    elif not isinstance(section, dict):
        yield f"{name} is a value, expected a section [{name}]"
    else:
        try:
            schema(name).model_validate(section)
        except ValidationError as error:
            # Once for a value that is none of several types.
            yield from dict.fromkeys(_fault(name, details) for details in error.errors())
        else:
            yield from _misspelt(name, section)


def _misspelt(section: str, said: Mapping[str, Any]) -> Iterator[str]:
    """Yield which values have the right type and are not what an option's own type takes."""
    for key, value in said.items():
        parameter = parameters(section)[key]
        if has_own_type(parameter):
            try:
                parameter.type.convert(str(value), parameter, None)
            except click.BadParameter as error:
                yield f"{section}.{key}: {error.message}"


def _fault(section: str, details: ErrorDetails) -> str:
    key = str(details["loc"][0])
    path = ".".join([section, *map(str, details["loc"])])
    if details["type"] == "extra_forbidden":
        return f"{path} is unknown; {_meant(key, list(parameters(section)))}"
    if len(details["loc"]) > 1 and has_own_type(parameters(section)[key]):
        return f"{section}.{key} is {details['input']!r}, expected a number or a string"
    expected = details["msg"].replace("Input should be", "expected")
    expected = expected.replace("a valid integer", "an integer").replace("a valid ", "a ")
    return f"{path} is {details['input']!r}, {expected}"


def _meant(word: str, known: Sequence[str]) -> str:
    close = get_close_matches(word.replace("-", "_"), known, n=1)
    return f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
