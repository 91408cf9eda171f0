"""The forward pass of Llama, Mistral, Qwen2 and Qwen3, compiled: one call for all layers.

Everything here is float32 on packed matrices. A matrix W [N, K] is packed in blocks of 32 outputs,
[N / 32, K, 32], so that a row of x meets 32 outputs with each load and every sum runs over k in
ascending order, whatever the number of rows: a token gets the same bits decoded alone, verified among
draft tokens, or batched with other requests. Keys are kept packed as a matrix whose outputs are
positions, and values as one whose outputs are the coordinates of a head, so that attention is two
products of the same kind.

Numbers that bfloat16 holds exactly are packed as their upper halves (uint16), which halves what a pass
reads: small batches are bound by it.

Shapes: R rows (tokens of all segments), N outputs, K inputs, L layers, T positions, D head size,
V vocabulary. A dimension that is padded to a multiple of 32 is marked with a prime: N' D' T'.

This module is the only one that is compiled, because numba's cache knows only the file of a function.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

BLOCK = 32
LARGEST_FP8 = 448.0
# What dynamic FP8 scales of rows without content are raised to, as in 1 / (448 * 512).
SMALLEST_SCALE = 1.0 / (LARGEST_FP8 * 512.0)

# Instead of an input scale: it is found for each token as it comes; nothing of the layer is FP8.
EACH_TOKEN, NOT_FP8 = 0.0, -1.0

_LARGEST_FLOAT = np.finfo(np.float32).max
_LANES = 16
_MOST_ROWS = 8
# Rows of a segment that attend together: bounds the scores held, [rows · query heads a key head, T'].
_ATTENDING = 8

# How long before a product reads a weight it asks for it: with several rows to each, processors do not
# look that far ahead by themselves. Of 1, 2 and 4 KiB the last was best.
_AHEAD_BYTES = 4096
_LINE_BYTES = 64

# Python's error model tests every divisor, and a loop with such a test is not vectorised.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}

Floats = NDArray[np.float32]
Float = Any  # one float32


class Matrix(NamedTuple):
    """The same projection of all layers, y = x Wᵀ + b, packed.

    Attributes:
        packed: [L, N' · K], uint16 (upper halves of float32, see `pack`) or float32.
        bias: [L, N'].
        scale: of FP8 weights, for each output [L, N']; else 1.
        input_scale: of FP8 inputs [L], or EACH_TOKEN, or NOT_FP8.
    """

    packed: NDArray[Any]
    bias: Floats
    scale: Floats
    input_scale: Floats


class Weights(NamedTuple):
    """All weights of a model. `q_norm` and `k_norm` are [L, D], or [L, 0] where there are none."""

    embedding: Matrix
    attention_norm: Floats  # [L, H]
    q: Matrix
    k: Matrix
    v: Matrix
    q_norm: Floats
    k_norm: Floats
    output: Matrix
    mlp_norm: Floats  # [L, H]
    gate: Matrix
    up: Matrix
    down: Matrix
    norm: Floats  # [H]
    head: Matrix
    cosines: Floats  # [T, D / 2]
    sines: Floats


class Segments(NamedTuple):
    """What a pass computes; arrays [S], rows of segment s are first_row[s] … first_row[s + 1]."""

    first_row: NDArray[np.int64]  # [S + 1]
    slot: NDArray[np.int64]
    start: NDArray[np.int64]


class Sizes(NamedTuple):
    """The numbers that the arrays do not carry."""

    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    norm_eps: float


class Cache(NamedTuple):
    """Keys and values of all slots: keys [slots, L, K, T' · D], values [slots, L, K, D' · T']."""

    keys: Floats
    values: Floats
    positions: int  # T'


class Room(NamedTuple):
    """What the layers of a pass write over again; each [R, …']."""

    normed: Floats
    q: Floats
    k: Floats
    v: Floats
    attended: Floats
    gate: Floats
    up: Floats
    update: Floats


def padded(size: int) -> int:
    """Return the next multiple of 32."""
    return -(-size // BLOCK) * BLOCK


def pack(weight_NK: NDArray[Any]) -> NDArray[Any]:
    """Return a float32 or uint16 matrix as the products read it, [N' · K].

    The halves of a pair of lanes share one 32-bit word, so that a shift and a mask widen them.
    """
    packed = np.zeros(padded(weight_NK.shape[0]) * weight_NK.shape[1], weight_NK.dtype)
    fill(weight_NK, packed)
    return packed


@njit(**_OPTIONS, cache=True)
def fill(weight_NK: NDArray[Any], packed: NDArray[Any]) -> None:
    """Set a packed matrix, zero where it is padded, to these weights."""
    size, inputs = weight_NK.shape
    for block in range((size + BLOCK - 1) // BLOCK):
        for n in range(block * BLOCK, min(size, (block + 1) * BLOCK)):
            at = block * inputs * BLOCK + _lane(n, weight_NK.itemsize)
            for k in range(inputs):
                packed[at + k * BLOCK] = weight_NK[n, k]


@njit(**_OPTIONS, inline="always")
def _lane(n: int, width: int) -> int:
    """Return where output n lies among the 32 of its block; `width` is 2 or 4 bytes."""
    lane = n % BLOCK
    return lane % _LANES * 2 + lane // _LANES if width == 2 else lane


_FLOAT, _INT32, _INT64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_BYTES = ir.IntType(8).as_pointer()
_FLOATS, _INTS = ir.VectorType(_FLOAT, _LANES), ir.VectorType(_INT32, _LANES)


def _tile(rows: int) -> Any:
    """Return y[r, 0:32] = Σₖ x[r, k] · w[k, 0:32] for that many rows, sums held in registers.

    Written in LLVM's own terms, since a loop over lanes that is left to the vectoriser sums in
    another order for another number of rows.
    """

    @intrinsic
    def tile(
        _: Any,
        y: Any,
        y_at: Any,
        y_stride: Any,
        x: Any,
        x_at: Any,
        x_stride: Any,
        w: Any,
        w_at: Any,
        size: Any,
    ) -> Any:
        narrow = w.dtype == types.uint16

        def generate(context: Any, builder: ir.IRBuilder, _: Any, arguments: Any) -> Any:
            y_array, y_at, y_stride, x_array, x_at, x_stride, w_array, w_at, size = arguments
            arrays = [
                (context.make_array(kind)(context, builder, value).data, at)
                for kind, value, at in ((y, y_array, y_at), (x, x_array, x_at), (w, w_array, w_at))
            ]
            y_start, x_start, w_start = (builder.gep(data, [at]) for data, at in arrays)
            multiply_add = builder.module.declare_intrinsic(
                "llvm.fmuladd.v16f32", (), ir.FunctionType(_FLOATS, [_FLOATS] * 3)
            )
            zero = ir.Constant(_FLOATS, [0.0] * _LANES)
            sums = [[cgutils.alloca_once_value(builder, zero) for _ in range(2)] for _ in range(rows)]
            x_rows = [builder.gep(x_start, [builder.mul(x_stride, _INT64(row))]) for row in range(rows)]
            with cgutils.for_range(builder, size, intp=_INT64) as loop:
                current = builder.gep(w_start, [builder.mul(loop.index, _INT64(BLOCK))])
                _prefetch(builder, current, BLOCK * w.dtype.bitwidth // 8)
                weights = _lanes(builder, current, narrow)
                for row in range(rows):
                    value = _broadcast(builder, builder.load(builder.gep(x_rows[row], [loop.index])))
                    for half in range(2):
                        total = builder.call(
                            multiply_add, [value, weights[half], builder.load(sums[row][half])]
                        )
                        builder.store(total, sums[row][half])
            for row in range(rows):
                target = builder.gep(y_start, [builder.mul(y_stride, _INT64(row))])
                target = builder.bitcast(target, _FLOATS.as_pointer())
                for half in range(2):
                    builder.store(builder.load(sums[row][half]), builder.gep(target, [_INT64(half)]), align=4)
            return context.get_dummy_value()

        return types.void(y, y_at, y_stride, x, x_at, x_stride, w, w_at, size), generate

    return tile


def _prefetch(builder: ir.IRBuilder, at: Any, size: int) -> None:
    """Ask for the `size` bytes that lie so far ahead; past the end is no fault."""
    prefetch = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(ir.VoidType(), [_BYTES, *[_INT32] * 3]), "llvm.prefetch.p0i8"
    )
    for offset in range(0, size, _LINE_BYTES):
        ahead = builder.gep(builder.bitcast(at, _BYTES), [_INT64(_AHEAD_BYTES + offset)])
        # To read, into every level, data.
        builder.call(prefetch, [ahead, _INT32(0), _INT32(3), _INT32(1)])


def _lanes(builder: ir.IRBuilder, at: Any, narrow: bool) -> tuple[Any, Any]:
    """Return 32 weights as two vectors."""
    if not narrow:
        first = builder.bitcast(at, _FLOATS.as_pointer())
        return builder.load(first, align=4), builder.load(builder.gep(first, [_INT64(1)]), align=4)
    pairs = builder.load(builder.bitcast(at, _INTS.as_pointer()), align=2)
    low = builder.shl(pairs, ir.Constant(_INTS, [16] * _LANES))
    high = builder.and_(pairs, ir.Constant(_INTS, [0xFFFF0000] * _LANES))
    return builder.bitcast(low, _FLOATS), builder.bitcast(high, _FLOATS)


def _broadcast(builder: ir.IRBuilder, value: Any) -> Any:
    undefined = ir.Constant(_FLOATS, ir.Undefined)
    first = builder.insert_element(undefined, value, _INT32(0))
    return builder.shuffle_vector(first, undefined, ir.Constant(_INTS, [0] * _LANES))


_tile_1, _tile_2, _tile_3, _tile_4, _tile_5, _tile_6, _tile_7, _tile_8 = (
    _tile(rows) for rows in range(1, _MOST_ROWS + 1)
)


@njit(**_OPTIONS)
def _product(x: Floats, rows: int, size: int, w: NDArray[Any], stride: int, outputs: int, y: Floats) -> None:
    """Set y[:rows, :outputs'] = x[:rows, :size] Wᵀ; blocks of w begin `stride` elements after each other."""
    x_stride, y_stride = x.shape[1], y.shape[1]
    for block in range((outputs + BLOCK - 1) // BLOCK):
        at = block * stride
        for row in range(0, rows, _MOST_ROWS):
            left, y_at, x_at = rows - row, row * y_stride + block * BLOCK, row * x_stride
            if left >= 8:
                _tile_8(y, y_at, y_stride, x, x_at, x_stride, w, at, size)
            elif left == 7:
                _tile_7(y, y_at, y_stride, x, x_at, x_stride, w, at, size)
            elif left == 6:
                _tile_6(y, y_at, y_stride, x, x_at, x_stride, w, at, size)
            elif left == 5:
                _tile_5(y, y_at, y_stride, x, x_at, x_stride, w, at, size)
            elif left == 4:
                _tile_4(y, y_at, y_stride, x, x_at, x_stride, w, at, size)
            elif left == 3:
                _tile_3(y, y_at, y_stride, x, x_at, x_stride, w, at, size)
            elif left == 2:
                _tile_2(y, y_at, y_stride, x, x_at, x_stride, w, at, size)
            else:
                _tile_1(y, y_at, y_stride, x, x_at, x_stride, w, at, size)


# Sums of one row may be reordered for speed: the order depends on the row's length alone.
@njit(**_OPTIONS, fastmath={"reassoc", "contract", "nsz"})
def _sum_of_squares(x: Floats) -> Float:
    total = np.float32(0)
    for i in range(x.size):
        total += x[i] * x[i]
    return total


@njit(**_OPTIONS, fastmath={"reassoc", "contract", "nsz"})
def _sum(x: Floats) -> Float:
    total = np.float32(0)
    for i in range(x.size):
        total += x[i]
    return total


@njit(**_OPTIONS, fastmath={"nnan", "nsz"})
def _largest(x: Floats) -> Float:
    largest = x[0]
    for i in range(x.size):
        largest = max(largest, x[i])
    return largest


@njit(**_OPTIONS)
def _is_finite(x: Floats) -> bool:
    others = 0
    for row in range(x.shape[0]):
        for i in range(x.shape[1]):
            others += not abs(x[row, i]) <= _LARGEST_FLOAT
    return others == 0


@njit(**_OPTIONS, inline="always")
def _exp(x: Float) -> Float:
    """Return eˣ to about 2 units in the last place; a polynomial on ± ln 2 / 2, after Cephes' expf."""
    x = min(max(x, np.float32(-87.0)), np.float32(88.0))
    whole = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
    rest = x - whole * np.float32(0.693359375) + whole * np.float32(2.12194440e-4)
    y = np.float32(1.9875691500e-4)
    y = y * rest + np.float32(1.3981999507e-3)
    y = y * rest + np.float32(8.3334519073e-3)
    y = y * rest + np.float32(4.1665795894e-2)
    y = y * rest + np.float32(1.6666665459e-1)
    y = y * rest + np.float32(5.0000001201e-1)
    y = y * rest * rest + rest + np.float32(1.0)
    return y * np.int32((np.int32(whole) + np.int32(127)) << np.int32(23)).view(np.float32)


@njit(**_OPTIONS)
def _normalise(x: Floats, weight: Floats, eps: float, y: Floats) -> None:
    """Set y = x / sqrt(mean(x²) + eps) · weight."""
    factor = np.float32(1.0 / np.sqrt(_sum_of_squares(x) / x.size + eps))
    for i in range(x.size):
        y[i] = x[i] * factor * weight[i]


@njit(**_OPTIONS)
def _round_to_fp8(x: Float) -> Float:
    """Return the nearest value that an e4m3 code has, ties to even; beyond 448 it is 448."""
    x = min(max(x, np.float32(-LARGEST_FP8)), np.float32(LARGEST_FP8))
    if abs(x) < 2.0**-6:
        return np.float32(np.rint(x * np.float32(512.0)) * np.float32(1 / 512))
    bits = np.float32(x).view(np.uint32)
    bits = np.uint32(bits + np.uint32(0x7FFFF) + ((bits >> np.uint32(20)) & np.uint32(1)))
    return np.uint32(bits & np.uint32(0xFFF00000)).view(np.float32)


@njit(**_OPTIONS)
def _quantise(x: Floats, rows: int, size: int, static: float, codes: Floats, scales: Floats) -> None:
    """Set codes[r, k] = round(x[r, k] / scales[r])."""
    for row in range(rows):
        scale = np.float32(static)
        if scale == EACH_TOKEN:
            for k in range(size):
                scale = max(scale, abs(x[row, k]))
            scale = max(scale / np.float32(LARGEST_FP8), np.float32(SMALLEST_SCALE))
        scales[row] = scale
        for k in range(size):
            codes[row, k] = _round_to_fp8(x[row, k] / scale)


@njit(**_OPTIONS)
def _apply(matrix: Matrix, layer: int, x: Floats, rows: int, size: int, y: Floats) -> None:
    """Set y[:rows] = x[:rows, :size] Wᵀ + b."""
    packed, bias, scale = matrix.packed[layer], matrix.bias[layer], matrix.scale[layer]
    input_scale = matrix.input_scale[layer]
    if input_scale == NOT_FP8:
        _product(x, rows, size, packed, size * BLOCK, bias.size, y)
        for row in range(rows):
            for n in range(bias.size):
                y[row, n] += bias[n]
        return
    codes, scales = np.empty((rows, size), np.float32), np.empty(rows, np.float32)
    _quantise(x, rows, size, input_scale, codes, scales)
    _product(codes, rows, size, packed, size * BLOCK, bias.size, y)
    for row in range(rows):
        for n in range(bias.size):
            y[row, n] = y[row, n] * scales[row] * scale[n] + bias[n]


@njit(**_OPTIONS)
def _rotate(head: Floats, cosines: Floats, sines: Floats) -> None:
    """Turn the coordinate pairs (i, i + D / 2) of a head in place."""
    half = cosines.size
    for i in range(half):
        a, b = head[i], head[i + half]
        head[i] = a * cosines[i] - b * sines[i]
        head[i + half] = b * cosines[i] + a * sines[i]


@njit(**_OPTIONS)
def _attend(
    q: Floats,
    first: int,
    rows: int,
    start: int,
    keys: Floats,
    values: Floats,
    heads: int,
    head_dim: int,
    first_head: int,
    out: Floats,
) -> None:
    """Set out[first : first + rows] of the query heads that share one key-value head.

    Row i stands at position start + i and sees the positions up to its own. Keys [T' / 32, D, 32] and
    values [D' / 32, T', 32] are flat.
    """
    length = start + rows
    queries = np.empty((rows * heads, head_dim), np.float32)
    factor = np.float32(1.0 / np.sqrt(head_dim))
    for row in range(rows):
        for head in range(heads):
            at = (first_head + head) * head_dim
            for d in range(head_dim):
                queries[row * heads + head, d] = q[first + row, at + d] * factor
    scores = np.empty((rows * heads, -(-length // BLOCK) * BLOCK), np.float32)
    _product(queries, rows * heads, head_dim, keys, head_dim * BLOCK, length, scores)
    sums = np.empty(rows * heads, np.float32)
    for index in range(rows * heads):
        seen = start + index // heads + 1
        row_scores = scores[index, :seen]
        largest = _largest(row_scores)
        for t in range(seen):
            row_scores[t] = _exp(row_scores[t] - largest)
        sums[index] = _sum(row_scores)
        scores[index, seen:length] = 0
    attended = np.empty((rows * heads, -(-head_dim // BLOCK) * BLOCK), np.float32)
    _product(
        scores, rows * heads, length, values, values.size // attended.shape[1] * BLOCK, head_dim, attended
    )
    for row in range(rows):
        for head in range(heads):
            index, at = row * heads + head, (first_head + head) * head_dim
            inverse = np.float32(1.0) / sums[index]
            for d in range(head_dim):
                out[first + row, at + d] = attended[index, d] * inverse


@njit(**_OPTIONS)
def _keep(key: Floats, value: Floats, position: int, keys: Floats, values: Floats, positions: int) -> None:
    """Write one head's key and value [D] of a position into its cache."""
    at = position // BLOCK * key.size * BLOCK + position % BLOCK
    for d in range(key.size):
        keys[at + d * BLOCK] = key[d]
        values[(d // BLOCK * positions + position) * BLOCK + d % BLOCK] = value[d]


@njit(**_OPTIONS)
def _unpack(packed: NDArray[Any], row: int, x: Floats) -> None:
    """Set x to row `row` of a packed matrix."""
    at = row // BLOCK * x.size * BLOCK + _lane(row, packed.itemsize)
    for k in range(x.size):
        if packed.itemsize == 2:
            x[k] = np.uint32(np.uint32(packed[at + k * BLOCK]) << np.uint32(16)).view(np.float32)
        else:
            x[k] = packed[at + k * BLOCK]


@njit(**_OPTIONS)
def _attention(
    weights: Weights,
    sizes: Sizes,
    layer: int,
    x: Floats,
    segments: Segments,
    positions: NDArray[np.int64],
    cache: Cache,
    room: Room,
) -> None:
    """Set room.update to what attention adds to x."""
    rows, head_dim = x.shape[0], sizes.head_dim
    group = sizes.heads // sizes.kv_heads
    _apply(weights.q, layer, room.normed, rows, x.shape[1], room.q)
    _apply(weights.k, layer, room.normed, rows, x.shape[1], room.k)
    _apply(weights.v, layer, room.normed, rows, x.shape[1], room.v)
    q_norm, k_norm = weights.q_norm[layer], weights.k_norm[layer]
    for segment in range(segments.slot.size):
        slot = segments.slot[segment]
        first, end = segments.first_row[segment], segments.first_row[segment + 1]
        # Rows that attend together multiply what they do not see by 0, which leaves NaN what it is.
        together = _ATTENDING if _is_finite(room.v[first:end]) else 1
        for kv_head in range(sizes.kv_heads):
            keys, values = cache.keys[slot, layer, kv_head], cache.values[slot, layer, kv_head]
            at = kv_head * head_dim
            for row in range(first, end):
                cosines, sines = weights.cosines[positions[row]], weights.sines[positions[row]]
                for head in range(group):
                    query_at = (kv_head * group + head) * head_dim
                    query = room.q[row, query_at : query_at + head_dim]
                    if q_norm.size:
                        _normalise(query, q_norm, sizes.norm_eps, query)
                    _rotate(query, cosines, sines)
                key = room.k[row, at : at + head_dim]
                if k_norm.size:
                    _normalise(key, k_norm, sizes.norm_eps, key)
                _rotate(key, cosines, sines)
                _keep(key, room.v[row, at : at + head_dim], positions[row], keys, values, cache.positions)
            for row in range(first, end, together):
                _attend(
                    room.q,
                    row,
                    min(together, end - row),
                    positions[row],
                    keys,
                    values,
                    group,
                    head_dim,
                    kv_head * group,
                    room.attended,
                )
    _apply(weights.output, layer, room.attended, rows, sizes.heads * head_dim, room.update)


@njit(**_OPTIONS)
def _mlp(weights: Weights, layer: int, x: Floats, inner: int, room: Room) -> None:
    """Set room.update to what the MLP adds to x: down(silu(gate x) · up x)."""
    rows = x.shape[0]
    _apply(weights.gate, layer, room.normed, rows, x.shape[1], room.gate)
    _apply(weights.up, layer, room.normed, rows, x.shape[1], room.up)
    for row in range(rows):
        gate, up = room.gate[row], room.up[row]
        for i in range(gate.size):
            gate[i] = gate[i] / (np.float32(1.0) + _exp(-gate[i])) * up[i]
    _apply(weights.down, layer, room.gate, rows, inner, room.update)


@njit(**_OPTIONS)
def _normalise_rows(x: Floats, weight: Floats, eps: float, y: Floats) -> None:
    for row in range(x.shape[0]):
        _normalise(x[row], weight, eps, y[row, : x.shape[1]])


@njit(**_OPTIONS)
def _add(x: Floats, update: Floats) -> None:
    for row in range(x.shape[0]):
        for i in range(x.shape[1]):
            x[row, i] += update[row, i]


@njit(**_OPTIONS)
def _pass(
    weights: Weights,
    sizes: Sizes,
    cache: Cache,
    ids: NDArray[np.int64],
    segments: Segments,
    wanted: NDArray[np.int64],
) -> Floats:
    """Extend the cache and return the logits of the rows `wanted`."""
    rows, hidden = ids.size, weights.norm.size
    inner = sizes.inner
    positions = np.empty(rows, np.int64)
    for segment in range(segments.slot.size):
        first = segments.first_row[segment]
        for row in range(first, segments.first_row[segment + 1]):
            positions[row] = segments.start[segment] + row - first
    room = Room(
        np.empty((rows, hidden), np.float32),
        np.empty((rows, weights.q.bias.shape[1]), np.float32),
        np.empty((rows, weights.k.bias.shape[1]), np.float32),
        np.empty((rows, weights.v.bias.shape[1]), np.float32),
        np.empty((rows, sizes.heads * sizes.head_dim), np.float32),
        np.empty((rows, weights.gate.bias.shape[1]), np.float32),
        np.empty((rows, weights.up.bias.shape[1]), np.float32),
        np.empty((rows, weights.down.bias.shape[1]), np.float32),
    )
    x = np.empty((rows, hidden), np.float32)
    for row in range(rows):
        _unpack(weights.embedding.packed[0], ids[row], x[row])
    for layer in range(weights.attention_norm.shape[0]):
        _normalise_rows(x, weights.attention_norm[layer], sizes.norm_eps, room.normed)
        _attention(weights, sizes, layer, x, segments, positions, cache, room)
        _add(x, room.update)
        _normalise_rows(x, weights.mlp_norm[layer], sizes.norm_eps, room.normed)
        _mlp(weights, layer, x, inner, room)
        _add(x, room.update)
    last = np.empty((wanted.size, hidden), np.float32)
    for index in range(wanted.size):
        _normalise(x[wanted[index]], weights.norm, sizes.norm_eps, last[index])
    logits = np.empty((wanted.size, weights.head.bias.shape[1]), np.float32)
    _apply(weights.head, 0, last, wanted.size, hidden, logits)
    return logits


@njit(**_OPTIONS, cache=True)
def run(
    weights: Weights,
    sizes: Sizes,
    cache: Cache,
    ids: NDArray[np.int64],
    segments: Segments,
    wanted: NDArray[np.int64],
    ends: NDArray[np.int64],
    vocab_size: int,
    chosen: NDArray[np.int64],
) -> Floats:
    """Run one pass, extend the cache, and return the logits [W, V'] of the rows `wanted`.

    Where `chosen` [S, steps] has columns, `wanted` is the last row of each segment: the most probable
    token of it is written there and read by a pass that follows, until `chosen` is full or every segment
    has met its end, of `ends` [S]. The logits are then those of the last pass.

    One function for both, since compiling the pass is what takes so long.
    """
    steps, step, first_row = chosen.shape[1], 0, np.arange(ends.size + 1)
    ended = np.zeros(ends.size, np.bool_)
    while True:
        logits: Floats = _pass(weights, sizes, cache, ids, segments, wanted)
        for segment in range(ends.size):
            chosen[segment, step] = np.argmax(logits[segment, :vocab_size])
            ended[segment] |= chosen[segment, step] == ends[segment]
        if step + 1 >= steps or ended.all():
            return logits
        start = segments.start + np.diff(segments.first_row)
        ids, wanted, segments = (
            chosen[:, step].copy(),
            first_row[:-1],
            Segments(first_row, segments.slot, start),
        )
        step += 1
