"""Rules about tensors: what each model has, against the contract."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass

from trtspec.triton_repo import contract
from trtspec.triton_repo import nvidia_models as nvidia
from trtspec.triton_repo.config_file import ConfigFile, tensors
from trtspec.triton_repo.contract import Tensor
from trtspec.triton_repo.layout import Layout
from trtspec.triton_repo.lint.finding import Complaint

# Without these nothing is generated, or nothing speculated.
CORE = {
    *("input_ids", "input_lengths", "request_output_len", "draft_input_ids", "end_id"),
    *("output_ids", "sequence_length", "text_input", "max_tokens", "num_draft_tokens", "text_output"),
    *("QUERY", "REQUEST_OUTPUT_LEN", "INPUT_ID", "REQUEST_INPUT_LEN"),
    *("TOKENS_BATCH", "SEQUENCE_LENGTH", "OUTPUT"),
}
# For other kinds of models than those that speculate here.
SELDOM = (
    "image",
    "video",
    "lora",
    "prompt_",
    "decoder_",
    "encoder_",
    "cross_",
    "mrope",
    "skip_",
    "retention",
)
# Tensors that follow the model's own dtype.
FREE_DTYPES = {
    "encoder_input_features": ("FP16", "BF16", "FP32"),
    "prompt_embedding_table": ("FP16", "BF16", "FP32"),
    "lora_weights": ("FP16", "BF16", "FP32"),
    "draft_logits": ("FP16", "FP32"),
    "context_logits": ("FP16", "FP32"),
    "generation_logits": ("FP16", "FP32"),
}


@dataclass(frozen=True)
class _Side:
    """The inputs or the outputs of one model beside what the contract has."""

    file: ConfigFile
    word: str
    found: dict[str, Tensor]
    wanted: dict[str, Tensor]
    # Known, but nothing is wrong where they are missing.
    extra: frozenset[str]
    # The loop may use any of them.
    complete: bool

    def missing(self, name: str) -> Complaint:
        return Complaint(
            self.file.path,
            f"{self.word} {name} is missing",
            f"add it: TYPE_{self.wanted[name].dtype}, dims {list(self.wanted[name].dims)}",
            self.file.line_of_field(self.word),
        )

    def line(self, name: str) -> int | None:
        return self.file.line_of("name", name, last=self.word == "output")

    def pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (found, wanted) for each tensor that both have."""
        for name, tensor in self.found.items():
            if name in self.wanted:
                yield tensor, self.wanted[name]


def missing(layout: Layout) -> Iterator[Complaint]:
    for side in _sides(layout):
        for name in side.wanted:
            if name not in side.found and (name in CORE or (side.complete and not name.startswith(SELDOM))):
                yield side.missing(name)


def absent(layout: Layout) -> Iterator[Complaint]:
    for side in _sides(layout):
        for name in side.wanted:
            if name not in side.found and not (name in CORE or side.complete or name.startswith(SELDOM)):
                yield side.missing(name)


def unknown(layout: Layout) -> Iterator[Complaint]:
    for side in _sides(layout):
        for name in side.found:
            if name not in side.wanted and name not in side.extra:
                near = difflib.get_close_matches(name, [*side.wanted, *side.extra], 1)
                hint = f"did you mean {near[0]}?" if near else "remove it if nothing uses it"
                yield Complaint(
                    side.file.path, f"{side.word} {name} is not in the contract", hint, side.line(name)
                )


def dtype(layout: Layout) -> Iterator[Complaint]:
    for side in _sides(layout):
        for found, wanted in side.pairs():
            allowed = FREE_DTYPES.get(found.name, (wanted.dtype,))
            if found.dtype not in allowed:
                expected = " or ".join(f"TYPE_{name}" for name in allowed)
                yield Complaint(
                    side.file.path,
                    f"{side.word} {found.name} is TYPE_{found.dtype}, expected {expected}",
                    "correct data_type",
                    side.line(found.name),
                )


def dims(layout: Layout) -> Iterator[Complaint]:
    for side in _sides(layout):
        for found, wanted in side.pairs():
            if found.dims != wanted.dims:
                yield Complaint(
                    side.file.path,
                    f"{side.word} {found.name} has dims {list(found.dims)}, expected {list(wanted.dims)}",
                    "correct dims",
                    side.line(found.name),
                )


def optional(layout: Layout) -> Iterator[Complaint]:
    for side in _sides(layout):
        for found, wanted in side.pairs():
            if side.word == "input" and wanted.optional and not found.optional:
                yield Complaint(
                    side.file.path,
                    f"input {found.name} is required, so requests without it are refused",
                    "add optional: true",
                    side.line(found.name),
                )


def shape(layout: Layout) -> Iterator[Complaint]:
    for side in _sides(layout):
        if side.word == "output":
            continue
        for found, wanted in side.pairs():
            if found.scalar != wanted.scalar:
                repair = "add reshape: { shape: [ ] }" if wanted.scalar else "remove reshape"
            elif wanted.ragged and not found.ragged:
                repair = "add allow_ragged_batch: true"
            else:
                continue
            yield Complaint(
                side.file.path,
                f"input {found.name} does not reach the model in the shape it reads",
                repair,
                side.line(found.name),
            )


def _sides(layout: Layout) -> Iterator[_Side]:
    """Yield what has a contract: the loop, the engines, pre- and postprocessing."""
    ours = layout.loop_owner == "trtspec"
    if layout.loop:
        added = (contract.OUR_BLS_INPUTS, contract.OUR_BLS_OUTPUTS)
        wanted = (
            (*contract.BLS_INPUTS, *(added[0] if ours else ())),
            (*contract.BLS_OUTPUTS, *(added[1] if ours else ())),
        )
        yield from _both(layout.loop, *wanted, extra=(*added[0], *added[1]), complete=ours)
    for leaf in layout.leaves:
        inputs = (*contract.LEAF_INPUTS, *(() if leaf.is_cpp or not ours else contract.OUR_LEAF_INPUTS))
        yield from _both(leaf.file, inputs, contract.LEAF_OUTPUTS, extra=(), complete=ours)
    if layout.loop_owner == "nvidia":
        for name, inputs, outputs in (
            (nvidia.PREPROCESSING, nvidia.PREPROCESSING_INPUTS, nvidia.PREPROCESSING_OUTPUTS),
            (nvidia.POSTPROCESSING, nvidia.POSTPROCESSING_INPUTS, nvidia.POSTPROCESSING_OUTPUTS),
        ):
            if name in layout.models:
                yield from _both(layout.models[name], inputs, outputs, extra=None, complete=False)


def _both(
    file: ConfigFile,
    inputs: tuple[Tensor, ...],
    outputs: tuple[Tensor, ...],
    *,
    extra: tuple[Tensor, ...] | None,
    complete: bool,
) -> Iterator[_Side]:
    """Yield both sides of a model; with `extra` None any other tensors may be there."""
    if file.config is None:
        return
    for word, found, wanted in zip(("input", "output"), tensors(file.config), (inputs, outputs), strict=True):
        known = frozenset(found if extra is None else (tensor.name for tensor in extra))
        yield _Side(file, word, found, {tensor.name: tensor for tensor in wanted}, known, complete)
