"""A tokenizer as a value, read from tokenizer.json as plain JSON: nothing of it is executed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trtspec.build.json_file import read_object
from trtspec.errors import CheckpointError

# Names by which makers mark ids that they keep for later: <|reserved_special_token_7|>, <unused3>,
# [control_8], <SPECIAL_20>, <｜place▁holder▁no▁1｜>, >>UNUSED_12<<, <|extra_0|>, <dummy00001>.
RESERVED = re.compile(
    r"[<\[>{].*(?:reserved|unused|extra|place.?holder|dummy|control|special).*\d.*[>\]<}]", re.IGNORECASE
)
BYTE = re.compile(r"<0x[0-9A-F]{2}>")


@dataclass(frozen=True)
class AddedToken:
    """A string that is matched in the text as it stands, before the tokenizer's model sees it."""

    content: str
    special: bool = False
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False


@dataclass(frozen=True)
class Tokenizer:
    """The content of tokenizer.json, tokenizer_config.json and the chat template."""

    folder: Path
    vocab: Mapping[str, int]  # of the model, without the added tokens
    merges: tuple[tuple[str, str], ...]  # by rank; () unless BPE
    added: Mapping[int, AddedToken]
    model: Mapping[str, Any]  # type and switches, without vocab and merges
    normalizer: Any
    pre_tokenizer: Any
    post_processor: Any
    decoder: Any
    config: Mapping[str, Any]  # tokenizer_config.json, {} when absent
    chat_template: str | None

    @cached_property
    def strings(self) -> dict[int, str]:
        """The string of each id; an added token wins over the model's entry of the same id."""
        strings = {i: string for string, i in self.vocab.items()}
        strings.update((i, token.content) for i, token in self.added.items())
        return strings

    @cached_property
    def ids(self) -> dict[str, int]:
        """The id of each string."""
        return {string: i for i, string in self.strings.items()}

    def is_control(self, token_id: int) -> bool:
        """Whether the id is markup rather than text."""
        return token_id in self.added and self.added[token_id].special

    def is_live(self, token_id: int) -> bool:
        """Whether text or the model can yield the id. What is not live can never matter.

        Not live is an id without a string (a padding row); an id whose name marks it as kept for later,
        unless the chat template or a role in tokenizer_config.json uses it; and an entry of a BPE
        vocabulary that is no added token, no single symbol and not the result of a chain of merges: no
        text is ever split into it, so no model was trained on it. The last test errs on the side of
        live: a merge may in practice always be pre-empted by another.
        """
        string = self.strings.get(token_id)
        if string is None:
            return False
        if RESERVED.fullmatch(string):
            return string in self._used_by_name or string in (self.chat_template or "")
        return token_id in self.added or string in self._producible

    @cached_property
    def _used_by_name(self) -> frozenset[str]:
        """The strings that have a role: end of text, start of text, …"""
        roles = (content_of(self.config.get(f"{role}_token")) for role in ("bos", "eos", "unk", "sep", "cls"))
        return frozenset(string for string in roles if string is not None)

    @cached_property
    def _producible(self) -> frozenset[str]:
        """The entries of the model's vocabulary that some text may be split into."""
        # ignore_merges: a whole word that is in the vocabulary is taken as it is (Llama 3).
        if self.model.get("type") != "BPE" or self.model.get("ignore_merges"):
            return frozenset(self.vocab)
        inner = self.model.get("continuing_subword_prefix") or ""
        last = self.model.get("end_of_word_suffix") or ""
        made = {s for s in self.vocab if len(s.removeprefix(inner).removesuffix(last)) <= 1}
        made.update(s for s in self.vocab if self.model.get("byte_fallback") and BYTE.fullmatch(s))
        made.update(s for s in self.vocab if s == self.model.get("unk_token"))
        grown = -1
        while grown != len(made):  # one round where merges are sorted by rank, as they are in practice
            grown = len(made)
            for left, right in self.merges:
                if left in made and right in made:
                    made.add(left + right.removeprefix(inner))
        return frozenset(made)

    def around(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the special tokens that are put before and after a text, by the post-processor."""
        before: tuple[str, ...] = ()
        after: tuple[str, ...] = ()
        steps = self.post_processor or {}
        for step in steps.get("processors", []) if steps.get("type") == "Sequence" else [steps]:
            if step.get("type") == "TemplateProcessing":
                pieces = step.get("single", [])
                texts = [n for n, piece in enumerate(pieces) if "Sequence" in piece]
                start, end = (texts[0], texts[-1]) if texts else (len(pieces), len(pieces))
                before = tuple(p["SpecialToken"]["id"] for p in pieces[:start]) + before
                after = after + tuple(p["SpecialToken"]["id"] for p in pieces[end + 1 :])
            elif step.get("type") in {"BertProcessing", "RobertaProcessing"}:
                before, after = (step["cls"][0], *before), (*after, step["sep"][0])
        return before, after


def open_tokenizer(folder: Path) -> Tokenizer:
    """Read the tokenizer of a Hugging Face folder.

    Raises:
        CheckpointError: tokenizer.json is missing or is not what the tokenizers library writes.
    """
    file = folder / "tokenizer.json"
    if not file.exists():
        others = [
            name for name in ("tokenizer.model", "vocab.json", "tekken.json") if (folder / name).exists()
        ]
        only = f", only {others[0]}" if others else ""
        raise CheckpointError(f"{file}: missing{only}; expected the tokenizers library's file")
    content = read_object(file)
    config = read_object(folder / "tokenizer_config.json", required=False)
    try:
        model = content["model"]
        entries = model["vocab"]
        vocab = entries if isinstance(entries, dict) else {entry[0]: i for i, entry in enumerate(entries)}
        if not all(isinstance(i, int) for i in vocab.values()):
            raise TypeError("an id that is no whole number")
        tokenizer = Tokenizer(
            folder=folder,
            vocab=vocab,
            merges=tuple(_merge(pair) for pair in model.get("merges") or ()),
            added={token["id"]: _added(token) for token in content.get("added_tokens") or ()},
            model={key: value for key, value in model.items() if key not in {"vocab", "merges"}},
            normalizer=content.get("normalizer"),
            pre_tokenizer=content.get("pre_tokenizer"),
            post_processor=content.get("post_processor"),
            decoder=content.get("decoder"),
            config=config,
            chat_template=_chat_template(folder, config),
        )
        tokenizer.around()  # so that a damaged post-processor is met here
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        raise CheckpointError(
            f"{file}: not a tokenizer of the tokenizers library ({type(error).__name__}: {error})"
        ) from None
    return tokenizer


def content_of(token: Any) -> str | None:
    """Return the string of a role in tokenizer_config.json, which is a string or an added token."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _merge(pair: Any) -> tuple[str, str]:
    """Read a merge, in the old spelling "a b" or the new one ["a", "b"]."""
    left, right = pair.split(" ") if isinstance(pair, str) else pair
    return left, right


def _added(token: Mapping[str, Any]) -> AddedToken:
    switches = ("special", "single_word", "lstrip", "rstrip", "normalized")
    return AddedToken(token["content"], **{name: bool(token.get(name, False)) for name in switches})


def _chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """Return the chat template: chat_template.jinja, else chat_template.json, else tokenizer_config.json."""
    if (folder / "chat_template.jinja").exists():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    found = config.get("chat_template")
    if found is None:
        found = read_object(folder / "chat_template.json", required=False).get("chat_template")
    if isinstance(found, list):  # several, by name
        found = next((entry["template"] for entry in found if entry.get("name") == "default"), None)
    return found if isinstance(found, str) else None
