"""γ-invariance of the loop by itself: any rounds, any acceptance, stop strings anywhere, any tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from engine_doubles import Rule, TargetDouble, deltas
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_zoo import TEXTS, ZOO

from trtspec.triton_repo.speculation.draft_length import FixedDraftLength
from trtspec.triton_repo.speculation.loop import Generation
from trtspec.triton_repo.speculation.output import Delta, Output
from trtspec.triton_repo.speculation.request import GenerationRequest
from trtspec.triton_repo.speculation.tokenizer import Tokenizer

PROMPT = (5,)
# An id that no text encodes to.
WRONG = 0


@cache
def tokenizer(name: str) -> Tokenizer:
    with TemporaryDirectory() as folder:
        path = Path(folder, "tokenizer.json")
        ZOO[name]().save(str(path))
        return Tokenizer(path)


def reciting(ids: Sequence[int]) -> Rule:
    """A "model" that says these tokens after the prompt."""
    return lambda sequence: ids[len(sequence) - len(PROMPT)]


def guessing(ids: Sequence[int], right: Sequence[bool]) -> Rule:
    """A draft that is right where `right`, repeated over and over, says so."""

    def rule(sequence: Sequence[int]) -> int:
        position = len(sequence) - len(PROMPT)
        return ids[position] if right[position % len(right)] else WRONG

    return rule


def answer(
    name: str, ids: Sequence[int], stop_strings: Sequence[str], num_draft_tokens: int, right: Sequence[bool]
) -> list[Delta]:
    request = GenerationRequest(
        prompt_ids=PROMPT,
        max_tokens=len(ids),
        num_draft_tokens=num_draft_tokens,
        eos_ids=(),
        stop_strings=tuple(stop_strings),
    )
    output = Output(tokenizer(name).detokenizer(), len(ids), frozenset(), stop_strings=request.stop_strings)
    length = FixedDraftLength(num_draft_tokens)
    made = Generation(request, output, draft_max_seq_len=1000, draft_length=length, chunk_s=0.0)
    target, draft = TargetDouble(reciting(ids)), TargetDouble(guessing(ids, right))
    return list(deltas(made, target=target, draft=draft))


@st.composite
def sayings(draw: st.DrawFn, name: str) -> tuple[list[int], str, list[str]]:
    """Ids of a piece of text, the text they decode to, and perhaps a string of it to stop at."""
    whole = list(tokenizer(name).encode(draw(st.sampled_from(TEXTS))))
    start = draw(st.integers(0, len(whole) - 1))
    ids = whole[start : start + draw(st.integers(1, 24))]
    text = tokenizer(name).decode(ids)
    if not text or draw(st.booleans()):
        return ids, text, []
    at = draw(st.integers(0, len(text) - 1))
    return ids, text, [text[at : at + draw(st.integers(1, 6))]]


@pytest.mark.parametrize("name", ZOO)
@settings(max_examples=60)
@given(
    data=st.data(),
    num_draft_tokens=st.integers(0, 8),
    right=st.lists(st.booleans(), min_size=1, max_size=12),
)
def test_the_text_is_what_all_tokens_decode_to_up_to_the_first_stop(
    name: str, data: st.DataObject, num_draft_tokens: int, right: list[bool]
) -> None:
    ids, text, stops = data.draw(sayings(name))
    parts = answer(name, ids, stops, num_draft_tokens, right)
    whole = sum(parts, Delta())
    cuts = [(text.find(stop), stop) for stop in stops if stop in text]
    cut, reason = min(cuts, default=(len(text), ""))
    assert whole.text == text[:cut]
    assert (whole.finish_reason, whole.stop_reason) == (("stop", reason) if cuts else ("length", ""))
    kept = [token.id for token in whole.tokens]
    assert kept == ids[: len(kept)]
    # What was sent stays true, whatever comes later.
    sent = ""
    for part in parts:
        sent += part.text
        assert whole.text.startswith(sent)


@pytest.mark.parametrize("name", ZOO)
@settings(max_examples=40)
@given(
    data=st.data(),
    num_draft_tokens=st.integers(1, 8),
    right=st.lists(st.booleans(), min_size=1, max_size=12),
)
def test_no_answer_depends_on_rounds_or_acceptance(
    name: str, data: st.DataObject, num_draft_tokens: int, right: list[bool]
) -> None:
    # Any ids at all, so that bytes need not make characters.
    size = tokenizer(name).size
    ids = data.draw(st.lists(st.integers(3, size - 1), min_size=1, max_size=24))
    text = tokenizer(name).decode(ids)
    stops = [text[at : at + 3] for at in data.draw(st.lists(st.integers(0, len(text)), max_size=2))]
    stops = [stop for stop in stops if stop]
    plain = sum(answer(name, ids, stops, 0, right), Delta())
    assert sum(answer(name, ids, stops, num_draft_tokens, right), Delta()) == plain
