"""Pieces of text join to what decoding all ids at once gives."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_zoo import TEXTS, ZOO

from trtspec.triton_repo.speculation.tokenizer import Tokenizer


@cache
def tokenizer(kind: str) -> Tokenizer:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        ZOO[kind]().save(str(path))
        return Tokenizer(path)


def pieces(kind: str, ids: list[int]) -> list[str]:
    detokenizer = tokenizer(kind).detokenizer()
    return [*(detokenizer.push(i) for i in ids), detokenizer.flush()]


@pytest.mark.parametrize("kind", ZOO)
@settings(max_examples=300)
@given(data=st.data())
def test_pieces_of_any_ids_join_to_the_whole(kind: str, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer(kind).size - 1), max_size=40))
    assert "".join(pieces(kind, ids)) == tokenizer(kind).decode(ids)


@pytest.mark.parametrize("kind", ZOO)
@pytest.mark.parametrize("text", TEXTS)
def test_pieces_of_real_text_join_to_the_whole(kind: str, text: str) -> None:
    ids = list(tokenizer(kind).encode(text))
    assert "".join(pieces(kind, ids)) == tokenizer(kind).decode(ids)


@given(st.text(max_size=30))
def test_byte_level_pieces_never_hold_half_a_character(text: str) -> None:
    ids = list(tokenizer("byte-level BPE").encode(text))
    assert not any("\ufffd" in piece for piece in pieces("byte-level BPE", ids) if "\ufffd" not in text)


def test_text_comes_as_soon_as_it_is_certain() -> None:
    ids = list(tokenizer("byte-level BPE").encode("the fox"))
    assert all(pieces("byte-level BPE", ids)[:-1])


def test_invalid_bytes_come_out_as_decoding_at_once_has_them() -> None:
    kind = "SentencePiece BPE"
    ids = [3 + 0xE4, 3 + 0xBD, 3 + 0xA0, 3 + 0xFF]
    assert "".join(pieces(kind, ids)) == tokenizer(kind).decode(ids)
