"""What ends a text, what starts one, and how a chat is written: read for each model, compared for a pair."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trtspec.build.check.findings import Finding
from trtspec.build.check.tokenizers import Tokenizer, content_of
from trtspec.build.checkpoint import Checkpoint


@dataclass(frozen=True)
class EndOfText:
    """The ids that end a text, by where they are written; () where a file does not say."""

    generation_config: tuple[int, ...]
    config: tuple[int, ...]
    tokenizer: tuple[int, ...]  # the eos_token of tokenizer_config.json

    @property
    def ids(self) -> tuple[int, ...]:
        """All of them, in that order, each once."""
        return tuple(dict.fromkeys((*self.generation_config, *self.config, *self.tokenizer)))

    @property
    def agree(self) -> bool:
        """Whether the first file that says anything already names every id."""
        named = (set(ids) for ids in (self.generation_config, self.config, self.tokenizer) if ids)
        return next(named, set()) >= set(self.ids)


def end_of_text(checkpoint: Checkpoint, tokenizer: Tokenizer) -> EndOfText:
    """Read the ids that end a text from all three files that can name them."""
    string = content_of(tokenizer.config.get("eos_token"))
    return EndOfText(
        generation_config=_ids(checkpoint.generation_config.get("eos_token_id")),
        config=_ids(checkpoint.config.get("eos_token_id")),
        tokenizer=(tokenizer.ids[string],) if string in tokenizer.ids else (),
    )


def _ids(found: object) -> tuple[int, ...]:
    return tuple(i for i in (found if isinstance(found, list) else [found]) if isinstance(i, int))


def eos_findings(target: EndOfText, draft: EndOfText, rows: int) -> Iterator[Finding]:
    """Yield what is to be said about the ends of text; `rows` is the target's vocabulary."""
    if not target.ids:
        yield Finding(
            "eos.missing",
            "warning",
            "the target names no id that ends a text; every answer runs to its length limit",
            "set eos_token_id in generation_config.json, an id or a list",
        )
    beyond = [i for i in target.ids if not 0 <= i < rows]
    if beyond:
        yield Finding(
            "eos.range",
            "error",
            f"the target ends a text with id {beyond[0]}, its vocabulary has {rows:,} rows",
            "correct eos_token_id in generation_config.json or config.json",
        )
    if not target.agree:
        yield Finding(
            "eos.sources",
            "warning",
            f"the target's files name different ends of text: generation_config.json "
            f"{_list(target.generation_config)}, config.json {_list(target.config)}, "
            f"tokenizer_config.json {_list(target.tokenizer)}",
            f"build takes them all: {_list(target.ids)}",
            repairable=True,
        )
    if set(draft.ids) != set(target.ids):
        yield Finding(
            "eos.differs",
            "warning",
            f"the draft ends a text with {_list(draft.ids)}, the target with {_list(target.ids)}",
            "build gives both the target's list",
            repairable=True,
        )


def _list(ids: tuple[int, ...]) -> str:
    return ", ".join(map(str, ids)) or "none"


def bos_findings(target: Tokenizer, draft: Tokenizer) -> Iterator[Finding]:
    """Yield what is to be said about the tokens that are put around a text."""
    ours, theirs = target.around(), draft.around()
    if ours != theirs:
        yield Finding(
            "bos.differs",
            "warning",
            f"around a text the target puts {_around(ours)}, the draft was trained with {_around(theirs)}",
            "nothing has to be done; the target's rule serves both, expect a lower acceptance at the start",
        )
    wanted = target.config.get("add_bos_token")
    if isinstance(wanted, bool) and wanted != bool(ours[0]):
        yield Finding(
            "bos.rule",
            "warning",
            f"the target's tokenizer_config.json says add_bos_token {str(wanted).lower()}, its "
            f"tokenizer.json puts {_around(ours)} around a text",
            "load and save the tokenizer once with transformers, so that both files say the same",
        )
    bos = content_of(target.config.get("bos_token"))
    template = target.chat_template or ""
    if ours[0] and bos and ("bos_token" in template or bos in template):
        yield Finding(
            "bos.double",
            "note",
            f"the chat template writes {bos!r} itself and the tokenizer would add another",
            "encode rendered chats without special tokens; the served chat format does",
        )


def _around(rule: tuple[tuple[str, ...], tuple[str, ...]]) -> str:
    before, after = rule
    return " ".join([*before, "…", *after]) if before or after else "nothing"


def chat_findings(target: Tokenizer, draft: Tokenizer) -> Iterator[Finding]:
    """Yield what is to be said about the chat templates."""
    if target.chat_template is None:
        yield Finding(
            "chat.missing",
            "note",
            "the target has no chat template; it completes texts, chats are refused",
            "take the instruction-tuned checkpoint if chats are wanted",
        )
    elif draft.chat_template is None:
        yield Finding(
            "chat.draft",
            "warning",
            "the target has a chat template and the draft has none; it may never have seen a chat",
            "build gives both the target's template; an instruction-tuned draft is accepted more often",
            repairable=True,
        )
    elif draft.chat_template.strip() != target.chat_template.strip():
        yield Finding(
            "chat.differs",
            "note",
            "the chat templates differ; the draft reads chats in the target's format",
            "build gives both the target's template",
            repairable=True,
        )
