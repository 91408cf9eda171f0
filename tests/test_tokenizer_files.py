"""tokenizer.json read as JSON, against the tokenizers library that runs it."""

from __future__ import annotations

import json

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from trtspec.build.check.tokenizers import open_tokenizer
from trtspec.errors import CheckpointError

TEXTS = [
    "the quick brown fox jumps over the lazy dog, again and again",
    "def f(x):\n    return x + x  # 12345",
]


def byte_level() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=320, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    made.train_from_iterator(TEXTS, trainer)
    return made


def byte_fallback() -> tokenizers.Tokenizer:
    """Llama 2's kind: spaces become ▁, unknown characters become bytes."""
    symbols = ["<unk>", *(f"<0x{n:02X}>" for n in range(256)), "▁", *"abcdefgh", "ab", "▁ab", "cd"]
    model = models.BPE(
        {symbol: i for i, symbol in enumerate(symbols)},
        [("a", "b"), ("▁", "ab"), ("c", "d")],
        unk_token="<unk>",
        byte_fallback=True,
    )
    made = tokenizers.Tokenizer(model)
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return made


def unigram() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0), ("ab", -1.5), ("b", -2.0)], 0))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    return made


def with_unknown() -> tokenizers.Tokenizer:
    """Characters that are not in the vocabulary become <unk>, an entry of several characters."""
    model = models.BPE({"<unk>": 0, "a": 1, "b": 2, "ab": 3}, [("a", "b")], unk_token="<unk>")
    return tokenizers.Tokenizer(model)


MADE = {"unknown": with_unknown, "byte level": byte_level, "byte fallback": byte_fallback, "unigram": unigram}


@pytest.fixture(scope="module", params=MADE)
def pair(request, tmp_path_factory):
    """One tokenizer twice: by the library, and by us from its file."""
    folder = tmp_path_factory.mktemp("tokenizer")
    reference = MADE[request.param]()
    reference.save(str(folder / "tokenizer.json"))
    return reference, open_tokenizer(folder)


def test_every_id_has_the_string_that_the_library_gives_it(pair):
    reference, ours = pair
    assert ours.ids == reference.get_vocab(with_added_tokens=True)
    assert all(reference.id_to_token(i) == string for i, string in ours.strings.items())


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=60))
def test_every_id_that_the_library_splits_a_text_into_is_live(pair, text):
    reference, ours = pair
    assert all(ours.is_live(i) for i in reference.encode(text).ids)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(text=st.text(alphabet="thequckbrownfxzy ", max_size=60))
def test_an_entry_that_no_merge_leads_to_is_not_live_and_never_comes_out(tmp_path, text):
    reference = byte_level()
    content = json.loads(reference.to_str())
    content["model"]["vocab"]["thequick"] = 400
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert not open_tokenizer(tmp_path).is_live(400)
    changed = tokenizers.Tokenizer.from_str(json.dumps(content))
    assert 400 not in changed.encode(text + "thequick").ids


def test_a_merge_of_something_that_never_comes_out_makes_nothing_live(tmp_path):
    model = models.BPE({"a": 0, "zz": 1, "azz": 2}, [("a", "zz")])
    tokenizers.Tokenizer(model).save(str(tmp_path / "tokenizer.json"))
    ours = open_tokenizer(tmp_path)
    assert [ours.is_live(i) for i in range(3)] == [True, False, False]


def test_an_entry_that_no_merge_leads_to_is_live_where_merges_are_ignored_for_whole_words(tmp_path):
    content = json.loads(byte_level().to_str())
    content["model"]["vocab"]["thequick"] = 400
    content["model"]["ignore_merges"] = True
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert 400 in tokenizers.Tokenizer.from_str(json.dumps(content)).encode("thequick").ids
    assert open_tokenizer(tmp_path).is_live(400)


