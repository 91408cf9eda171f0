"""Files that are there whole, or as they were before."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from errno import EACCES
from pathlib import Path
from secrets import token_hex

DESCRIPTORS = Path("/dev/fd")
# As many as Linux follows.
MOST_LINKS = 40


def check_whole(file: Path) -> None:
    """Raise the OSError of a `write_whole` that could not begin; nothing is left of having tried."""
    if _is_written_in_place(file, _mode(file)):
        if not os.access(file, os.W_OK):
            raise PermissionError(EACCES, os.strerror(EACCES), str(file))
        return
    tempfile.TemporaryFile(dir=file.resolve().parent).close()


def write_whole(file: Path, content: str | bytes) -> None:
    """Write a file through a temporary sibling, so that whoever reads sees the old text or the new one.

    A link stays one, and the file keeps its mode. Where there can be no sibling, or the file is a device
    or a pipe, it is written where it is; what the process has open already (/dev/stdout, /dev/fd/3) goes
    on from its end. Lone surrogates, which no UTF-8 has, become their escapes. Raises OSError.
    """
    data = content if isinstance(content, bytes) else content.encode(errors="backslashreplace")
    mode = _mode(file)
    if _is_open_already(file.absolute()):
        sys.stdout.flush()  # what was printed before comes before
        with file.open("ab") as end:
            end.write(data)
        return
    if _is_written_in_place(file, mode):
        file.write_bytes(data)
        return
    whole = file.resolve()
    sibling = whole.with_name(f".{token_hex(8)}.partial")
    try:
        sibling.write_bytes(data)
        if mode is not None:
            sibling.chmod(stat.S_IMODE(mode))
        sibling.replace(whole)
    finally:
        sibling.unlink(missing_ok=True)


def _is_written_in_place(file: Path, mode: int | None) -> bool:
    """Whether there can be no sibling that would take the file's place."""
    is_special = mode is not None and not stat.S_ISREG(mode)
    return is_special or (mode is not None and not os.access(file.resolve().parent, os.W_OK))


def _mode(file: Path) -> int | None:
    """Return the mode of a file, None where there is none; OSError where links lead nowhere."""
    try:
        return file.stat().st_mode
    except FileNotFoundError:
        return None


def _is_open_already(file: Path) -> bool:
    """Whether a path stands for a descriptor: whoever has it would go on with the file that was replaced."""
    for _ in range(MOST_LINKS):
        if file.parent == DESCRIPTORS or file.is_relative_to("/proc"):
            return True
        if not file.is_symlink():
            return False
        file = file.parent / file.readlink()
    return False
