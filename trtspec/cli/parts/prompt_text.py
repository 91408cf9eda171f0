"""A prompt from the command line, or from stdin."""

from __future__ import annotations

import sys


def prompt_text(argument: str) -> str:
    """Return the argument, or what stdin holds, byte for byte, where it is -.

    Raises:
        InvalidArgument: for what is not UTF-8.
    """
    from trtspec.client import InvalidArgument

    where = "stdin" if argument == "-" else "PROMPT"
    # Bytes of an argument that are no text have come as lone surrogates.
    data = sys.stdin.buffer.read() if argument == "-" else argument.encode(errors="surrogateescape")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgument(
            f"{where}: found byte 0x{data[error.start]:02x} at offset {error.start}, expected UTF-8 text; "
            "convert it first, for example with iconv"
        ) from None
