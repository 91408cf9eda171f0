"""Which rows and columns of a tensor a tensor-parallel rank holds, and which splits are possible at all."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trtspec.build.convert.tables import Dimensions, Family, Part, Split
from trtspec.errors import BuildError

MAX_RANKS = 1024


@dataclass(frozen=True)
class Cut:
    """A block of one source, in [out, in] order, and the rows it fills at its destination."""

    rows: tuple[int, int]  # half-open
    columns: tuple[int, int]
    filled_rows: int  # at least the cut's own; the rest is zero


def cuts(part: Part, d: Dimensions, tp: int, tp_rank: int) -> list[Cut]:
    """Return the blocks of `part` that rank `tp_rank` of `tp` holds. Vectors have one column."""
    begin, end = part.rows or (0, part.shape[0])
    width = part.shape[1] if len(part.shape) > 1 else 1
    count = end - begin
    match part.split:
        case Split.WHOLE:
            return [Cut((begin, end), (0, width), count)]
        case Split.ROWS:
            share = count // tp
            return [Cut((begin + tp_rank * share, begin + (tp_rank + 1) * share), (0, width), share)]
        case Split.COLUMNS:
            share = width // tp
            return [Cut((begin, end), (tp_rank * share, (tp_rank + 1) * share), count)]
        case Split.KV_HEADS:
            heads = max(d.kv_heads // tp, 1)
            first = begin + tp_rank * d.kv_heads // tp * d.head_size
            return [Cut((first, first + heads * d.head_size), (0, width), heads * d.head_size)]
        case Split.VOCABULARY:
            return cut_vocabulary(count, width, d.vocabulary, tp, tp_rank)


def cut_vocabulary(rows: int, columns: int, wanted: int, tp: int, tp_rank: int) -> list[Cut]:
    """Return the blocks of an embedding or a head of which a rank's share of `wanted` rows is made.

    Rows past the wanted ones are left out. Where there are too few, the last rows stand for those that
    are missing: their ids then get the logits of tokens that hardly occur, where zero rows would have a
    logit of zero, which can be the largest.
    """
    share = padded_vocabulary(wanted, tp) // tp
    begin, end = tp_rank * share, (tp_rank + 1) * share
    kept, missing = min(rows, wanted), max(wanted - rows, 0)
    own = (min(begin, kept), min(end, kept))
    copied = (max(begin, kept) - missing, max(min(end, wanted), kept) - missing)
    blocks = [own, copied] if missing and copied[1] > copied[0] else [own]
    cuts = [Cut(block, (0, columns), block[1] - block[0]) for block in blocks]
    padding = share - sum(block.filled_rows for block in cuts)
    return [*cuts[:-1], replace(cuts[-1], filled_rows=cuts[-1].filled_rows + padding)]


def padded_vocabulary(vocabulary: int, tp: int) -> int:
    """Return the next multiple of `tp`."""
    return -(-vocabulary // tp) * tp


def check_split(family: Family, d: Dimensions, tp: int, pp: int) -> None:
    """Refuse a split that the model's sizes do not allow, with the reason and the nearest that they do.

    Raises:
        BuildError: as said; nothing was read yet.
    """
    reason = _why_not_tp(family, d, tp)
    if reason:
        possible = [size for size in range(1, MAX_RANKS + 1) if not _why_not_tp(family, d, size)]
        raise BuildError(f"--tp {tp}: {reason}; possible near it: {_nearest(tp, possible)}")
    if pp < 1 or d.layers % pp:
        possible = [size for size in range(1, d.layers + 1) if d.layers % size == 0]
        raise BuildError(
            f"--pp {pp}: the number of layers, {d.layers}, does not divide by {pp}; "
            f"possible near it: {_nearest(pp, possible)}"
        )


def _why_not_tp(family: Family, d: Dimensions, tp: int) -> str | None:
    if not 1 <= tp <= MAX_RANKS:
        return f"expected 1 to {MAX_RANKS} ranks"
    if d.heads % tp:
        return f"{d.heads} attention heads do not divide by {tp}"
    if d.kv_heads % tp and tp % d.kv_heads:
        return f"{d.kv_heads} kv heads neither divide by {tp} nor repeat evenly over {tp} ranks"
    if d.intermediate % tp:
        return f"intermediate size {d.intermediate} does not divide by {tp}"
    if family.parallel_embedding and d.vocabulary % tp:
        return f"vocabulary {d.vocabulary}, which this family splits unpadded, does not divide by {tp}"
    return None


def _nearest(wanted: int, possible: list[int]) -> str:
    below = [size for size in possible if size < wanted][-1:]
    above = [size for size in possible if size > wanted][:1]
    return " and ".join(map(str, below + above)) or "none"
