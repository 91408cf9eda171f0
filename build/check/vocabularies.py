"""Two tokenizers compared id by id: what differs, whether it can ever matter, and why.

Only the target's tokenizer runs at serving time; its ids go to both models. So an id that means other
text to the draft spoils what the draft reads and proposes, while a difference in how text is split only
lowers the acceptance: the draft then reads splits that it was not trained on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trtspec.build.check.findings import Finding, Severity, id_ranges, some
from trtspec.build.check.tokenizers import Tokenizer


@dataclass(frozen=True)
class Difference:
    """All ids that differ between the two tokenizers in one way."""

    kind: str  # text, control, target_only, draft_only: reachable; reserved, unused, padding: harmless
    reachable: bool  # text or a model can yield these ids
    why: str
    count: int
    ids: tuple[tuple[int, int], ...]  # ranges, both ends included
    examples: tuple[str, ...]


REASONS = {
    "text": "the id is text to both models, and not the same text",
    "control": "the id is markup to both models, under another name",
    "target_only": "the target can yield the id, the draft knows nothing by it",
    "draft_only": "the draft can propose the id, the target knows nothing by it",
    "reserved": "a name that is kept for later; nothing was trained on it",
    "unused": "an entry that no merge leads to, so no text is ever split into it",
    "padding": "a row of the weights that neither tokenizer gives a string",
}
REACHABLE = ("text", "control", "target_only", "draft_only")


def compare_vocabularies(
    target: Tokenizer,
    draft: Tokenizer,
    *,
    rows: int = 0,
    target_eos: tuple[int, ...] = (),
    draft_eos: tuple[int, ...] = (),
) -> tuple[Difference, ...]:
    """Return the ids that do not carry the same string in both, grouped by what that means.

    An id is reachable when it is live (`Tokenizer.is_live`, or an id that ends a text) in the target or
    in the draft; all others are harmless. A string that has moved to another id is text or control, even
    where it lands on an id that is not live on the other side.

    Args:
        rows: rows of the larger token embedding; ids up to it without a string are padding.
        target_eos, draft_eos: the ids that end a text, live whatever their name.
    """
    found: dict[str, list[int]] = defaultdict(list)
    for i in range(max(rows, 1 + max((*target.strings, *draft.strings), default=-1))):
        in_target, in_draft = target.strings.get(i), draft.strings.get(i)
        if in_target is None and in_draft is None:
            found["padding"].append(i)
        elif in_target != in_draft:
            from_target = target.is_live(i) or i in target_eos
            from_draft = draft.is_live(i) or i in draft_eos
            found[_kind(i, target, draft, from_target, from_draft)].append(i)
    return tuple(
        Difference(
            kind=kind,
            reachable=kind in REACHABLE,
            why=REASONS[kind],
            count=len(found[kind]),
            ids=id_ranges(found[kind]),
            examples=tuple(_example(i, target, draft) for i in found[kind][:3]) if kind != "padding" else (),
        )
        for kind in REASONS
        if found[kind]
    )


def _kind(i: int, target: Tokenizer, draft: Tokenizer, from_target: bool, from_draft: bool) -> str:
    """Return the kind of an id whose strings differ, one of which may be absent."""
    moved = (from_target and target.strings[i] in draft.ids) or (
        from_draft and draft.strings[i] in target.ids
    )
    if (from_target and from_draft) or moved:
        markup = (not from_target or target.is_control(i)) and (not from_draft or draft.is_control(i))
        return "control" if markup else "text"
    if from_target:
        return "target_only"
    if from_draft:
        return "draft_only"
    return "reserved" if i in target.added or i in draft.added else "unused"


def _example(i: int, target: Tokenizer, draft: Tokenizer) -> str:
    names = [repr(t.strings[i]) if i in t.strings else "nothing" for t in (target, draft)]
    return f"{i} is {names[0]} in the target, {names[1]} in the draft"


# id of the finding, severity, what the ids are, repair
SAID: dict[str, tuple[str, Severity, str, str]] = {
    "text": (
        "vocab.ids",
        "error",
        "ids that mean different text to the two models",
        "take a draft of the target's own family: tokenizers have to agree id by id",
    ),
    "control": (
        "vocab.control",
        "warning",
        "ids that are markup under different names",
        "nothing has to be done; around this markup the draft proposes badly, a draft tuned on the same "
        "chat format does better",
    ),
    "target_only": (
        "vocab.target_only",
        "warning",
        "ids that only the target knows, which the draft reads blindly and never proposes",
        "nothing has to be done where they are rare; else take a draft with the target's exact tokenizer",
    ),
    "draft_only": (
        "vocab.draft_only",
        "note",
        "ids that only the draft knows, which the target refuses when they are proposed",
        "",
    ),
}


def vocabulary_findings(
    target: Tokenizer, draft: Tokenizer, differences: tuple[Difference, ...]
) -> Iterator[Finding]:
    """Yield one finding for each reachable kind of difference, and one for all that is harmless."""
    where = f"{draft.folder.name or draft.folder} against {target.folder.name or target.folder}"
    for difference in differences:
        if difference.reachable:
            name, severity, what, repair = SAID[difference.kind]
            yield Finding(
                name,
                severity,
                f"{where}: {what}: {difference.count:,}; e.g. {difference.examples[0]}",
                repair,
            )
    harmless = [difference for difference in differences if not difference.reachable]
    if harmless:
        parts = [f"{_count(d)} ({_shown(d.ids)}): {d.why}" for d in harmless]
        yield Finding("vocab.padding", "note", f"harmless: {'; '.join(parts)}", "")


def _count(difference: Difference) -> str:
    return f"{difference.count:,} id{'s' if difference.count != 1 else ''}"


def _shown(ranges: tuple[tuple[int, int], ...]) -> str:
    return some([f"{first}" if first == last else f"{first}-{last}" for first, last in ranges])


def compare_splitting(target: Tokenizer, draft: Tokenizer) -> Iterator[Finding]:
    """Yield what makes the two split the same text differently: merges, normaliser, switches, …"""
    repair = "nothing has to be done; the target's tokenizer serves both, expect a lower acceptance"
    if target.merges != draft.merges:
        rank = next(
            (
                n
                for n, pair in enumerate(zip(target.merges, draft.merges, strict=False))
                if pair[0] != pair[1]
            ),
            min(len(target.merges), len(draft.merges)),
        )
        shown = [repr(" ".join(t.merges[rank])) if rank < len(t.merges) else "none" for t in (target, draft)]
        yield Finding(
            "tokenizer.merges",
            "warning",
            f"the merges differ from rank {rank} on: {shown[0]} in the target ({len(target.merges):,} in "
            f"all), {shown[1]} in the draft ({len(draft.merges):,})",
            repair,
        )
    for part in ("model", "normalizer", "pre_tokenizer"):
        ours, theirs = _plain(getattr(target, part)), _plain(getattr(draft, part))
        if ours != theirs:
            yield Finding(
                f"tokenizer.{part}",
                "warning",
                f"the {part.replace('_', '-')} differs: {_brief(ours, theirs)}",
                repair,
            )
    if _plain(target.decoder) != _plain(draft.decoder):
        yield Finding("tokenizer.decoder", "note", "the decoder differs; the served text is the target's", "")
    flags = [
        f"{token.content!r} ({i})"
        for i, token in target.added.items()
        if i in draft.added and draft.added[i].content == token.content and draft.added[i] != token
    ]
    if flags:
        yield Finding(
            "tokenizer.added",
            "note",
            f"added tokens match or strip text differently: {some(flags)}; the target's rule holds",
            "",
        )


# What the tokenizers library takes where a file, written by an older version, does not say.
DEFAULTS: dict[str, dict[str, Any]] = {
    "BPE": {"fuse_unk": False, "byte_fallback": False, "ignore_merges": False},
    "Unigram": {"byte_fallback": False},
    "ByteLevel": {"add_prefix_space": True, "use_regex": True},
    "Metaspace": {"prepend_scheme": "always", "split": True},
}
WITHOUT_EFFECT = {"trim_offsets", "str_rep"}


def _plain(part: Any) -> Any:
    """Return a pipeline step in one spelling: defaults filled in, sequences of one or none unwrapped."""
    if isinstance(part, list):
        return [_plain(step) for step in part]
    if not isinstance(part, dict):
        return part
    kind = part.get("type")
    if kind == "Sequence":
        steps = [_plain(step) for value in part.values() if isinstance(value, list) for step in value]
        return (steps or [None])[0] if len(steps) < 2 else {"type": "Sequence", "steps": steps}
    said = {k: _plain(v) for k, v in part.items() if v not in (None, "") and k not in WITHOUT_EFFECT}
    if kind == "Metaspace" and "add_prefix_space" in said:
        said.setdefault("prepend_scheme", "always" if said.pop("add_prefix_space") else "never")
    return {**DEFAULTS.get(str(kind), {}), **said}


def _brief(ours: Any, theirs: Any) -> str:
    """Return both sides of a difference, reduced to the keys that differ when both are objects."""
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours.get("type") == theirs.get("type"):
        keys = sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))
        ours, theirs = ({key: side.get(key) for key in keys} for side in (ours, theirs))
    return f"{_clip(ours)} in the target, {_clip(theirs)} in the draft"


def _clip(value: Any, limit: int = 90) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
