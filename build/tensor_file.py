"""What a safetensors file says it holds, read from its header alone and checked against its size.

The format: 8 bytes little-endian header length, a JSON object, then the data. Each entry gives a dtype,
a shape and [begin, end) inside the data; entries cover the data exactly, without holes
(https://github.com/huggingface/safetensors#format).
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtspec.errors import CheckpointError

# Width of one element, by the safetensors spelling of its type.
DTYPE_BITS: Mapping[str, int] = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "U16": 16,
    "I16": 16,
    "F16": 16,
    "BF16": 16,
    "U32": 32,
    "I32": 32,
    "F32": 32,
    "C64": 64,
    "U64": 64,
    "I64": 64,
    "F64": 64,
}

# The limit of the safetensors library itself.
MAX_HEADER_BYTES = 100_000_000

LARGEST_FILE = 2**63 - 1  # bytes, that an offset can reach


@dataclass(frozen=True)
class TensorInfo:
    """Where one tensor lies."""

    name: str
    dtype: str  # safetensors spelling: "BF16", "F8_E4M3", …
    shape: tuple[int, ...]
    file: Path
    offset: int  # absolute, in bytes from the start of the file
    size_bytes: int

    @property
    def element_bytes(self) -> int:
        """Bytes of one element; 1 for types narrower than a byte."""
        return max(1, DTYPE_BITS[self.dtype] // 8)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns, all leading dimensions taken together.

        A vector is one column, and so are the bytes of a type narrower than a byte.
        """
        if len(self.shape) < 2 or DTYPE_BITS[self.dtype] < 8:
            return self.size_bytes // self.element_bytes, 1
        return math.prod(self.shape[:-1]), self.shape[-1]


def read_header(file: Path) -> dict[str, TensorInfo]:
    """Return the tensors of one safetensors file, in the order of their bytes.

    Raises:
        CheckpointError: the file is absent, not a regular file, truncated, or its header contradicts
            itself or the size of the file.
    """
    header, data_begin, file_size = _read_json_header(file)
    tensors = [_tensor(file, name, entry, data_begin) for name, entry in header.items()]
    tensors.sort(key=lambda tensor: (tensor.offset, tensor.size_bytes))
    _check_coverage(file, tensors, data_begin, file_size)
    return {tensor.name: tensor for tensor in tensors}


def _read_json_header(file: Path) -> tuple[dict[str, Any], int, int]:
    """Return the header's entries, the offset of the data and the size of the file."""
    try:
        # Looked at before it is opened: opening a pipe would wait for its writer.
        if not stat.S_ISREG(os.stat(file).st_mode):
            raise CheckpointError(f"{file}: not a regular file; expected a safetensors file")
        with file.open("rb") as stream:
            file_size = os.fstat(stream.fileno()).st_size
            prefix = stream.read(8)
            length = int.from_bytes(prefix, "little")
            if length > MAX_HEADER_BYTES:
                raise CheckpointError(
                    f"{file}: header of {length} bytes, the format allows {MAX_HEADER_BYTES}; "
                    "not a safetensors file, fetch it again"
                )
            if len(prefix) < 8 or 8 + length > file_size:
                raise CheckpointError(
                    f"{file}: {file_size} bytes, its header alone needs {8 + length}; "
                    "truncated, fetch it again"
                )
            text = stream.read(length)
    except FileNotFoundError:
        link = " (a link to a file that is gone)" if file.is_symlink() else ""
        raise CheckpointError(f"{file}: missing{link}; fetch the checkpoint again") from None
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({error.strerror}); check its permissions") from error
    return _parse(file, text), 8 + length, file_size


def _parse(file: Path, text: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries = dict(pairs)
        if len(entries) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise CheckpointError(
                f"{file}: header names {twice!r} twice; the file is damaged, fetch it again"
            )
        return entries

    try:
        header = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: header is not JSON ({error}); fetch the file again") from None
    if not isinstance(header, dict):
        raise CheckpointError(f"{file}: header is a JSON {type(header).__name__}, expected an object")
    header.pop("__metadata__", None)
    return header


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _tensor(file: Path, name: str, entry: object, data_begin: int) -> TensorInfo:
    where = f"{file}: tensor {name!r}"
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise CheckpointError(f"{where} has no dtype, shape and data_offsets; the header is damaged")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise CheckpointError(f"{where} has dtype {dtype!r}; known are {', '.join(DTYPE_BITS)}")
    if not isinstance(shape, list) or not all(map(_is_size, shape)):
        raise CheckpointError(f"{where} has shape {shape!r}, expected a list of sizes")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_size, offsets)):
        raise CheckpointError(f"{where} has data_offsets {offsets!r}, expected [begin, end]")
    begin, end = offsets
    bits = math.prod(shape) * DTYPE_BITS[dtype]
    if bits % 8 or end - begin != bits // 8:
        raise CheckpointError(
            f"{where} takes {end - begin} bytes, {dtype} of shape {shape} takes {_shown_size(bits)}; "
            "the header is damaged, fetch the file again"
        )
    return TensorInfo(name, dtype, tuple(shape), file, data_begin + begin, end - begin)


def _shown_size(bits: int) -> str:
    # A damaged shape's size may be beyond every float, and beyond the digits that Python prints.
    if bits > 8 * LARGEST_FILE:
        return f"more than {LARGEST_FILE}"
    return f"{bits} bits" if bits % 8 else f"{bits // 8}"


def _check_coverage(file: Path, tensors: list[TensorInfo], data_begin: int, file_size: int) -> None:
    """Tensors, sorted by offset, follow each other from the header to the end of the file."""
    position, previous = data_begin, "the header"
    for tensor in tensors:
        if tensor.offset < position:
            raise CheckpointError(
                f"{file}: tensor {tensor.name!r} overlaps {previous}; the header is damaged, "
                "fetch the file again"
            )
        if tensor.offset > position:
            raise CheckpointError(
                f"{file}: {tensor.offset - position} unclaimed bytes between {previous} and tensor "
                f"{tensor.name!r}; the header is damaged, fetch the file again"
            )
        position, previous = tensor.offset + tensor.size_bytes, repr(tensor.name)
        if position > file_size:
            raise CheckpointError(
                f"{file}: tensor {tensor.name!r} ends at byte {position}, the file at {file_size}; "
                "truncated, fetch it again"
            )
    if position < file_size:
        raise CheckpointError(
            f"{file}: {file_size - position} bytes after {previous}, expected none; fetch the file again"
        )


def main_dtype(tensors: Iterable[TensorInfo]) -> str:
    """Return the type that most bytes have."""
    sizes: dict[str, int] = defaultdict(int)
    for tensor in tensors:
        sizes[tensor.dtype] += tensor.size_bytes
    return max(sorted(sizes), key=lambda dtype: sizes[dtype])


def same_content(one: TensorInfo, other: TensorInfo) -> bool:
    """Whether two tensors are equal in type, shape and every byte."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    with one.file.open("rb") as left, other.file.open("rb") as right:
        left.seek(one.offset)
        right.seek(other.offset)
        remaining = one.size_bytes
        while remaining:
            size = min(remaining, 1 << 20)
            if left.read(size) != right.read(size):
                return False
            remaining -= size
    return True
