"""What `trtspec bench` asks: sets that ship with it, and files of prompts.

The shipped texts were written for this project. Each set mixes languages, and with them scripts of one
to four bytes a character: a draft model that knows one of them well may know another hardly at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from trtspec.client._errors import InvalidArgument
from trtspec.client._options import Message, Prompt

PROMPT_SETS = ("chat", "code", "summarising", "translation")
# A line longer than that is no prompt: a file without line breaks, or of another kind.
LINE_BYTES = 1 << 20
_JSON_LINES = (".jsonl", ".ndjson")
_KEYS = ("text", "prompt", "messages")
_EXPECTED = 'expected a string or an object with one of "text", "prompt" and "messages"'


def load_prompts(name_or_path: str | Path) -> tuple[Prompt, ...]:
    """Return the prompts of a shipped set, by its name, or of a file.

    A file holds one prompt a line. Named `.jsonl` or `.ndjson`, each line is JSON: a string, or an
    object with one of "text", "prompt" (strings) and "messages" (a list of role and content, to which
    the server applies the chat template). Other keys and empty lines are passed over. A file that has
    the name of a set is meant by `./chat`.

    Raises:
        InvalidArgument: naming the line that is no prompt, or a file without any, or not in UTF-8.
    """
    if name_or_path in PROMPT_SETS:
        with as_file(files("trtspec.client.bench") / "prompt_sets" / f"{name_or_path}.jsonl") as path:
            return _read(path)
    return _read(Path(name_or_path))


def as_messages(prompts: Iterable[Prompt]) -> tuple[Prompt, ...]:
    """Return prompts as conversations: a text becomes what a user says, the rest stays as it is."""
    return tuple(
        [Message(role="user", content=prompt)] if isinstance(prompt, str) else prompt for prompt in prompts
    )


def _read(path: Path) -> tuple[Prompt, ...]:
    is_json = path.suffix.lower() in _JSON_LINES
    try:
        prompts = tuple(
            _prompt_of(line, where) if is_json else line for where, line in _lines(path) if line.strip()
        )
    except OSError as error:
        sets = ", ".join(PROMPT_SETS)
        raise InvalidArgument(
            f"{path}: cannot be read: {error.strerror}; expected a file of prompts or one of {sets}"
        ) from None
    if not prompts:
        raise InvalidArgument(f"{path}: found no prompts, expected one a line")
    return prompts


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield where each line is, and the line without its end; never holds more than one that is too long."""
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(LINE_BYTES + 1), b""), 1):
            where = f"{path}:{number}"
            if len(line) > LINE_BYTES:
                raise InvalidArgument(
                    f"{where}: found a line of more than {LINE_BYTES} bytes, expected one prompt a line"
                )
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise InvalidArgument(
                    f"{where}: found byte 0x{line[error.start]:02x} at {error.start}, expected UTF-8; "
                    "convert the file"
                ) from None
            yield where, text.removesuffix("\n").removesuffix("\r")


def _prompt_of(line: str, where: str) -> Prompt:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{where}: found no JSON ({error}), {_EXPECTED}") from None
    if isinstance(value, dict):
        given = [value[key] for key in _KEYS if key in value]
        value = given[0] if len(given) == 1 else None
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, list) and value and all(map(_is_message, value)):
        return [Message(role=one["role"], content=one["content"]) for one in value]
    raise InvalidArgument(f"{where}: found {line[:60]}, {_EXPECTED}")


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(key), str) for key in ("role", "content"))
