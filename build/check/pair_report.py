"""The check of a pair: whether two checkpoints can speculate together, what to fix, and what it will cost.

Reads JSON files and weight headers only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from trtspec.build.check.body import Body
from trtspec.build.check.drafters import Identity, architecture_of, identify
from trtspec.build.check.findings import Finding, Severity
from trtspec.build.check.model_shape import ModelShape, shape_of
from trtspec.build.check.ratios import Ratios, ratio_findings, ratios_of
from trtspec.build.check.shape_findings import model_findings, pair_findings
from trtspec.build.check.special_tokens import (
    EndOfText,
    bos_findings,
    chat_findings,
    end_of_text,
    eos_findings,
)
from trtspec.build.check.tokenizers import Tokenizer, open_tokenizer
from trtspec.build.check.vocabularies import (
    Difference,
    compare_splitting,
    compare_vocabularies,
    vocabulary_findings,
)
from trtspec.build.checkpoint import Checkpoint
from trtspec.errors import CheckpointError

WORST_FIRST = ("error", "warning", "note")


@dataclass(frozen=True)
class Model:
    """One side of a pair, as its files tell it."""

    path: str
    architecture: str
    model_type: str
    identity: Identity
    shape: ModelShape
    vocab_rows: int | None  # rows of the token embedding; None for what is no causal LM
    strings: int | None  # ids that the tokenizer names; None without a readable tokenizer
    end_of_text: EndOfText | None
    around_text: tuple[tuple[str, ...], tuple[str, ...]] | None  # special tokens before and after a text


@dataclass(frozen=True)
class PairReport:
    """Everything that the files of two checkpoints say about speculating together."""

    target: Model
    draft: Model
    findings: tuple[Finding, ...]  # worst first
    differences: tuple[Difference, ...]  # ids that the two tokenizers do not name alike
    ratios: Ratios
    vocab_rows: int | None  # that both models get
    eos_token_ids: tuple[int, ...]  # that both models get
    context_length: int | None  # up to which the draft can follow

    @property
    def ok(self) -> bool:
        """Whether the pair may be built: no finding is an error."""
        return all(finding.severity != "error" for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """Return the report in JSON's types, the verdict first."""
        return {"ok": self.ok, **asdict(self)}


@dataclass(frozen=True)
class TargetReport:
    """What the files say about a target that drafts by itself."""

    target: Model
    findings: tuple[Finding, ...]  # worst first
    eos_token_ids: tuple[int, ...]


def check_target(target: Checkpoint) -> TargetReport:
    """Examine a target for which there is no draft. Raises as `check` does."""
    side = _examine("target", target)
    return TargetReport(side.model, _worst_first(side.findings), side.ends.ids)


def check(target: Checkpoint, draft: Checkpoint) -> PairReport:
    """Examine a pair. What is wrong with it becomes a finding.

    Raises:
        CheckpointError: a whole model has no token embedding that can be told, so that nothing can be said.
    """
    ours, theirs = _examine("target", target), _examine("draft", draft)
    ratios = ratios_of(ours.model.shape, theirs.model.shape)
    findings = [*ours.findings, *theirs.findings]
    differences: tuple[Difference, ...] = ()
    rows: int | None = None
    if ours.model.vocab_rows and theirs.model.vocab_rows:
        rows = max(ours.model.vocab_rows, theirs.model.vocab_rows)
        differences = _differences(ours, theirs, rows)
        findings += pair_findings(
            ours.model.shape, theirs.model.shape, ours.model.vocab_rows, theirs.model.vocab_rows
        )
        findings += _tokenizer_findings(ours, theirs, differences)
        findings += _family_findings(ours.model, theirs.model)
        findings += ratio_findings(ratios)
    contexts = [m.shape.context_length for m in (ours.model, theirs.model) if m.shape.context_length]
    return PairReport(
        target=ours.model,
        draft=theirs.model,
        findings=_worst_first(findings),
        differences=differences,
        ratios=ratios,
        vocab_rows=rows,
        eos_token_ids=ours.ends.ids,
        context_length=min(contexts, default=None),
    )


@dataclass(frozen=True)
class _Side:
    model: Model
    tokenizer: Tokenizer | None
    findings: tuple[Finding, ...]

    @property
    def ends(self) -> EndOfText:
        return self.model.end_of_text or EndOfText((), (), ())


