"""The plan of a TensorRT-LLM checkpoint: config.json and one rank{r}.safetensors for each rank.

Rank r is tensor-parallel rank r % tp of pipeline stage r // tp; layers are numbered from zero in each
stage; only the first has the embedding, only the last the final norm and the head.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from trtspec.build.checkpoint import Checkpoint, shown_count
from trtspec.build.convert.e4m3 import E4M3
from trtspec.build.convert.elements import FLOAT_NAMES, Array, is_float
from trtspec.build.convert.formats import FLOATS
from trtspec.build.convert.fp8 import PER_TENSOR, Fp8Scales
from trtspec.build.convert.linears import find_linears, measured_family, model_prefix, module_of
from trtspec.build.convert.plan import Piece, Plan, PlannedFile, PlannedTensor, document
from trtspec.build.convert.settings import flag
from trtspec.build.convert.splitting import Cut, check_split, cut_vocabulary, cuts
from trtspec.build.convert.tables import Dimensions, Family, Part, Split, Table, Weight
from trtspec.build.convert.trtllm_config import trtllm_config, window_note
from trtspec.build.convert.trtllm_fp8 import (
    FusedScales,
    cache_tensors,
    check_fp8,
    recoding,
    scale_tensors,
)
from trtspec.build.tensor_file import TensorInfo, main_dtype, same_content
from trtspec.errors import BuildError, CheckpointError

HEAD = "lm_head.weight"
EMBEDDING = "vocab_embedding.weight"


def plan_trtllm(
    checkpoint: Checkpoint,
    *,
    dtype: str | None = None,
    tp: int = 1,
    pp: int = 1,
    fp8: Fp8Scales | None = None,
    vocabulary: int | None = None,
) -> Plan:
    """Plan a TensorRT-LLM 1.2.1 checkpoint.

    Args:
        vocabulary: rows that embedding and head shall have; None: as they are.
        dtype: float16, bfloat16 or float32; None takes the checkpoint's own.
        fp8: the scales to quantise with, or those of a checkpoint that is quantised already.

    Raises:
        CheckpointError: unknown architecture; unmapped, missing or misshapen tensors; a missing head.
        BuildError: the split is impossible, or the engine path cannot compute this model.
    """
    family, d = measured_family(checkpoint)
    written = replace(d, vocabulary=_vocabulary_size(checkpoint, d, vocabulary))
    check_split(family, written, tp, pp)
    if fp8:
        linears = find_linears(checkpoint)
        check_fp8(fp8, [name for layer in linears for name in layer.names], checkpoint.path)
    model = _Model(checkpoint, family, d, model_prefix(checkpoint, family))
    tied, notes = _tied(model)
    stages = [model.stage(stage, pp, tied, tp) for stage in range(pp)]
    sources = _resolve(model, stages, fp8)
    plain = [tensor for tensor in sources.values() if is_float(tensor.dtype)]
    spelling = FLOATS[dtype] if dtype else main_dtype(plain)
    config = trtllm_config(
        checkpoint, family, written, dtype=FLOAT_NAMES[spelling], tied=tied, tp=tp, pp=pp, fp8=fp8
    )
    ranks = (
        PlannedFile.of(
            f"rank{stage * tp + tp_rank}.safetensors",
            _rank_tensors(stages[stage], sources, written, spelling, tp, tp_rank, fp8),
        )
        for stage in range(pp)
        for tp_rank in range(tp)
    )
    return Plan(
        weights=tuple(ranks),
        documents={"config.json": document(config)},
        dtype=FLOAT_NAMES[spelling],
        tied=tied,
        notes=notes + window_note(checkpoint.config, d) + (fp8.notes if fp8 else ()),
    )


def _vocabulary_size(checkpoint: Checkpoint, d: Dimensions, wanted: int | None) -> int:
    if wanted is None:
        return d.vocabulary
    if not 0 < wanted <= 2 * d.vocabulary:
        raise BuildError(
            f"{checkpoint.path}: a vocabulary of {d.vocabulary} rows cannot become one of {wanted}; take "
            "models of one family"
        )
    return wanted


@dataclass(frozen=True)
class _Model:
    """A checkpoint together with its family's table."""

    checkpoint: Checkpoint
    family: Family
    d: Dimensions
    prefix: str

    @property
    def embedding(self) -> str:
        (part,) = self.family.embeddings(self.d)[EMBEDDING].parts
        return self.prefix + part.source

    def stage(self, stage: int, stages: int, tied: bool, tp: int) -> Table:
        """Return the full names of one stage's tensors, and whole source names."""
        layers = self.d.layers // stages
        table: dict[str, Weight] = {}
        for local in range(layers):
            place = self.prefix + self.family.layers.format(stage * layers + local)
            for name, weight in self.family.layer(self.d, self.checkpoint.config).items():
                table[f"transformer.layers.{local}.{name}"] = _rooted(weight, place)
        if stage == 0:
            for name, weight in self.family.embeddings(self.d).items():
                table[f"transformer.{name}"] = _rooted(weight, self.prefix)
            if self.family.parallel_embedding and tp > 1:
                table[f"transformer.{EMBEDDING}"] = self._vocabulary(self.embedding)
        if stage == stages - 1:
            for name, weight in self.family.outer(self.d).items():
                table[f"transformer.{name}"] = _rooted(weight, self.prefix)
            # Explicit even when tied: a stage or rank without the whole embedding needs its own.
            table[HEAD] = self._vocabulary(self.embedding if tied else HEAD)
        return table

    def _vocabulary(self, source: str) -> Weight:
        return Weight((Part(source, (self.d.vocabulary, self.d.hidden), Split.VOCABULARY),))


