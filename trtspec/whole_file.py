"""Files that are there whole, or as they were before."""

from __future__ import annotations

import os
from pathlib import Path
from secrets import token_hex


def write_whole(file: Path, text: str) -> None:
    """Write a file through a temporary sibling, so that whoever reads sees the old text or the new one.

    A link stays one, and the file keeps its mode. Where there can be no sibling, or the file is a device
    or a pipe, it is written where it is. Raises OSError.
    """
    content, file = text.encode(), file.resolve()
    if (file.exists() and not file.is_file()) or not os.access(file.parent, os.W_OK):
        file.write_bytes(content)
        return
    sibling = file.with_name(f".{token_hex(8)}.partial")
    try:
        sibling.write_bytes(content)
        if file.exists():
            sibling.chmod(file.stat().st_mode)
        sibling.replace(file)
    finally:
        sibling.unlink(missing_ok=True)
