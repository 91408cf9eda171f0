"""Conversations become the prompt that transformers would make of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from template_zoo import KINDS, TEMPLATES, save_tokenizer

from trtspec.triton_repo.speculation.chat import (
    MAX_MESSAGES,
    ChatTemplate,
    load_template,
    read_messages,
)
from trtspec.triton_repo.speculation.request import RequestError
from trtspec.triton_repo.speculation.tokenizer import Tokenizer

QUESTION = [{"role": "user", "content": "  What is 日本語?\n"}]
CONVERSATIONS = {
    "a question": QUESTION,
    "with a system message": [{"role": "system", "content": "Be kind."}, *QUESTION],
    "a second question": [
        *QUESTION,
        {"role": "assistant", "content": "A language 🙂."},
        {"role": "user", "content": "<s>[INST] And {{ bos_token }}? </s>"},
    ],
}


def prompt_ids(folder: Path, messages: list[dict[str, str]]) -> tuple[int, ...]:
    template = load_template(folder)
    assert template
    return Tokenizer(folder / "tokenizer.json").encode(template.render(messages), special_tokens=False)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_ids_are_those_of_transformers(kind: str, name: str, tmp_path: Path) -> None:
    reference = save_tokenizer(tmp_path, kind, TEMPLATES[name])
    for case, messages in CONVERSATIONS.items():
        if name == "Gemma" and messages[0]["role"] == "system":
            continue
        expected = reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert prompt_ids(tmp_path, messages) == tuple(expected), case


def test_the_beginning_is_marked_once_where_the_template_marks_it(tmp_path: Path) -> None:
    reference = save_tokenizer(tmp_path, "byte-level BPE", TEMPLATES["Llama 3"])
    ids = prompt_ids(tmp_path, QUESTION)
    assert (ids[0], ids.count(reference.bos_token_id)) == (reference.bos_token_id, 1)
    # A prompt that is no conversation gets what the tokenizer puts around one.
    assert Tokenizer(tmp_path / "tokenizer.json").encode("a")[0] == reference.bos_token_id


def test_a_refusal_of_the_template_reaches_the_caller(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, "byte-level BPE", TEMPLATES["Gemma"])
    with pytest.raises(RequestError, match=r"^messages: refused by the chat template: System role not supp"):
        prompt_ids(tmp_path, CONVERSATIONS["with a system message"])


def test_a_template_in_a_file_comes_before_the_one_in_the_config(tmp_path: Path) -> None:
    config = {"chat_template": "config", "bos_token": {"content": "<s>", "lstrip": False}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    template = load_template(tmp_path)
    assert template
    assert template.render(QUESTION) == "config"
    (tmp_path / "chat_template.jinja").write_text("file {{ bos_token }}")
    template = load_template(tmp_path)
    assert template
    assert template.render(QUESTION) == "file <s>"


def test_special_tokens_that_transformers_found_come_before_those_of_the_config(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}|{{ eos_token }}")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<a>", "eos_token": "<b>"}))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": "<s>"}))
    template = load_template(tmp_path)
    assert template
    assert template.render(QUESTION) == "<s>|<b>"


def test_of_named_templates_the_default_one_is_taken(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "chat"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    template = load_template(tmp_path)
    assert template
    assert template.render(QUESTION) == "chat"


def test_a_folder_may_have_no_template(tmp_path: Path) -> None:
    assert load_template(tmp_path) is None
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert load_template(tmp_path) is None


def test_a_template_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(ValueError, match="the chat template cannot be read"):
        load_template(tmp_path)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ messages[9].content }}", "UndefinedError"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{% set n = namespace(__class__=1) %}", "SecurityError"),
        ("{% set n = namespace() %}{% set n.__class__ = 1 %}", "SecurityError"),
        ("{{ cycler.__init__.__globals__ }}", "SecurityError|UndefinedError"),
        ("{% for i in range(10 ** 9) %}{% endfor %}", "OverflowError"),
        ("{{ 'a' * 10 ** 12 }}", "SecurityError: a product of more than"),
        ("{{ 10 ** 15 * ['a'] }}", "SecurityError: a product of more than"),
        ("{{ 9 ** 9 ** 9 }}", "SecurityError: a power beyond"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{% include 'x' %}", "TypeError|TemplateNotFound"),
        ("{% for i in range(90000) %}{{ 'a' * 1000 }}{% endfor %}", "more than 16777216 characters"),
    ],
)
def test_no_template_reaches_python_or_runs_away(source: str, message: str) -> None:
    with pytest.raises(RequestError, match=f"^messages: .*({message})"):
        ChatTemplate(source, {}).render([dict(message) for message in QUESTION])


def test_arithmetic_of_templates_stays() -> None:
    source = "{{ 2 * 3 }} {{ 'ab' * 2 }} {{ 2 ** 10 }} {{ 0.5 ** 2 }} {{ dict(a=1).a }}"
    assert ChatTemplate(source, {}).render(QUESTION) == "6 abab 1024 0.25 1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("{}", "found dict, expected a JSON list of 1 to"),
        ("[]", "found 0, expected a JSON list"),
        ("[1]", "message 0 has int, expected role and content"),
        ('[{"role": "user"}]', "message 0 has \\['role'\\], expected role and content"),
        ('[{"role": "user", "content": null}]', "content of message 0 is NoneType, expected a text"),
        ('[{"role": "user", "content": "a", "name": "b"}]', "has \\['content', 'name', 'role'\\]"),
        (json.dumps(QUESTION * (MAX_MESSAGES + 1)), f"found {MAX_MESSAGES + 1}, expected"),
        (" " * (5 << 20), "5242880 characters, expected at most"),
    ],
)
def test_messages_that_are_none_are_refused(text: str, message: str) -> None:
    with pytest.raises(RequestError, match=f"^messages: .*{message}"):
        read_messages(text)


@given(
    st.lists(
        st.fixed_dictionaries({"role": st.text(max_size=9), "content": st.text()}), min_size=1, max_size=4
    )
)
def test_messages_come_through_as_they_are(messages: list[dict[str, str]]) -> None:
    read = read_messages(json.dumps(messages))
    assert read == messages
    source = "{% for m in messages %}{{ m.role + m.content }}{% endfor %}"
    assert ChatTemplate(source, {}).render(read) == "".join(m["role"] + m["content"] for m in messages)
