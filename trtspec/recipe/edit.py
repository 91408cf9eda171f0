"""Set one key of a recipe that somebody else wrote; all that they wrote stays."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trtspec.errors import RecipeError
from trtspec.recipe.file import parse_recipe
from trtspec.whole_file import check_whole, write_whole

# What stands behind the = of a key: a value, which may have # in quotes, and a comment.
_REST = r"""(?:"[^"]*"|'[^']*'|[^"'#])*?(?P<comment>\s*#.*)?$"""


def set_key(
    file: Path, section: str, key: str, value: Any, why: Sequence[str] = (), *, write: bool = True
) -> None:
    """Set a key in a recipe, or write a recipe that says only that.

    A line that sets the key, also one that is commented out, is replaced, but for a comment behind it;
    else one is added at the head of its section. Ends of lines stay as they are.

    Args:
        why: lines that stand above it as comments; those of an earlier call go.
        write: False only looks whether the key could be set, and the file written.

    Raises:
        RecipeError: the file is no recipe, or says the key in a way that is not one line.
    """
    try:
        text = file.read_bytes().decode("utf-8-sig") if file.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{file}: cannot be read as UTF-8 text: {error}") from error
    parse_recipe(text, str(file))
    entry = f"{key} = {json.dumps(value)}"
    edited = _edited(text, section, key, [*(f"#: {line}" for line in why), entry])
    try:
        told = parse_recipe(edited, str(file)).section(section).get(key)
    except RecipeError:
        told = None
    if told != value:
        raise RecipeError(
            f"{file}: {section}.{key} is not on a line of its own; write {entry!r} there yourself"
        )
    _replace(file, edited, write)


def _edited(text: str, section: str, key: str, entry: list[str]) -> str:
    # Not splitlines: comments may hold U+2028 and the like.
    ending = "\r\n" if "\r\n" in text else "\n"
    lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []
    return ending.join([*_edited_lines(lines, section, key, entry), ""])


def _edited_lines(lines: list[str], section: str, key: str, entry: list[str]) -> list[str]:
    head = next((n for n, line in enumerate(lines) if re.match(rf"\s*\[\s*{section}\s*\]", line)), None)
    if head is None:
        return [*lines, *([""] if lines else []), f"[{section}]", *entry]
    end = next((n for n in range(head + 1, len(lines)) if re.match(r"\s*\[", lines[n])), len(lines))
    # One that counts before one that is commented out. A comment that says more is somebody's words.
    value = r"""("[^"]*"|'[^']*'|[^\s"'#]+)\s*"""
    patterns = (rf"\s*{key}\s*={_REST}", rf"\s*#\s*{key}\s*=\s*{value}$")
    found = ((n, match) for p in patterns for n in range(head + 1, end) if (match := re.match(p, lines[n])))
    place, match = next(found, (None, None))
    if place is None or match is None:
        return [*lines[: head + 1], *entry, *lines[head + 1 :]]
    comment = match.groupdict().get("comment") or ""
    start = place
    while start > head + 1 and lines[start - 1].startswith("#: "):
        start -= 1
    return [*lines[:start], *entry[:-1], entry[-1] + comment, *lines[place + 1 :]]


def _replace(file: Path, text: str, write: bool) -> None:
    """Write the recipe, or only try whether it could be."""
    try:
        if write:
            write_whole(file, text)
        else:
            check_whole(file)
    except OSError as error:
        raise RecipeError(f"{file}: cannot be written: {error.strerror}") from error
