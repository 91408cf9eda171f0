"""What drafts, and what TensorRT-LLM is told about it: read from the drafter's own config.json."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from trtspec.build.check.drafters import identify
from trtspec.build.checkpoint import Checkpoint
from trtspec.build.runtimes.pytorch.options import PytorchOptions
from trtspec.engines.llm_api import Speculation, dialect_of, mode_of
from trtspec.errors import PairError

# What a checkpoint is (trtspec.build.check.drafters) to how it drafts.
SPECULATION_OF: Mapping[str, Speculation] = {
    "causal-lm": "draft-target",
    "parallel-lm": "pard",
    "eagle3": "eagle3",
    "dflash": "dflash",
    "dspark": "dspark",
}
# A draft tuned to draft in parallel is a language model still.
ALSO: Mapping[str, Speculation] = {"parallel-lm": "draft-target"}
WITHOUT_DRAFT: tuple[Speculation, ...] = ("mtp", "ngram")
MARKOV_HEADS = ("vanilla", "gated", "rnn")

# What joins the target's hidden states: [hidden, layers × the target's hidden].
FUSION = re.compile(r"^(?:model\.)?(?:eagle_)?fc\.weight$")

# Tokens that prompt and answer must have in common before what followed them is proposed.
NGRAM_SIZE = 2


@dataclass(frozen=True)
class Drafter:
    """How tokens are drafted."""

    speculation: Speculation
    max_draft_len: int
    # Fields of the configuration class beyond the type, the length and the draft's folder.
    fields: Mapping[str, Any]


def drafter_of(
    target: Checkpoint, draft: Checkpoint | None, options: PytorchOptions, max_draft_len: int
) -> Drafter:
    """Return how a pair drafts.

    Args:
        max_draft_len: as asked; a drafter of whole blocks may hold less.

    Raises:
        PairError: the draft is not for the mode that was asked, or its config.json does not say enough.
        EngineError: the version has no such mode.
    """
    speculation = _speculation(draft, options)
    mode_of(speculation, options.version)
    read = _READERS[speculation]
    return read(target if draft is None else draft, target, max_draft_len)


def _speculation(draft: Checkpoint | None, options: PytorchOptions) -> Speculation:
    asked = options.speculation
    if draft is None:
        if asked in WITHOUT_DRAFT:
            return asked
        raise PairError(
            "no draft was given; name one, or draft without: "
            + " or ".join(f"--speculation {name}" for name in WITHOUT_DRAFT)
        )
    identity = identify(draft)
    found = SPECULATION_OF.get(identity.kind)
    if found is None or draft.config.get("speculators_config"):
        raise PairError(f"{draft.path}: {identity.title}; it is for {identity.runtime}")
    if found == "pard" and asked is None and "pard" not in dialect_of(options.version).modes:
        return "draft-target"
    if asked in (None, found, ALSO.get(identity.kind)):
        return asked or found
    if asked in WITHOUT_DRAFT:
        raise PairError(f"--speculation {asked} drafts without {draft.path}; leave the draft out")
    raise PairError(f"{draft.path}: {identity.title}, which drafts by --speculation {found}, not {asked}")


def _plain(draft: Checkpoint, target: Checkpoint, length: int) -> Drafter:
    return Drafter("draft-target", length, {})


def _ngram(draft: Checkpoint, target: Checkpoint, length: int) -> Drafter:
    return Drafter("ngram", length, {"max_matching_ngram_size": NGRAM_SIZE})


def _mtp(draft: Checkpoint, target: Checkpoint, length: int) -> Drafter:
    """One module may be run several times; of several each drafts one token."""
    if not identify(target).carries:
        raise PairError(
            f"{target.path}: carries no module for multi-token prediction; give a draft, or take "
            "--speculation ngram"
        )
    modules = target.config.get("num_nextn_predict_layers", target.config.get("mtp_num_hidden_layers"))
    several = isinstance(modules, int) and modules > 1
    return Drafter("mtp", min(length, modules) if several else length, {})


def _eagle3(draft: Checkpoint, target: Checkpoint, length: int) -> Drafter:
    """The layers that it reads go unsaid where they are those that TensorRT-LLM takes by itself.

    Checkpoints count layers by their inputs or by their outputs, and do not say which.
    """
    layers = _find(draft, "eagle_aux_hidden_state_layer_ids", "eagle_config")
    count = target.config.get("num_hidden_layers")
    if layers is not None and not _are_layers(layers, target):
        raise PairError(
            f"{draft.path / 'config.json'}: eagle_aux_hidden_state_layer_ids is {layers!r}, expected a list "
            "of the target's layers"
        )
    if layers is not None and isinstance(count, int):
        by_output = {1, count // 2 - 1, count - 4}
        by_input = {layer + 1 for layer in by_output}
        if set(layers) not in (by_output, by_input):
            raise PairError(
                f"{draft.path}: reads the target's layers {layers}, expected those that TensorRT-LLM "
                f"takes by itself: {sorted(by_output)} by output, {sorted(by_input)} by input"
            )
    _check_width(draft, target, None if layers is None else len(layers))
    return Drafter("eagle3", length, {})


def _pard(draft: Checkpoint, target: Checkpoint, length: int) -> Drafter:
    mask = draft.config.get("pard_token", draft.config.get("ptd_token_id"))
    _check(draft, target, mask_token_id=mask)
    return Drafter("pard", length, _given(mask_token_id=mask))


def _dflash(draft: Checkpoint, target: Checkpoint, length: int) -> Drafter:
    """The first token of a block is the last one known."""
    fields = _block_fields(draft, "dflash_config")
    size = _find(draft, "block_size", "dflash_config")
    _check(draft, target, block_size=size, **fields)
    if size == 1:
        raise PairError(f"{draft.path / 'config.json'}: block_size is 1, which leaves no token to draft")
    _check_width(draft, target, len(fields["target_layer_ids"]))
    return Drafter("dflash", min(length, size - 1) if size else length, fields)


def _dspark(draft: Checkpoint, target: Checkpoint, length: int) -> Drafter:
    sections = ("dspark_config", "dflash_config")
    size = _find(draft, "block_size", *sections)
    fields = _block_fields(draft, *sections) | _given(
        block_size=size,
        markov_rank=_find(draft, "markov_rank", *sections),
        markov_head_type=_find(draft, "markov_head_type", *sections),
    )
    _check(draft, target, **fields)
    _check_width(draft, target, len(fields["target_layer_ids"]))
    return Drafter("dspark", min(length, size) if size else length, fields)


def _block_fields(draft: Checkpoint, *sections: str) -> dict[str, Any]:
    found = {name: _find(draft, name, *sections) for name in ("mask_token_id", "target_layer_ids")}
    if missing := [name for name, value in found.items() if value is None]:
        raise PairError(
            f"{draft.path / 'config.json'}: no {' and no '.join(missing)}; expected them at the top or in "
            f"{' or '.join(sections)}"
        )
    return found


def _check(draft: Checkpoint, target: Checkpoint, **fields: Any) -> None:
    """Raise PairError with every field that TensorRT-LLM could not work with, None aside."""
    rows = max([target.vocab_size, *(n for n in [draft.config.get("vocab_size")] if _is_integer(n))])
    rules: Mapping[str, tuple[Callable[[Any], bool], str]] = {
        "mask_token_id": (lambda value: _is_integer(value, 0, rows - 1), f"an id below {rows:,}"),
        "target_layer_ids": (lambda value: _are_layers(value, target), "a list of the target's layers"),
        "block_size": (lambda value: _is_integer(value, 1), "a whole number from 1 on"),
        "markov_rank": (lambda value: _is_integer(value, 1), "a whole number from 1 on"),
        "markov_head_type": (lambda value: value in MARKOV_HEADS, f"one of {', '.join(MARKOV_HEADS)}"),
    }
    wrong = [
        f"{name} is {value!r}, expected {rules[name][1]}"
        for name, value in fields.items()
        if value is not None and not rules[name][0](value)
    ]
    if wrong:
        raise PairError(f"{draft.path / 'config.json'}: {'; '.join(wrong)}")


def _check_width(draft: Checkpoint, target: Checkpoint, layers: int | None) -> None:
    """Raise PairError where a drafter reads hidden states of another width than the target's.

    Args:
        layers: how many it joins; None where its config.json does not say.
    """
    hidden = target.config.get("hidden_size")
    widths = {
        name: tensor.shape[-1]
        for name, tensor in draft.tensors.items()
        if FUSION.search(name) and tensor.dtype in ("F32", "F16", "BF16")
    }
    for name, width in widths.items():
        if _is_integer(hidden, 1) and (width % hidden or layers not in (None, width // hidden)):
            raise PairError(
                f"{draft.path}: {name} reads {width:,} values, expected {layers or 'layers'} × "
                f"{hidden:,}, the target's hidden states; it was trained for another target"
            )


def _are_layers(value: Any, target: Checkpoint) -> bool:
    """Whether it lists layers, by their inputs or their outputs, so that the last number is one more."""
    count = target.config.get("num_hidden_layers")
    most = count if _is_integer(count) else None
    return isinstance(value, list) and bool(value) and all(_is_integer(layer, 0, most) for layer in value)


def _is_integer(value: Any, least: int = 0, most: int | None = None) -> TypeGuard[int]:
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return least <= value and (most is None or value <= most)


def _find(draft: Checkpoint, name: str, *sections: str) -> Any:
    """Return a value by its name or its name with the drafter's, at the top or in a section."""
    inner = (draft.config.get(section) for section in sections)
    places = [draft.config, *(section for section in inner if isinstance(section, dict))]
    for place in places:
        for key in (name, f"dspark_{name}"):
            if place.get(key) is not None:
                return place[key]
    return None


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


_READERS: Mapping[Speculation, Callable[[Checkpoint, Checkpoint, int], Drafter]] = {
    "draft-target": _plain,
    "eagle3": _eagle3,
    "mtp": _mtp,
    "ngram": _ngram,
    "pard": _pard,
    "dflash": _dflash,
    "dspark": _dspark,
}