@pytest.mark.parametrize(
    "post_processor",
    [
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing("<s> $A", "<s> $A $B", [("<s>", 0)]),
        processors.TemplateProcessing("<s> $A </s>", "<s> $A $B </s>", [("<s>", 0), ("</s>", 1)]),
        processors.TemplateProcessing("$A </s>", "$A $B </s>", [("</s>", 1)]),
        processors.Sequence(
            [processors.ByteLevel(), processors.TemplateProcessing("<s> $A", "<s> $A $B", [("<s>", 0)])]
        ),
        processors.BertProcessing(("</s>", 1), ("<s>", 0)),
        processors.RobertaProcessing(("</s>", 1), ("<s>", 0)),
    ],
)
def test_the_tokens_around_a_text_are_those_that_the_library_adds(tmp_path, post_processor):
    reference = byte_level()
    reference.post_processor = post_processor
    reference.save(str(tmp_path / "tokenizer.json"))
    bare = reference.encode("fox", add_special_tokens=False).tokens
    before, after = open_tokenizer(tmp_path).around()
    assert reference.encode("fox").tokens == [*before, *bare, *after]


@pytest.mark.parametrize(
    "name",
    [
        "<|reserved_special_token_7|>",
        "<unused3>",
        "[unused11]",
        "<extra_id_0>",
        "<|extra_12|>",
        "<|placeholder1|>",
        "<｜place▁holder▁no▁3｜>",
        "[control_8]",
        "<SPECIAL_20>",
        "<dummy00001>",
        ">>UNUSED_12<<",
    ],
)
def test_a_name_that_is_kept_for_later_is_not_live_until_something_uses_it(tmp_path, name):
    reference = byte_level()
    reference.add_special_tokens([name])
    reference.save(str(tmp_path / "tokenizer.json"))
    kept = reference.token_to_id(name)
    assert not open_tokenizer(tmp_path).is_live(kept)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": name}}))
    assert open_tokenizer(tmp_path).is_live(kept)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": f"{name}{{{{ text }}}}"}))
    assert open_tokenizer(tmp_path).is_live(kept)


@pytest.mark.parametrize(
    "name", ["<|im_start|>", "<|eot_id|>", "<tool_call>", " unused 7", "reserved", "<think>"]
)
def test_other_added_tokens_are_live(tmp_path, name):
    reference = byte_level()
    reference.add_tokens([name])
    reference.save(str(tmp_path / "tokenizer.json"))
    assert open_tokenizer(tmp_path).is_live(reference.token_to_id(name))


def test_merges_in_the_old_and_in_the_new_spelling_are_the_same(tmp_path):
    content = json.loads(byte_level().to_str())
    new, old = tmp_path / "new", tmp_path / "old"
    for folder, merges in (
        (new, content["model"]["merges"]),
        (old, [" ".join(pair) for pair in content["model"]["merges"]]),
    ):
        folder.mkdir()
        content["model"]["merges"] = merges
        (folder / "tokenizer.json").write_text(json.dumps(content))
    assert isinstance(json.loads((old / "tokenizer.json").read_text())["model"]["merges"][0], str)
    assert open_tokenizer(new).merges == open_tokenizer(old).merges != ()


def test_the_chat_template_is_read_from_each_place_that_transformers_writes(tmp_path):
    byte_level().save(str(tmp_path / "tokenizer.json"))
    assert open_tokenizer(tmp_path).chat_template is None
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "from json"}))
    assert open_tokenizer(tmp_path).chat_template == "from json"
    several = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "from a list"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": several}))
    assert open_tokenizer(tmp_path).chat_template == "from a list"
    (tmp_path / "chat_template.jinja").write_text("from jinja")
    assert open_tokenizer(tmp_path).chat_template == "from jinja"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, r"tokenizer\.json: missing; expected"),
        ({"tokenizer.model": "x"}, r"tokenizer\.json: missing, only tokenizer\.model; expected"),
        ({"tokenizer.json": "{"}, r"tokenizer\.json: not valid JSON"),
        ({"tokenizer.json": "[]"}, r"tokenizer\.json: holds a JSON list"),
        ({"tokenizer.json": "{}"}, r"tokenizer\.json: not a tokenizer of the tokenizers library \(KeyError"),
        (
            {"tokenizer.json": '{"model": {"vocab": {"a": "b"}}}'},
            r"not a tokenizer of the tokenizers library",
        ),
        ({"tokenizer.json": '{"model": {"vocab": {}, "merges": ["abc"]}}'}, r"not a tokenizer"),
        ({"tokenizer.json": '{"model": {"vocab": {}}}', "tokenizer_config.json": "3"}, r"holds a JSON int"),
    ],
)
def test_a_tokenizer_that_cannot_be_read_is_one_clear_line(tmp_path, files, message):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        open_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)
