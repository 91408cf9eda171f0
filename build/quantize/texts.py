"""Texts to calibrate on and to measure with, and the hash that pins them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from trtspec.build.checkpoint import Checkpoint
from trtspec.errors import BuildError, CheckpointError

CALIBRATION = "calibration.jsonl"
HELD_OUT = "held_out.jsonl"
KEYS = ("text", "prompt")


@dataclass(frozen=True)
class Texts:
    """Texts with the place they came from."""

    name: str
    texts: tuple[str, ...]

    @property
    def sha256(self) -> str:
        """The hash of the texts themselves, whatever file held them."""
        return hashlib.sha256(json.dumps(self.texts, ensure_ascii=False).encode()).hexdigest()


def shipped_texts(name: str) -> Texts:
    """Return texts that come with trtspec: CALIBRATION or HELD_OUT."""
    content = (files("trtspec.build.quantize") / name).read_text("utf-8")
    return Texts(f"trtspec's own {name}", tuple(_text(line, name, n) for n, line in _lines(content)))


def read_texts(path: Path) -> Texts:
    """Return the texts of a file: JSON Lines where it is named so, else one text a line.

    A line of JSON is a string, or an object with a "text" or a "prompt".

    Raises:
        BuildError: the file cannot be read, holds no text, or a line of it is something else.
    """
    try:
        content = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BuildError(f"{path}: cannot be read as UTF-8 text ({error})") from None
    lines = _lines(content)
    if not lines:
        raise BuildError(f"{path}: empty, expected a text a line, like those the model will be asked")
    if path.suffix not in (".jsonl", ".ndjson"):
        return Texts(str(path), tuple(line.rstrip("\r") for _, line in lines))
    return Texts(str(path), tuple(_text(line, str(path), number) for number, line in lines))


def _lines(content: str) -> list[tuple[int, str]]:
    # Not splitlines: that also cuts at U+2028, which JSON strings may hold.
    return [(number, line) for number, line in enumerate(content.split("\n"), 1) if line.strip()]


def _text(line: str, where: str, number: int) -> str:
    try:
        value: Any = json.loads(line)
    except ValueError as error:
        raise BuildError(f"{where}:{number}: not JSON ({error})") from None
    if isinstance(value, dict):
        value = next((value[key] for key in KEYS if key in value), None)
    if not isinstance(value, str) or not value:
        raise BuildError(f'{where}:{number}: found {line[:60]}, expected a string or {{"text": "a string"}}')
    return value


def encode_texts(texts: Texts, checkpoint: Checkpoint, tokenizer: Path | None = None) -> list[list[int]]:
    """Return the token ids of each text, with what the tokenizer puts around them.

    Args:
        tokenizer: the folder of the tokenizer's files, where it is not the checkpoint's.

    Raises:
        CheckpointError: no tokenizer can be loaded.
        BuildError: a text is longer than the model, or has no tokens.
    """
    from transformers import AutoTokenizer

    folder = tokenizer or checkpoint.path
    try:
        loaded: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(f"{folder}: no tokenizer that can be used ({reason})") from error
    found = [list(loaded(text, verbose=False)["input_ids"]) for text in texts.texts]
    check_lengths(found, checkpoint, texts.name)
    return found


def check_lengths(ids: Sequence[Sequence[int]], checkpoint: Checkpoint, name: str) -> None:
    """Refuse texts that the model cannot read whole."""
    config = checkpoint.config
    limit = config.get("max_position_embeddings") or config.get("n_positions")
    for number, text in enumerate(ids, 1):
        if not text:
            raise BuildError(f"{name}: text {number} has no tokens; leave it out")
        if isinstance(limit, int) and len(text) > limit:
            raise BuildError(
                f"{name}: text {number} has {len(text)} tokens, {checkpoint.path} reads at most {limit}; "
                "cut it into shorter ones"
            )
        if max(text) >= checkpoint.vocab_size:
            raise BuildError(
                f"{name}: text {number} has token {max(text)}, the vocabulary of {checkpoint.path} ends at "
                f"{checkpoint.vocab_size - 1}; the tokenizer is of another model"
            )