def _worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda finding: WORST_FIRST.index(finding.severity)))


def _examine(role: str, checkpoint: Checkpoint) -> _Side:
    """Return what one model's files say, without looking at the other."""
    identity = identify(checkpoint)
    # Conversion leaves a module inside out, and its embedding is not the model's.
    checkpoint = replace(checkpoint, tensors=Body.of(checkpoint).outside)
    shape = shape_of(checkpoint)
    findings = list(_identity_findings(role, identity))
    tokenizer = None
    rows = None
    if identity.stand_alone:
        rows = checkpoint.vocab_size
        findings += model_findings(role, checkpoint, shape)
        try:
            tokenizer = open_tokenizer(checkpoint.path)
        except CheckpointError as error:
            findings.append(_unreadable_tokenizer(role, error))
    model = Model(
        path=str(checkpoint.path),
        architecture=architecture_of(checkpoint.config) or "none named",
        model_type=str(checkpoint.config.get("model_type", "none named")),
        identity=identity,
        shape=shape,
        vocab_rows=rows,
        strings=len(tokenizer.strings) if tokenizer else None,
        end_of_text=end_of_text(checkpoint, tokenizer) if tokenizer else None,
        around_text=tokenizer.around() if tokenizer else None,
    )
    return _Side(model, tokenizer, tuple(findings))


def _identity_findings(role: str, identity: Identity) -> Iterator[Finding]:
    if not identity.stand_alone:
        yield Finding(
            f"{role}.kind",
            "error",
            f"the {role} is {identity.title} ({'; '.join(identity.evidence[:3])}), expected a "
            f"stand-alone causal LM: {identity.reason}",
            f"it is for {identity.runtime}; take a causal LM as the {role}",
        )
    elif identity.kind == "parallel-lm":
        yield Finding(
            "draft.parallel",
            "note",
            f"the {role} is {identity.title}; it drafts one token a step here",
            f"it is for {identity.runtime}",
        )
    if identity.carries:
        yield Finding(
            f"{role}.carries", "note", f"the {role} carries {identity.carries}; conversion leaves it out", ""
        )


def _unreadable_tokenizer(role: str, error: CheckpointError) -> Finding:
    return Finding(
        "tokenizer.missing",
        "error",
        f"the {role} has no tokenizer that can be compared: {error}",
        "write one with transformers: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)",
    )


def _differences(ours: _Side, theirs: _Side, rows: int) -> tuple[Difference, ...]:
    if ours.tokenizer is None or theirs.tokenizer is None:
        return ()
    return compare_vocabularies(
        ours.tokenizer,
        theirs.tokenizer,
        rows=rows,
        target_eos=ours.ends.ids,
        draft_eos=theirs.ends.ids,
    )


def _tokenizer_findings(ours: _Side, theirs: _Side, differences: tuple[Difference, ...]) -> Iterator[Finding]:
    target, draft = ours.tokenizer, theirs.tokenizer
    if target is None or draft is None:
        return
    yield from _row_findings("target", ours, "error", "take the tokenizer that belongs to the weights")
    yield from _row_findings("draft", theirs, "warning", "nothing has to be done; it never proposes them")
    yield from vocabulary_findings(target, draft, differences)
    yield from compare_splitting(target, draft)
    yield from eos_findings(ours.ends, theirs.ends, ours.model.vocab_rows or 0)
    yield from bos_findings(target, draft)
    yield from chat_findings(target, draft)


def _row_findings(role: str, side: _Side, severity: Severity, repair: str) -> Iterator[Finding]:
    """Yield a finding where a tokenizer yields ids that the weights have no row for."""
    tokenizer, rows = side.tokenizer, side.model.vocab_rows or 0
    beyond = [i for i in tokenizer.strings if i >= rows and tokenizer.is_live(i)] if tokenizer else []
    if tokenizer and beyond:
        yield Finding(
            "vocab.rows",
            severity,
            f"the {role}'s tokenizer yields id {min(beyond):,} ({tokenizer.strings[min(beyond)]!r}), its "
            f"embedding has {rows:,} rows",
            repair,
        )


def _family_findings(target: Model, draft: Model) -> Iterator[Finding]:
    if target.model_type != draft.model_type:
        yield Finding(
            "family.differs",
            "note",
            f"the target is of the family {target.model_type}, the draft of {draft.model_type}",
            "a draft of the target's own family is usually accepted more often",
        )
