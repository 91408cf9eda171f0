"""What tells whether a file is the one that it was."""

from __future__ import annotations

import hashlib
from pathlib import Path

CHUNK_BYTES = 1 << 22


def sha256(file: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with file.open("rb") as reader:
        while chunk := reader.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
