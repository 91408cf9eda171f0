"""The files of a tokenizer that the public model needs, from a Hugging Face folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trtspec.errors import RepositoryError

REQUIRED = "tokenizer.json"
OTHERS = ("tokenizer_config.json", "chat_template.jinja")


def tokenizer_files(folder: Path) -> list[Path]:
    """Return the files to take.

    Raises:
        RepositoryError: there is no tokenizer.json.
    """
    if not (folder / REQUIRED).is_file():
        raise RepositoryError(
            f"{folder}: found no {REQUIRED}, expected the folder of a Hugging Face tokenizer; load it with "
            "AutoTokenizer and save it with save_pretrained"
        )
    return [folder / REQUIRED, *(folder / name for name in OTHERS if (folder / name).is_file())]


def end_token_ids(folder: Path) -> tuple[int, ...]:
    """Return every id that ends an answer: of generation_config.json, config.json and tokenizer_config.json.

    Raises:
        RepositoryError: none of them names one.
    """
    found: list[int] = []
    for name in ("generation_config.json", "config.json"):
        ids = _read(folder / name).get("eos_token_id")
        found += ids if isinstance(ids, list) else [] if ids is None else [ids]
    token = _read(folder / "tokenizer_config.json").get("eos_token")
    text = token.get("content") if isinstance(token, dict) else token
    added = _read(folder / REQUIRED).get("added_tokens", [])
    found += [entry["id"] for entry in added if entry.get("content") == text]
    if not found:
        raise RepositoryError(
            f"{folder}: no eos_token_id in generation_config.json or config.json and no known eos_token in "
            "tokenizer_config.json, so an answer would never end; add one of them"
        )
    return tuple(dict.fromkeys(found))


def _read(file: Path) -> dict[str, Any]:
    """Return the object in a file, {} when there is no such file."""
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise RepositoryError(f"{file}: is not JSON ({error}); restore it") from error
    if not isinstance(content, dict):
        raise RepositoryError(f"{file}: holds no JSON object; restore it")
    return content
