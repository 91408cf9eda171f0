"""What `trtspec bench` asks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtspec.client import InvalidArgument
from trtspec.client.bench import prompts as module
from trtspec.client.bench.prompts import PROMPT_SETS, as_messages, load_prompts
from trtspec.prompts import LINE_BYTES

# Letters, or a word, that only this one of the languages promised has.
SIGNS = {
    "English": r"\bthe\b",
    "German": r"ß|\b(und|der)\b",
    "French": r"[çèê]|\bles\b",
    "Spanish": r"[¿ñ]|\b(el|los|una)\b",
    "Chinese": r"[这们说请]",
    "Japanese": r"[ぁ-ん]",
    "Arabic": r"[ء-ي]",
    "Hindi": r"[ऀ-ॿ]",
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "prompts.jsonl"


@pytest.mark.parametrize("name", PROMPT_SETS)
def test_a_shipped_set_holds_12_to_24_different_texts(name: str) -> None:
    prompts = load_prompts(name)
    assert 12 <= len(prompts) <= 24
    assert len(set(map(str, prompts))) == len(prompts)
    assert all(isinstance(prompt, str) and 30 < len(prompt) < 2000 for prompt in prompts)


@pytest.mark.parametrize("language", SIGNS)
@pytest.mark.parametrize("name", ["chat", "summarising", "translation"])
def test_a_shipped_set_of_prose_has_every_language(name: str, language: str) -> None:
    assert any(re.search(SIGNS[language], str(prompt)) for prompt in load_prompts(name))


def test_every_set_on_disk_has_a_name() -> None:
    folder = Path(module.__file__).with_name("prompt_sets")
    assert sorted(path.name for path in folder.iterdir()) == sorted(f"{name}.jsonl" for name in PROMPT_SETS)


def test_a_file_of_text_is_a_prompt_a_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes('\ufeffdef f(\r\n\n  \n  indented\n{"text": 1}\n日本'.encode())
    assert load_prompts(path) == ("def f(", "  indented", '{"text": 1}', "日本")


def test_a_line_of_json_is_a_string_a_text_a_prompt_or_messages(file: Path) -> None:
    turn = {"role": "user", "content": "Hello"}
    lines = ["a", {"text": "b", "id": 7}, {"prompt": "c\nd"}, {"messages": [{**turn, "name": "x"}]}]
    file.write_text("\n".join(map(json.dumps, lines)))
    assert load_prompts(str(file)) == ("a", "b", "c\nd", [turn])


@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1))
def test_texts_come_back_as_they_were_written(
    texts: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "texts.jsonl"
    texts = [text for text in texts if text.strip()] or ["x"]
    path.write_text(
        "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts),
        "utf-8",
        newline="\n",
    )
    assert load_prompts(path) == tuple(texts)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"prompts\.jsonl: found no prompts, expected one a line"),
        (b"\n \n", r"prompts\.jsonl: found no prompts"),
        (b'"a"\n"\xff"', r"prompts\.jsonl:2: found byte 0xff at 1, expected UTF-8; convert"),
        (b'"a"\n{', r"prompts\.jsonl:2: found no JSON .*, expected a string or an object"),
        (b"[" * 100_000, r"prompts\.jsonl:1: found no JSON"),
        (b'{"text": ""}', r"prompts\.jsonl:1: found \{\"text\": \"\"\}, expected a string"),
        (b'{"text": "a", "prompt": "b"}', r":1: found .*, expected a string or an object with one of"),
        (b'{"question": "a"}', r":1: found .*, expected"),
        (b'{"messages": []}', r":1: found .*, expected"),
        (b'{"messages": [{"role": "user"}]}', r":1: found .*, expected"),
        (b"[1, 2]", r":1: found \[1, 2\], expected"),
        (b'"a"\n"' + b"x" * LINE_BYTES + b'"', r":2: found a line of more than 1048576 bytes, expected one"),
    ],
)
def test_what_is_no_prompt_is_refused_with_its_line(file: Path, content: bytes, message: str) -> None:
    file.write_bytes(content)
    with pytest.raises(InvalidArgument, match=message):
        load_prompts(file)


def test_a_file_that_is_not_there_is_refused_with_the_names_of_the_sets(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="not there; expected a file of prompts or one of chat, code,"):
        load_prompts(tmp_path / "chatt")


def test_a_folder_is_no_file_of_prompts(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="cannot be read: Is a directory"):
        load_prompts(tmp_path)


def test_a_path_with_the_name_of_a_set_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "chat").write_text("mine")
    monkeypatch.chdir(tmp_path)
    assert load_prompts("./chat") == ("mine",)
    assert load_prompts("chat") != ("mine",)


def test_texts_become_what_a_user_says() -> None:
    messages = [{"role": "system", "content": "Be brief."}]
    assert as_messages(["Hello", messages, [1, 2]]) == (
        [{"role": "user", "content": "Hello"}],
        messages,
        [1, 2],
    )
