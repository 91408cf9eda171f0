"""Files of prompts, as every command reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypedDict

from trtspec.errors import TrtspecError

# A line longer than that is no prompt: a file without line breaks, or of another kind.
LINE_BYTES = 1 << 20
_JSON_LINES = (".jsonl", ".ndjson")
_KEYS = ("text", "prompt", "messages")
_EXPECTED = 'expected a string or an object with one of "text", "prompt" and "messages"'


class PromptFileError(TrtspecError):
    """A file that holds something else than prompts."""


class Message(TypedDict):
    """One turn of a conversation; roles are those of the model's chat template."""

    role: str
    content: str


def read_prompts(path: Path) -> tuple[str | list[Message], ...]:
    """Return the prompts of a file, one a line.

    In a file named `.jsonl` or `.ndjson` each line is JSON: a string, or an object with one of "text",
    "prompt" (strings) and "messages" (a list of role and content, to which the server applies the chat
    template). Other keys and empty lines are passed over.

    Raises:
        PromptFileError: naming the line that is no prompt, or a file without any, or not in UTF-8.
    """
    is_json = path.suffix.lower() in _JSON_LINES
    try:
        prompts = tuple(
            _prompt_of(line, where) if is_json else line for where, line in _lines(path) if line.strip()
        )
    except OSError as error:
        raise PromptFileError(
            f"{path}: cannot be read: {error.strerror}; expected a file of prompts"
        ) from None
    if not prompts:
        raise PromptFileError(f"{path}: found no prompts, expected one a line")
    return prompts


def read_texts(path: Path) -> tuple[str, ...]:
    """Return the prompts of a file that holds texts only; raises as `read_prompts` does."""
    return texts_only(read_prompts(path), path)


def texts_only(prompts: Sequence[object], where: object) -> tuple[str, ...]:
    """Return prompts that are texts; raises PromptFileError where one is a conversation."""
    texts = tuple(prompt for prompt in prompts if isinstance(prompt, str))
    if len(texts) < len(prompts):
        raise PromptFileError(f"{where}: found messages, expected texts: no chat template is applied here")
    return texts


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield where each line is, and the line without its end; never holds more than one that is too long."""
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(LINE_BYTES + 1), b""), 1):
            where = f"{path}:{number}"
            if len(line) > LINE_BYTES:
                raise PromptFileError(
                    f"{where}: found a line of more than {LINE_BYTES} bytes, expected one prompt a line"
                )
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise PromptFileError(
                    f"{where}: found byte 0x{line[error.start]:02x} at {error.start}, expected UTF-8; "
                    "convert the file"
                ) from None
            yield where, text.removesuffix("\n").removesuffix("\r")


def _prompt_of(line: str, where: str) -> str | list[Message]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise PromptFileError(f"{where}: found no JSON ({error}), {_EXPECTED}") from None
    if isinstance(value, dict):
        given = [value[key] for key in _KEYS if key in value]
        value = given[0] if len(given) == 1 else None
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, list) and value and all(map(_is_message, value)):
        return [Message(role=one["role"], content=one["content"]) for one in value]
    raise PromptFileError(f"{where}: found {line[:60]}, {_EXPECTED}")


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(key), str) for key in ("role", "content"))
