"""Files of prompts, whose faults are those of an argument here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trtspec import prompts
from trtspec.client._errors import InvalidArgument
from trtspec.client._options import Prompt


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """Return the prompts of a file, as `trtspec.prompts` reads it; raises InvalidArgument."""
    with _invalid_argument():
        return prompts.read_prompts(path)


def read_texts(path: Path) -> tuple[str, ...]:
    """Return the prompts of a file that holds texts only; raises InvalidArgument."""
    with _invalid_argument():
        return prompts.read_texts(path)


def texts_only(found: tuple[Prompt, ...], where: object) -> tuple[str, ...]:
    """Return prompts that are texts; raises InvalidArgument where one is a conversation."""
    with _invalid_argument():
        return prompts.texts_only(found, where)


@contextmanager
def _invalid_argument() -> Iterator[None]:
    try:
        yield
    except prompts.PromptFileError as error:
        raise InvalidArgument(str(error)) from None
