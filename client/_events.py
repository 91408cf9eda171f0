"""Server-sent events as Triton's generate extension sends them, and their JSON as tensors.

https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LINE_END = re.compile(rb"\r\n|\n|\r(?=.)", re.DOTALL)


class EventParser:
    """Bytes in, as they were cut on the way; the data of whole events out."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._data: list[bytes] = []

    @property
    def size_bytes(self) -> int:
        """What is held of an event that is not whole yet."""
        return len(self._rest) + sum(map(len, self._data))

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield the data of each event that is now whole; events without data are passed over."""
        self._rest += piece
        # A \r at the end may be half of a \r\n, so it waits for what follows.
        if b"\n" not in piece and b"\r" not in self._rest:
            return
        *lines, rest = _LINE_END.split(bytes(self._rest))
        self._rest = bytearray(rest)
        for line in lines:
            if not line and self._data:
                yield b"\n".join(self._data)
                self._data = []
            elif line.startswith(b"data:"):
                self._data.append(line.removeprefix(b"data:").removeprefix(b" "))


def write_json(inputs: dict[str, Any]) -> bytes:
    """Return the body of a request; one element goes as a scalar, several as a list."""
    fields = {name: _to_json(value) for name, value in inputs.items()}
    return json.dumps(fields, ensure_ascii=False, allow_nan=False).encode()


def read_json(data: bytes) -> tuple[dict[str, NDArray[Any]], str]:
    """Return the tensors of an event by name, and its error, "" for none.

    Types are JSON's: Triton writes a tensor of one element as a scalar, and no shapes.

    Raises:
        ValueError: for what is no event of Triton's.
    """
    fields = json.loads(data)
    if not isinstance(fields, dict):
        raise ValueError(f"{type(fields).__name__} in place of an object")
    if isinstance(error := fields.get("error"), str):
        return {}, error or "an error without a word"
    return {name: _from_json(value) for name, value in fields.items()}, ""


def error_of(body: bytes) -> str:
    """Return what the body of a failed response says, which may be JSON, an event or a proxy's page."""
    data = next(EventParser().feed(body + b"\n\n"), body)
    text = body[:200].decode(errors="replace")
    try:
        return read_json(data)[1] or text
    except ValueError:
        return " ".join(re.sub("<[^>]*>", " ", text).split())


def _to_json(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    flat = [item.decode() if isinstance(item, bytes) else item for item in value.ravel().tolist()]
    return flat[0] if len(flat) == 1 else flat


def _from_json(value: Any) -> NDArray[Any]:
    items = value if isinstance(value, list) else [value]
    if any(isinstance(item, list | dict) or item is None for item in items):
        raise ValueError(f"{str(value)[:60]} in place of numbers or strings")
    if any(isinstance(item, str) for item in items):
        return np.array([str(item).encode(errors="surrogatepass") for item in items], object)
    return np.array(items)