def _rooted(weight: Weight, place: str) -> Weight:
    return replace(weight, parts=tuple(replace(part, source=place + part.source) for part in weight.parts))


def _tied(model: _Model) -> tuple[bool, tuple[str, ...]]:
    """Decide from config.json and from the data whether the head is the embedding.

    A missing head that config.json does not tie is an error: it may have been lost. A head that differs
    from the embedding is a head of its own whatever config.json says, as in transformers 5.
    """
    checkpoint = model.checkpoint
    says_tied = flag(checkpoint.config, "tie_word_embeddings", model.family.tied_by_default)
    head, embedding = checkpoint.tensors.get(HEAD), checkpoint.tensors.get(model.embedding)
    if head is None:
        if not says_tied:
            raise CheckpointError(
                f"{checkpoint.path}: no {HEAD}, and config.json does not tie it to the embedding; fetch the "
                "missing weights, or set tie_word_embeddings to true if the model was trained so"
            )
        return True, ()
    if not says_tied:
        return False, ()
    if embedding is not None and same_content(head, embedding):
        return True, ()
    return False, (
        f"config.json ties {HEAD} to the embedding but the two differ: written untied, as transformers 5 "
        "does; older versions use the embedding",
    )


def _resolve(model: _Model, stages: list[Table], fp8: Fp8Scales | None) -> dict[str, TensorInfo]:
    """Return every source the stages name; names, shapes and types must fit the checkpoint exactly."""
    tensors, path = model.checkpoint.tensors, model.checkpoint.path
    parts = {part.source: part for part in _parts(stages)}
    missing = parts.keys() - tensors.keys()
    if missing:
        raise CheckpointError(
            f"{path}: {shown_count(missing, 'tensor')}, missing; config.json asks for them, "
            "fetch the checkpoint again"
        )
    left_over = {
        name
        for name in tensors.keys() - parts.keys() - {HEAD} - (fp8.replaced if fp8 else frozenset())
        if not any(re.search(pattern, name) for pattern in model.family.ignored)
    }
    if left_over:
        raise CheckpointError(
            f"{path}: {shown_count(left_over, 'tensor')}, without a place in a TensorRT-LLM "
            f"{model.checkpoint.architecture}; the model is not what config.json says"
        )
    for name, part in sorted(parts.items()):
        expected = part.shape[::-1] if part.transposed else part.shape
        if tensors[name].shape != expected:
            raise CheckpointError(
                f"{path}: {name} has shape {list(tensors[name].shape)}, config.json implies {list(expected)}"
            )
    codes = {f"{module}.weight" for module in fp8.linears} if fp8 and fp8.stored else set()
    others = {name for name in parts.keys() - codes if not is_float(tensors[name].dtype)}
    if others:
        raise CheckpointError(
            f"{path}: {shown_count(others, 'tensor')}, of type {tensors[min(others)].dtype}; expected "
            f"{', '.join(FLOATS.values())}; convert the unquantised checkpoint"
        )
    return {name: tensors[name] for name in parts}


def _parts(stages: list[Table]) -> Iterator[Part]:
    for table in stages:
        for weight in table.values():
            yield from weight.parts


def _rank_tensors(
    table: Table,
    sources: dict[str, TensorInfo],
    d: Dimensions,
    dtype: str,
    tp: int,
    tp_rank: int,
    fp8: Fp8Scales | None,
) -> Iterator[PlannedTensor]:
    for name, weight in table.items():
        parts = _cuts(name, weight, d, tp, tp_rank)
        quantised = fp8 if fp8 and module_of(weight.parts[0].source) in fp8.linears else None
        if quantised is None or not name.endswith(".weight"):
            yield _fused(name, weight, parts, sources, weight.dtype or dtype)
            continue
        fused = FusedScales.of(name, table, quantised) if quantised.algorithm == PER_TENSOR else None
        recodes = [recoding(part, sources[part.source], quantised, fused) for part in weight.parts]
        yield _fused(name, weight, parts, sources, E4M3, recodes)
        yield from scale_tensors(name, parts, quantised, fused)
        attention = module_of(weight.parts[0].source).rpartition(".")[0]
        if attention in quantised.cache and name.endswith(".attention.qkv.weight"):
            yield from cache_tensors(name.removesuffix("qkv.weight"), *quantised.cache[attention])


def _cuts(name: str, weight: Weight, d: Dimensions, tp: int, tp_rank: int) -> list[tuple[Part, Cut]]:
    """Return what a rank holds of each part of a tensor."""
    if name == f"transformer.{EMBEDDING}" and weight.parts[0].split is Split.WHOLE:
        (part,) = weight.parts
        rows, columns = part.shape
        return [(part, held) for held in cut_vocabulary(rows, columns, d.vocabulary, 1, 0)]
    return [(part, held) for part in weight.parts for held in cuts(part, d, tp, tp_rank)]


def _fused(
    name: str,
    weight: Weight,
    parts: list[tuple[Part, Cut]],
    sources: dict[str, TensorInfo],
    dtype: str,
    recodes: Sequence[Callable[[Array], Array] | None] | None = None,
) -> PlannedTensor:
    """Return one tensor of a rank: the blocks it holds of its parts, one below the other."""
    pieces, row, width = [], 0, 1
    for (part, held), recode in zip(parts, recodes or [None] * len(parts), strict=True):
        source = sources[part.source]
        pieces.append(Piece(source, held.rows, held.columns, row, part.transposed, weight.plus, recode))
        row += held.filled_rows
        width = held.columns[1] - held.columns[0]
    shape: tuple[int, ...] = (row,) if len(weight.parts[0].shape) == 1 else (row, width)
    if weight.stacked:
        shape = (weight.stacked, row // weight.stacked, width)
    return PlannedTensor(name, dtype, shape, tuple(pieces))
