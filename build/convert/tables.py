"""The words a family's table is written in: which Hugging Face tensor becomes what, and how ranks share it.

Shapes are those of a Linear, [out, in]. Every TensorRT-LLM tensor is rows of Hugging Face tensors, one
after the other; tensor parallelism gives each rank a part of those rows, or of their columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from trtspec.build.convert.settings import Settings, integer


class Split(Enum):
    """What a tensor-parallel rank holds of a tensor."""

    WHOLE = auto()  # all of it
    ROWS = auto()  # its share of the output rows (column-parallel Linear)
    COLUMNS = auto()  # its share of the input columns (row-parallel Linear)
    KV_HEADS = auto()  # the rows of its kv heads, repeated where there are fewer heads than ranks
    VOCABULARY = auto()  # its share of the rows, zero rows appended to a multiple of the ranks


@dataclass(frozen=True)
class Part:
    """Rows of one Hugging Face tensor."""

    source: str
    shape: tuple[int, ...]  # in [out, in] order, of the whole source
    split: Split = Split.WHOLE
    rows: tuple[int, int] | None = None  # half-open; None: all
    transposed: bool = False  # the file holds [in, out]


@dataclass(frozen=True)
class Weight:
    """One TensorRT-LLM tensor: its parts' rows, one after the other."""

    parts: tuple[Part, ...]
    stacked: int = 0  # experts, which become a leading dimension; 0: none
    plus: float = 0.0  # added in float32
    dtype: str | None = None  # safetensors spelling, where it is not the checkpoint's


Table = Mapping[str, Weight]


@dataclass(frozen=True)
class Dimensions:
    """Sizes of a decoder, as config.json gives them."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int  # rows of the embedding itself
    positions: int
    experts: int = 0

    @property
    def query(self) -> int:
        """Output rows of the query projection."""
        return self.heads * self.head_size

    @property
    def key(self) -> int:
        """Output rows of the key projection, and of the value projection."""
        return self.kv_heads * self.head_size


@dataclass(frozen=True)
class Family:
    """One model family: its tensor names and its exceptions.

    Source names in the tables are relative: to a layer, or to the model. `prefixes` are the spellings of
    the model's own prefix; the one under which the embedding is found is taken.
    """

    architectures: tuple[str, ...]
    layer: Callable[[Dimensions, Settings], Table]
    outer: Callable[[Dimensions], Table]  # "ln_f.weight" and the like, of the last stage
    settings: Callable[[Settings, Dimensions], dict[str, Any]]  # its keys of TensorRT-LLM's config.json
    dimensions: Callable[[Settings, int], Dimensions]
    embeddings: Callable[[Dimensions], Table]  # of the first stage; "vocab_embedding.weight" among them
    tied_by_default: bool  # what transformers takes where config.json has no tie_word_embeddings
    prefixes: tuple[str, ...] = ("model.",)
    layers: str = "layers.{}."
    parallel_embedding: bool = False  # the embedding is split over the ranks when there are several
    ignored: tuple[str, ...] = field(default=(r"(^|\.)rotary_emb\.inv_freq$",))  # buffers, as patterns


def whole(source: str, *shape: int, plus: float = 0.0) -> Weight:
    """Every rank holds all of it."""
    return Weight((Part(source, shape),), plus=plus)


def by_rows(source: str, *shape: int) -> Weight:
    """A column-parallel Linear's weight or bias."""
    return Weight((Part(source, shape, Split.ROWS),))


def by_columns(source: str, *shape: int) -> Weight:
    """A row-parallel Linear's weight."""
    return Weight((Part(source, shape, Split.COLUMNS),))


def by_heads(d: Dimensions, sources: tuple[str, str, str], *columns: int) -> Weight:
    """Three projections fused into q | k | v, each split over the ranks on its own."""
    query, key, value = sources
    return Weight(
        (
            Part(query, (d.query, *columns), Split.ROWS),
            Part(key, (d.key, *columns), Split.KV_HEADS),
            Part(value, (d.key, *columns), Split.KV_HEADS),
        )
    )


def by_fused_heads(d: Dimensions, source: str, *columns: int, transposed: bool = False) -> Weight:
    """One tensor that already holds q | k | v."""
    rows = d.query + 2 * d.key
    bounds = (
        (0, d.query, Split.ROWS),
        (d.query, d.query + d.key, Split.KV_HEADS),
        (d.query + d.key, rows, Split.KV_HEADS),
    )
    return Weight(
        tuple(
            Part(source, (rows, *columns), split, rows=(begin, end), transposed=transposed)
            for begin, end, split in bounds
        )
    )


def read_dimensions(settings: Settings, vocabulary: int) -> Dimensions:
    """Read the sizes under the names most families use."""
    hidden, heads = integer(settings, "hidden_size"), integer(settings, "num_attention_heads")
    return Dimensions(
        hidden=hidden,
        intermediate=integer(settings, "intermediate_size"),
        layers=integer(settings, "num_hidden_layers"),
        heads=heads,
        kv_heads=integer(settings, "num_key_value_heads", heads),
        head_size=integer(settings, "head_dim", hidden // heads or None),
        vocabulary=vocabulary,
        positions=integer(settings, "max_position_embeddings"),
    )
