"""What a conversion will write, decided before a weight is read: every file, tensor and byte offset."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from trtspec.build.convert.elements import Array
from trtspec.build.tensor_file import DTYPE_BITS, TensorInfo


@dataclass(frozen=True)
class Piece:
    """A block of a source that fills consecutive rows of its destination."""

    source: TensorInfo
    rows: tuple[int, int]  # half-open, in [out, in] order
    columns: tuple[int, int]
    row: int  # the first one it fills
    transposed: bool = False  # the file holds [in, out]
    plus: float = 0.0  # added in float32
    recode: Callable[[Array], Array] | None = None  # in place of a cast: raw elements to raw elements


@dataclass(frozen=True)
class PlannedTensor:
    """One tensor of a file to be written; what no piece fills is zero."""

    name: str
    dtype: str  # safetensors spelling
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]
    content: bytes = b""  # the whole tensor, where it comes from no source

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * DTYPE_BITS[self.dtype] // 8


@dataclass(frozen=True)
class PlannedFile:
    """One safetensors file: wide types first, so that every tensor is aligned, then by name."""

    name: str
    tensors: tuple[PlannedTensor, ...]

    @staticmethod
    def of(name: str, tensors: Iterable[PlannedTensor]) -> PlannedFile:
        """Put tensors in the order of their bytes."""
        return PlannedFile(
            name, tuple(sorted(tensors, key=lambda tensor: (-DTYPE_BITS[tensor.dtype], tensor.name)))
        )

    @cached_property
    def header(self) -> bytes:
        """The file's first bytes, up to the data."""
        entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        position = 0
        for tensor in self.tensors:
            end = position + tensor.size_bytes
            entries[tensor.name] = {
                "dtype": tensor.dtype,
                "shape": tensor.shape,
                "data_offsets": [position, end],
            }
            position = end
        text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text

    def offsets(self) -> Iterable[tuple[PlannedTensor, int]]:
        """Yield each tensor and the place of its first byte in the file."""
        position = len(self.header)
        for tensor in self.tensors:
            yield tensor, position
            position += tensor.size_bytes

    @property
    def size_bytes(self) -> int:
        return len(self.header) + sum(tensor.size_bytes for tensor in self.tensors)


@dataclass(frozen=True)
class Plan:
    """Everything a conversion will write."""

    weights: tuple[PlannedFile, ...]
    documents: Mapping[str, bytes]  # small files and their whole content
    dtype: str  # torch's spelling: "bfloat16" …
    tied: bool | None = None  # whether head and embedding are one matrix; None: not looked at
    notes: tuple[str, ...] = field(default=())  # what the user has to know

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.weights) + sum(map(len, self.documents.values()))


def document(settings: Mapping[str, Any]) -> bytes:
    """Return JSON with sorted keys: same values, same bytes."""
    return (json.dumps(settings, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()
