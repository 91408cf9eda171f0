"""Two tokenizers compared id by id."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtspec.build.check.tokenizers import AddedToken, Tokenizer, open_tokenizer
from trtspec.build.check.vocabularies import compare_splitting, compare_vocabularies, vocabulary_findings


def bpe(words: list[str], *, added: dict[int, AddedToken] | None = None, **parts: Any) -> Tokenizer:
    """A tokenizer with an entry and merges for each word, letters first."""
    letters = sorted({letter for word in words for letter in word})
    entries, merges = list(letters), []
    for word in words:
        for end in range(2, len(word) + 1):
            if word[:end] not in entries:
                entries.append(word[:end])
                merges.append((word[: end - 1], word[end - 1]))
    made = Tokenizer(
        folder=Path("made"),
        vocab={entry: i for i, entry in enumerate(entries)},
        merges=tuple(merges),
        added=added or {},
        model={"type": "BPE"},
        normalizer=None,
        pre_tokenizer={"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        post_processor=None,
        decoder={"type": "ByteLevel"},
        config={},
        chat_template=None,
    )
    return replace(made, **parts)


def findings(target: Tokenizer, draft: Tokenizer, rows: int = 0) -> dict[str, str]:
    differences = compare_vocabularies(target, draft, rows=rows)
    found = [*vocabulary_findings(target, draft, differences), *compare_splitting(target, draft)]
    return {finding.id: finding.severity for finding in found}


def special(content: str) -> AddedToken:
    return AddedToken(content, special=True)


tokenizers = st.lists(st.text("abcd", min_size=1, max_size=5), min_size=1, max_size=8).map(bpe)


@given(tokenizers, st.integers(0, 40))
def test_identical_tokenizers_give_no_finding_but_padding(tokenizer, padding):
    rows = len(tokenizer.strings) + padding
    assert findings(tokenizer, tokenizer, rows) == ({"vocab.padding": "note"} if padding else {})


@given(tokenizers, st.data())
def test_two_exchanged_ids_are_always_reachable(target, data):
    if len(target.vocab) < 2:
        return
    one, other = data.draw(
        st.lists(st.sampled_from(sorted(target.vocab)), min_size=2, max_size=2, unique=True)
    )
    draft = replace(target, vocab={**target.vocab, one: target.vocab[other], other: target.vocab[one]})
    (difference,) = compare_vocabularies(target, draft)
    assert difference.reachable
    assert difference.count == 2
    covered = {i for first, last in difference.ids for i in range(first, last + 1)}
    assert covered == {target.vocab[one], target.vocab[other]}
    assert findings(target, draft)["vocab.ids"] == "error"


@given(tokenizers, st.integers(1, 300), st.booleans())
def test_padding_rows_are_only_harmless(tokenizer, padding, named):
    kept = {
        len(tokenizer.vocab) + n: special(f"<|reserved_special_token_{n}|>") for n in range(padding) if named
    }
    padded = replace(tokenizer, added=kept)
    differences = compare_vocabularies(tokenizer, padded, rows=len(tokenizer.vocab) + padding)
    assert [difference.reachable for difference in differences] == [False]
    first, last = len(tokenizer.vocab), len(tokenizer.vocab) + padding - 1
    assert differences[0].ids == ((first, last),)


@given(tokenizers, tokenizers)
def test_a_difference_is_found_from_either_side(one, other):
    mirrored = {"target_only": "draft_only", "draft_only": "target_only"}
    forth = {(mirrored.get(d.kind, d.kind), d.ids) for d in compare_vocabularies(one, other)}
    assert forth == {(d.kind, d.ids) for d in compare_vocabularies(other, one)}


def test_padded_rows_of_qwen_sizes_are_named_with_their_range():
    names = {f"t{i}": i for i in range(151_665)}
    qwen = replace(bpe(["ab"]), vocab=names, merges=(), model={"type": "WordLevel"})
    (difference,) = compare_vocabularies(qwen, qwen, rows=152_064)
    assert (difference.kind, difference.count, difference.ids) == ("padding", 399, ((151_665, 152_063),))


def test_a_kept_name_that_one_side_came_to_use_is_known_to_that_side_alone():
    old = bpe(["abc"], added={5: special("<|reserved_special_token_3|>")})
    new = bpe(["abc"], added={5: special("<|eom_id|>")})
    assert findings(new, old) == {"vocab.target_only": "warning"}
    assert findings(old, new) == {"vocab.draft_only": "note"}


def test_a_kept_name_that_ends_a_text_counts_as_used():
    old = bpe(["abc"], added={5: special("<|reserved_special_token_3|>")})
    new = bpe(["abc"])
    assert [d.kind for d in compare_vocabularies(old, new)] == ["reserved"]
    assert [d.kind for d in compare_vocabularies(old, new, target_eos=(5,))] == ["target_only"]
    assert [d.kind for d in compare_vocabularies(new, old, draft_eos=(5,))] == ["draft_only"]


def test_a_token_that_moved_onto_a_kept_name_is_not_taken_for_harmless():
    target = bpe(["abc"], added={5: special("<|im_end|>"), 6: special("<|reserved_1|>")})
    draft = bpe(["abc"], added={5: special("<|reserved_1|>"), 6: special("<|im_end|>")})
    assert findings(target, draft) == {"vocab.control": "warning"}


def test_markup_under_another_name_is_a_warning_and_text_under_another_id_an_error():
    qwen = bpe(["abc"], added={5: special("<|im_start|>")})
    distilled = bpe(["abc"], added={5: special("<｜User｜>")})
    assert findings(qwen, distilled) == {"vocab.control": "warning"}
    plain = bpe(["abc"], added={5: AddedToken("<tool_call>")})
    assert findings(qwen, plain) == {"vocab.ids": "error"}


def test_an_entry_that_no_merge_leads_to_is_harmless_where_only_one_has_it():
    target = bpe(["abc"])
    draft = replace(target, vocab={**target.vocab, "cab": 5})
    assert [d.kind for d in compare_vocabularies(target, draft)] == ["unused"]
    reached = replace(draft, merges=(*draft.merges, ("c", "ab")))
    assert [d.kind for d in compare_vocabularies(target, reached)] == ["draft_only"]


def test_the_finding_says_how_many_ids_and_shows_one():
    target, draft = bpe(["abc"]), bpe(["abd"])
    (found,) = vocabulary_findings(target, draft, compare_vocabularies(target, draft))
    assert found.message == (
        "made against made: ids that mean different text to the two models: 2; "
        "e.g. 2 is 'c' in the target, 'd' in the draft"
    )


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}


@pytest.mark.parametrize(
    ("part", "value", "finding"),
    [
        ("merges", (("b", "c"), ("a", "b")), "tokenizer.merges"),
        ("merges", (("a", "b"),), "tokenizer.merges"),
        ("model", {"type": "BPE", "byte_fallback": True}, "tokenizer.model"),
        ("model", {"type": "BPE", "ignore_merges": True}, "tokenizer.model"),
        ("normalizer", {"type": "NFC"}, "tokenizer.normalizer"),
        ("pre_tokenizer", BYTE_LEVEL | {"add_prefix_space": True}, "tokenizer.pre_tokenizer"),
        ("pre_tokenizer", BYTE_LEVEL | {"use_regex": False}, "tokenizer.pre_tokenizer"),
        ("decoder", {"type": "Fuse"}, "tokenizer.decoder"),
    ],
)
def test_each_thing_that_splits_text_differently_has_its_finding(part, value, finding):
    tokenizer = bpe(["abc"])
    assert [f.id for f in compare_splitting(tokenizer, replace(tokenizer, **{part: value}))] == [finding]


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("model", {"type": "BPE", "fuse_unk": False, "byte_fallback": False, "unk_token": None}),
        ("model", {"type": "BPE", "continuing_subword_prefix": "", "ignore_merges": False}),
        ("normalizer", {"type": "Sequence", "normalizers": []}),
        ("pre_tokenizer", {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}),
        (
            "pre_tokenizer",
            {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel", "add_prefix_space": False}]},
        ),
    ],
)
def test_another_spelling_of_the_same_step_is_no_finding(part, value):
    tokenizer = bpe(["abc"])
    assert list(compare_splitting(tokenizer, replace(tokenizer, **{part: value}))) == []


def test_the_old_and_the_new_spelling_of_metaspace_are_the_same():
    old = {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True}
    new = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    tokenizer = bpe(["abc"], pre_tokenizer=old)
    assert list(compare_splitting(tokenizer, replace(tokenizer, pre_tokenizer=new))) == []


def test_added_tokens_that_strip_differently_are_named():
    target = bpe(["abc"], added={5: special("<sep>")})
    draft = bpe(["abc"], added={5: AddedToken("<sep>", special=True, lstrip=True)})
    (found,) = compare_splitting(target, draft)
    assert found.id == "tokenizer.added"
    assert "'<sep>' (5)" in found.message


def test_the_tokenizers_of_the_demo_pair_agree(demo_pair):
    target, draft = (open_tokenizer(demo_pair / side) for side in ("target", "draft"))
    assert findings(target, draft, rows=4096) == {}


def test_one_exchanged_pair_in_the_demo_pair_is_found(demo_pair, tmp_path):
    content = json.loads((demo_pair / "draft/tokenizer.json").read_text())
    vocab = content["model"]["vocab"]
    one, other = list(vocab)[1000], list(vocab)[2000]
    vocab[one], vocab[other] = vocab[other], vocab[one]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    target, draft = open_tokenizer(demo_pair / "target"), open_tokenizer(tmp_path)
    (difference,) = compare_vocabularies(target, draft)
    assert (difference.kind, difference.ids) == ("text", ((1000, 1000), (2000, 2000)))
