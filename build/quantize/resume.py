"""What a calibration has done so far, on disk: a killed one goes on where it was.

One file, replaced after each layer: the hidden states that leave it, the maxima so far, and a fingerprint
of checkpoint, texts and settings, so that nobody goes on with what another began.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from trtspec.build.checkpoint import Checkpoint
from trtspec.errors import BuildError

FILE = "calibration.safetensors"
# Of the data of each tensor; with all headers and config.json enough to tell checkpoints apart.
SAMPLE_BYTES = 4096


@dataclass(frozen=True)
class Progress:
    """A calibration after some layers."""

    layers: int
    hidden: list[Tensor]
    inputs: Mapping[str, float]
    cache: Mapping[str, tuple[float, float]]


def fingerprint(checkpoint: Checkpoint, key: Mapping[str, Any]) -> str:
    """Return a hash of the checkpoint (headers, config.json, the beginning of each tensor) and of `key`."""
    digest = hashlib.sha256(json.dumps([checkpoint.config, key], sort_keys=True).encode())
    for file in checkpoint.files:
        with file.open("rb") as stream:
            for tensor in checkpoint.tensors.values():
                if tensor.file == file:
                    digest.update(f"{tensor.name} {tensor.dtype} {tensor.shape}".encode())
                    stream.seek(tensor.offset)
                    digest.update(stream.read(min(SAMPLE_BYTES, tensor.size_bytes)))
    return digest.hexdigest()


def read_progress(folder: Path, expected: str) -> Progress | None:
    """Return what a calibration left behind; None where there is nothing.

    Args:
        expected: the fingerprint of what is to be calibrated now.

    Raises:
        BuildError: it is of another checkpoint, other texts or other settings, or damaged.
    """
    file = folder / FILE
    if not file.exists():
        return None
    try:
        with safe_open(file, framework="pt") as stored:
            notes = json.loads(stored.metadata()["progress"])
            hidden = [stored.get_tensor(str(number)) for number in range(notes["texts"])]
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise BuildError(
            f"{file}: cannot be read ({error}); remove {folder} to calibrate from the start"
        ) from None
    if notes["fingerprint"] != expected:
        raise BuildError(
            f"{folder}: a half-finished calibration of another checkpoint, other texts or other settings; "
            "remove it to calibrate from the start, or choose another --output"
        )
    cache = {name: (largest_key, value) for name, (largest_key, value) in notes["cache"].items()}
    return Progress(notes["layers"], hidden, notes["inputs"], cache)


def write_progress(folder: Path, progress: Progress, of: str) -> None:
    """Replace what is on disk; `of` is the fingerprint of what is calibrated."""
    folder.mkdir(parents=True, exist_ok=True)
    notes = {
        "fingerprint": of,
        "layers": progress.layers,
        "texts": len(progress.hidden),
        "inputs": dict(progress.inputs),
        "cache": dict(progress.cache),
    }
    hidden = {str(number): states.cpu().contiguous() for number, states in enumerate(progress.hidden)}
    partial = folder / f"{FILE}.partial"
    try:
        save_file(hidden, partial, {"progress": json.dumps(notes)})
    except SafetensorError as error:
        raise _system_error(error, partial) from error
    partial.replace(folder / FILE)


def _system_error(error: SafetensorError, file: Path) -> OSError:
    """Return what the system has said; safetensors hands on its text, which ends in `(os error 28)`."""
    number = re.search(r"os error (\d+)", str(error))
    code = int(number[1]) if number else errno.EIO
    return OSError(code, os.strerror(code), str(file))


def remove_progress(folder: Path) -> None:
    """Remove the folder; its calibration is done."""
    shutil.rmtree(folder, ignore_errors=True)
