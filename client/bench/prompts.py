"""What `trtspec bench` asks: sets that ship with it, and files of prompts.

The shipped texts were written for this project. Each set mixes languages, and with them scripts of one
to four bytes a character: a draft model that knows one of them well may know another hardly at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import as_file, files
from pathlib import Path

from trtspec.client._errors import InvalidArgument
from trtspec.client._options import Message, Prompt
from trtspec.client._prompts import read_prompts

PROMPT_SETS = ("chat", "code", "summarising", "translation")


def load_prompts(name_or_path: str | Path) -> tuple[Prompt, ...]:
    """Return the prompts of a shipped set, by its name, or of a file, as `read_prompts` reads it.

    A file that has the name of a set is meant by `./chat`.

    Raises:
        InvalidArgument: there is no such set or file, or the file holds something else than prompts.
    """
    if name_or_path in PROMPT_SETS:
        with as_file(files("trtspec.client.bench") / "prompt_sets" / f"{name_or_path}.jsonl") as path:
            return read_prompts(path)
    if not Path(name_or_path).exists():
        sets = ", ".join(PROMPT_SETS)
        raise InvalidArgument(f"{name_or_path}: not there; expected a file of prompts or one of {sets}")
    return read_prompts(Path(name_or_path))


def as_messages(prompts: Iterable[Prompt]) -> tuple[Prompt, ...]:
    """Return prompts as conversations: a text becomes what a user says, the rest stays as it is."""
    return tuple(
        [Message(role="user", content=prompt)] if isinstance(prompt, str) else prompt for prompt in prompts
    )
