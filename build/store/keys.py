"""Keys: equal where the result is, by everything that it depends on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from trtspec import __version__
from trtspec.build.stages import Stage
from trtspec.digest import sha256
from trtspec.errors import BuildError

# A store of another format has other keys.
FORMAT = 1
# What decides about bytes beside our own code.
LIBRARIES = ("numpy", "safetensors", "tokenizers", "torch", "transformers")
CODE = ("trtspec.build", "trtspec.engines")


def stage_keys(stages: Sequence[Stage], sources: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return the key of each stage, by its name.

    Args:
        stages: each after those it needs.
        sources: SHA-256 of each file of each checkpoint, by role and name.
    """
    keys: dict[str, str] = {}
    for stage in stages:
        keys[stage.name] = digest(
            {
                "format": FORMAT,
                "stage": stage.name,
                "inputs": stage.inputs,
                "sources": {role: sources[role] for role in stage.sources},
                "needs": {name: keys[name] for name in stage.needs},
                "versions": {**versions(), "code": own_code()},
            }
        )
    return keys


@dataclass(frozen=True)
class BuildKeys:
    """The keys of a build and of its stages, by name."""

    build: str
    stages: Mapping[str, str]


def build_keys(
    stages: Sequence[Stage], sources: Mapping[str, Mapping[str, str]], options: object
) -> BuildKeys:
    """Return the keys of a build: equal ones give equal pairs. See `stage_keys`."""
    keys = stage_keys(stages, sources)
    return BuildKeys(digest({"stages": keys, "sources": sources, "options": options}), keys)


def digest(value: Any) -> str:
    """Return the SHA-256 of a value, whatever the order of its keys."""
    text = json.dumps(as_json(value), sort_keys=True, ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def as_json(value: Any) -> Any:
    """Return a value as JSON holds it; a file stands for its content: `sha256:…`."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): as_json(found) for key, found in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(found) for found in value]
    if isinstance(value, Path):
        return _content(value)
    return value


def _content(file: Path) -> str:
    try:
        return f"sha256:{sha256(file)}"
    except OSError as error:
        raise BuildError(f"{file}: cannot be read ({error.strerror}); expected a file") from None


@cache
def versions() -> dict[str, str]:
    """Return the versions of what makes the bytes, by name."""
    return {"trtspec": __version__, **{name: version(name) for name in LIBRARIES}}


@cache
def own_code() -> str:
    """Return a hash of the code that builds, and of the texts that ship: not every change has a version."""
    found = hashlib.sha256()
    for package in CODE:
        root = Path(str(files(package)))
        for file in sorted(root.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                found.update(f"{package}/{file.relative_to(root)} {sha256(file)}\n".encode())
    return found.hexdigest()
