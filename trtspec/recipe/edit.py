"""Set one key of a recipe that somebody else wrote; all that they wrote stays."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trtspec.errors import RecipeError
from trtspec.recipe.file import parse_recipe


def set_key(file: Path, section: str, key: str, value: Any, why: Sequence[str] = ()) -> None:
    """Set a key in a recipe, or write a recipe that says only that.

    A line that sets the key, also one that is commented out, is replaced; else one is added at the head
    of its section.

    Args:
        why: lines that stand above it as comments; those of an earlier call go.

    Raises:
        RecipeError: the file is no recipe, or says the key in a way that is not one line.
    """
    try:
        text = file.read_text("utf-8-sig") if file.exists() else ""
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
    _replace(file, edited)


def _edited(text: str, section: str, key: str, entry: list[str]) -> str:
    lines = text.splitlines()
    head = next((n for n, line in enumerate(lines) if re.match(rf"\s*\[\s*{section}\s*\]", line)), None)
    if head is None:
        return "\n".join([*lines, *([""] if lines else []), f"[{section}]", *entry]) + "\n"
    end = next((n for n in range(head + 1, len(lines)) if re.match(r"\s*\[", lines[n])), len(lines))
    is_key = re.compile(rf"\s*(#\s*)?{key}\s*=")
    places = [n for n in range(head + 1, end) if is_key.match(lines[n])]
    # One that counts before one that is commented out.
    place = min(places, key=lambda n: lines[n].lstrip().startswith("#"), default=None)
    if place is None:
        return "\n".join([*lines[: head + 1], *entry, *lines[head + 1 :]]) + "\n"
    start = place
    while start > head + 1 and lines[start - 1].startswith("#: "):
        start -= 1
    return "\n".join([*lines[:start], *entry, *lines[place + 1 :]]) + "\n"


def _replace(file: Path, text: str) -> None:
    """Write through a temporary sibling, so that whoever reads sees the old file or the new one."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=file.absolute().parent, prefix=f".{file.name}.", delete=False
        ) as sibling:
            sibling.write(text)
        if file.exists():
            os.chmod(sibling.name, file.stat().st_mode)
        else:
            os.chmod(sibling.name, 0o644)
        os.replace(sibling.name, file)
    except OSError as error:
        raise RecipeError(f"{file}: cannot be written: {error.strerror}") from error
