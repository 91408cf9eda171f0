"""Values read from a Hugging Face config.json by name: present, of the right kind, or one clear error.

Hugging Face wrote the file, so unknown keys are ignored. A `null` counts as absent, as it does there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trtspec.errors import BuildError, CheckpointError

Settings = Mapping[str, Any]


@contextmanager
def settings_of(folder: Path) -> Iterator[None]:
    """Name the folder in the errors about a config.json that are raised inside."""
    try:
        yield
    except (BuildError, CheckpointError) as error:
        if not str(error).startswith("config.json: "):
            raise
        raise type(error)(f"{folder}/{error}") from None


def integer(settings: Settings, key: str, default: int | None = None) -> int:
    """Return a size or a count, at least 1."""
    value = _present(settings, key, default, "a positive integer")
    # Older files write 4096.0 for 4096.
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise _wrong(key, value, "a positive integer")
    return value


def number(settings: Settings, key: str, default: float | None = None) -> float:
    """Return a finite number as a float; JSON's integers may be beyond any."""
    value = _present(settings, key, default, "a number")
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max:
        return float(value)
    raise _wrong(key, value, "a number")


def numbers(settings: Settings, key: str) -> list[float]:
    """Return a list of numbers as floats."""
    values = _present(settings, key, None, "a list of numbers")
    if not isinstance(values, list):
        raise _wrong(key, values, "a list of numbers")
    return [number({key: value}, key) for value in values]


def flag(settings: Settings, key: str, default: bool) -> bool:
    """Return a boolean."""
    value = _present(settings, key, default, "true or false")
    if not isinstance(value, bool):
        raise _wrong(key, value, "true or false")
    return value


def text(settings: Settings, key: str) -> str:
    """Return a string."""
    value = _present(settings, key, None, "a name")
    if not isinstance(value, str):
        raise _wrong(key, value, "a name")
    return value


def activation(settings: Settings, key: str, known: tuple[str, ...]) -> str:
    """Return the MLP's activation.

    Raises:
        BuildError: it is none of those that the family's network in TensorRT-LLM computes.
    """
    value = text(settings, key)
    if value not in known:
        raise BuildError(
            f"config.json: {key} is {value!r}, TensorRT-LLM's engine path takes {' or '.join(known)} for "
            "this family; use the pytorch runtime"
        )
    return value


def section(settings: Settings, key: str) -> Settings:
    """Return an object, empty where it is absent."""
    value = settings.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _wrong(key, value, "an object")
    return value


def _present(settings: Settings, key: str, default: object, expected: str) -> object:
    value = settings.get(key)
    if value is None:
        value = default
    if value is None:
        raise CheckpointError(f"config.json: {key} is missing, expected {expected}")
    return value


def _wrong(key: str, value: object, expected: str) -> CheckpointError:
    return CheckpointError(f"config.json: {key} is {value!r:.60}, expected {expected}")
