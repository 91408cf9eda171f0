"""Carries a plan out: every source is read once, in blocks of rows, and each block goes to all its places.

A worker owns one buffer of about `BLOCK_BYTES`, so memory depends neither on the model nor on its
tensors. Held whole is only a source that is stored [in, out]. Reading, checking and writing release the
interpreter, so workers are threads.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock

import numpy as np

from trtspec.build.convert.elements import FLOAT_NAMES, Array, cast, first_not_finite, is_finite, raw_view
from trtspec.build.convert.plan import Piece, PlannedFile
from trtspec.build.tensor_file import DTYPE_BITS, TensorInfo
from trtspec.errors import BuildError, CheckpointError

# Small enough to stay in a core's cache between reading, checking and writing.
BLOCK_BYTES = 1 << 20

# Longer writes make the kernel look for large pages. On a virtual machine that had returned those to its
# host, 1 MiB writes took two to four times the kernel's time of 32 KiB ones.
WRITE_BYTES = 1 << 15

Progress = Callable[[int, int], None]  # bytes of the sources done, and of all


@dataclass(frozen=True)
class _Place:
    """Where one piece goes."""

    piece: Piece
    descriptor: int
    offset: int  # of the piece's first byte
    dtype: str

    @property
    def row_bytes(self) -> int:
        begin, end = self.piece.columns
        return (end - begin) * max(1, DTYPE_BITS[self.dtype] // 8)


@dataclass(frozen=True)
class _Block:
    """Consecutive stored rows of a source, and the places that want any of them."""

    source: TensorInfo
    first_row: int
    rows: int
    places: tuple[_Place, ...]

    @property
    def size_bytes(self) -> int:
        return self.rows * self.source.grid[1] * self.source.element_bytes

    @property
    def offset(self) -> int:
        return self.source.offset + self.first_row * self.source.grid[1] * self.source.element_bytes


def write_files(
    files: tuple[PlannedFile, ...], folder: Path, *, workers: int, progress: Progress | None = None
) -> None:
    """Write planned files into a folder, with mode 0644.

    Raises:
        CheckpointError: a source is not finite, or shrank since its header was read.
        BuildError: a value does not fit the type asked for.
        OSError: the disk said no.
    """
    with ExitStack() as stack:
        places: dict[TensorInfo, list[_Place]] = defaultdict(list)
        for file in files:
            descriptor = _create(folder / file.name, file)
            stack.callback(os.close, descriptor)
            for tensor, offset in file.offsets():
                for piece in tensor.pieces:
                    place = _Place(piece, descriptor, offset, tensor.dtype)
                    begin = offset + piece.row * place.row_bytes
                    places[piece.source].append(_Place(piece, descriptor, begin, tensor.dtype))
        sources: dict[Path, int] = {}
        for path in sorted({source.file for source in places}):
            sources[path] = os.open(path, os.O_RDONLY)
            stack.callback(os.close, sources[path])
        _run(list(_blocks(places)), sources, workers, progress)
    write_contents(files, folder)


def write_contents(files: tuple[PlannedFile, ...], folder: Path) -> None:
    """Write those tensors of existing files that come from no source."""
    for file in files:
        descriptor = os.open(folder / file.name, os.O_WRONLY)
        try:
            for tensor, offset in file.offsets():
                _write(descriptor, memoryview(tensor.content), offset)
        finally:
            os.close(descriptor)


def _create(path: Path, file: PlannedFile) -> int:
    """Open a file of its final size that holds its header; what is never written reads as zero."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    os.fchmod(descriptor, 0o644)  # whatever the umask: a server runs as another user
    os.ftruncate(descriptor, file.size_bytes)
    _write(descriptor, memoryview(file.header), 0)
    return descriptor


