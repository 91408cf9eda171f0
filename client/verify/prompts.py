"""What `trtspec verify` asks when it is given no prompts, and how a file of prompts is read."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

from trtspec.client._errors import InvalidArgument


def read_prompts(path: Path) -> tuple[str, ...]:
    """Return the prompts of a file: JSON Lines where it is named so, else one prompt a line.

    A line of JSON is a string or an object with a "prompt". Empty lines are passed over.

    Raises:
        InvalidArgument: naming the line that is neither, or a file that holds no prompt or no text.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")  # Windows editors begin files with a BOM
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path}: cannot be read as UTF-8 text: {error}") from None
    # Not splitlines: that also cuts at U+2028 and the like, which JSON strings may hold.
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise InvalidArgument(f"{path}: found no prompts, expected one a line")
    if path.suffix.lower() in (".jsonl", ".ndjson"):
        return tuple(_prompt_of(line, f"{path}:{number}") for number, line in lines)
    return tuple(line.removesuffix("\r") for _, line in lines)


def _prompt_of(line: str, where: str) -> str:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise InvalidArgument(f"{where}: no JSON: {error}") from None
    prompt = value.get("prompt") if isinstance(value, dict) else value
    if not isinstance(prompt, str) or not prompt:
        raise InvalidArgument(f'{where}: found {line[:60]}, expected a string or {{"prompt": "a string"}}')
    return prompt


# Code first, in several languages; then prose and scripts of one to four bytes a character, which a
# tokenizer cuts inside. The first 20 are those of `trtspec demo`.
DEFAULT_PROMPTS: tuple[str, ...] = tuple(
    json.loads(line)
    for line in files("trtspec.client.verify").joinpath("prompts.jsonl").read_text("utf-8").split("\n")
    if line
)
