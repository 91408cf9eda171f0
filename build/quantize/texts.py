"""Texts to calibrate on and to measure with, and the hash that pins them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from trtspec import prompts
from trtspec.build.checkpoint import Checkpoint
from trtspec.errors import BuildError, CheckpointError

CALIBRATION = "calibration.jsonl"
HELD_OUT = "held_out.jsonl"


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
    with as_file(files("trtspec.build.quantize") / name) as path:
        return Texts(f"trtspec's own {name}", prompts.read_texts(path))


def read_texts(path: Path) -> Texts:
    """Return the texts of a file, as `trtspec.prompts` reads it.

    Raises:
        BuildError: the file cannot be read, holds no text, or a line of it is something else.
    """
    try:
        return Texts(str(path), prompts.read_texts(path))
    except prompts.PromptFileError as error:
        raise BuildError(str(error)) from None


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