def _blocks(places: Mapping[TensorInfo, list[_Place]]) -> Iterator[_Block]:
    """Cut sources into blocks, in the order in which the first file wants them."""
    for source, wanted in places.items():
        rows, columns = source.grid
        row_bytes = max(1, columns * source.element_bytes)
        whole = any(place.piece.transposed for place in wanted)
        step = max(1, rows if whole else BLOCK_BYTES // row_bytes)
        for first in range(0, rows, step):
            yield _Block(source, first, min(step, rows - first), tuple(wanted))


def _run(blocks: list[_Block], sources: Mapping[Path, int], workers: int, progress: Progress | None) -> None:
    """Let the workers take blocks in order; the first error stops them all."""
    queue: SimpleQueue[_Block] = SimpleQueue()
    for block in blocks:
        queue.put(block)
    total = sum(block.size_bytes for block in blocks)
    done, lock = 0, Lock()

    def report(size_bytes: int) -> None:
        nonlocal done
        with lock:
            done += size_bytes
            if progress:
                progress(done, total)

    def work() -> None:
        buffer = bytearray(BLOCK_BYTES)
        while True:
            try:
                block = queue.get_nowait()
            except Empty:
                return
            space = buffer if block.size_bytes <= BLOCK_BYTES else bytearray(block.size_bytes)
            _carry(block, sources[block.source.file], memoryview(space)[: block.size_bytes])
            report(block.size_bytes)

    with ThreadPoolExecutor(workers) as pool:
        try:
            for future in [pool.submit(work) for _ in range(workers)]:
                future.result()
        finally:
            _drain(queue)


def _drain(queue: SimpleQueue[_Block]) -> None:
    try:
        while True:
            queue.get_nowait()
    except Empty:
        return


def _carry(block: _Block, descriptor: int, space: memoryview) -> None:
    """Read one block, check it, and write it wherever it belongs."""
    source = block.source
    _read(descriptor, space, block.offset, source)
    stored = raw_view(space, source.element_bytes).reshape(block.rows, source.grid[1])
    if not is_finite(stored, source.dtype):
        row, column = divmod(first_not_finite(stored, source.dtype), stored.shape[1])
        raise CheckpointError(
            f"{source.file}: tensor {source.name!r} holds NaN or Inf, first at row {block.first_row + row}, "
            f"column {column}; the checkpoint is damaged or diverged in training"
        )
    for place in block.places:
        wanted, row = _wanted(stored, place.piece, block.first_row)
        if wanted.size:
            values = _converted(wanted, source, place)
            data = values.reshape(-1).view(np.uint8).data
            _write(place.descriptor, data, place.offset + row * place.row_bytes)


def _wanted(stored: Array, piece: Piece, first_row: int) -> tuple[Array, int]:
    """Return what a piece takes of these rows, and the piece's row it begins at."""
    columns = slice(*piece.columns)
    if piece.transposed:
        return stored.T[slice(*piece.rows), columns], 0
    begin = max(piece.rows[0] - first_row, 0)
    end = max(piece.rows[1] - first_row, begin)
    return stored[begin:end, columns], max(first_row - piece.rows[0], 0)


def _converted(wanted: Array, source: TensorInfo, place: _Place) -> Array:
    bits = np.ascontiguousarray(wanted)
    if place.piece.recode is not None:
        return place.piece.recode(bits)
    if place.dtype == source.dtype and not place.piece.plus:
        return bits
    values = cast(bits, source.dtype, place.dtype, place.piece.plus)
    if not is_finite(values, place.dtype):
        raise BuildError(
            f"{source.file}: tensor {source.name!r} holds values too large for "
            f"{FLOAT_NAMES[place.dtype]}; keep {FLOAT_NAMES[source.dtype]}, or take bfloat16 or float32"
        )
    return values


def _read(descriptor: int, space: memoryview, offset: int, source: TensorInfo) -> None:
    filled = 0
    while filled < len(space):
        count = os.preadv(descriptor, [space[filled:]], offset + filled)
        if count == 0:
            raise CheckpointError(
                f"{source.file}: ends inside tensor {source.name!r}; it changed while it was read, "
                "start again"
            )
        filled += count


def _write(descriptor: int, data: memoryview, offset: int) -> None:
    written = 0
    while written < len(data):
        # Ends where a page does, so that no page is taken up twice.
        size = WRITE_BYTES - (offset + written) % WRITE_BYTES
        written += os.pwrite(descriptor, data[written : written + size], offset + written)
