"""`trtspec bench --against`: another server in the same run, the same table, the same page."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from openai_double import MODEL, OpenAiDouble, chat_chunk, chunk, serving_openai, usage
from page_parts import Page
from scripted_http_server import serving_http
from scripted_server import Asked, ScriptedServer, Step, last

from trtspec.cli import trtspec
from trtspec.cli.parts.against import openai_address, target_at, token_counter
from trtspec.client import ConnectionFailed, StreamBroken
from trtspec.client.bench.openai import OpenAiTarget
from trtspec.client.bench.openai_call import API_KEY
from trtspec.client.bench.targets import TritonTarget
from trtspec.engines.pair import EnginePair

KEY = "sk-secret-0123456789"
QUICK = (
    "--blocks",
    "2",
    "--warm-up",
    "0",
    "--requests",
    "2",
    "--num-draft-tokens",
    "0,3",
    "--max-tokens",
    "4",
)


def ours(asked: Asked) -> list[Step]:
    return [Step("a", [1]), Step(" b c", [2, 3]), last(prompt_tokens=5, tokens=3)]


@pytest.fixture
def triton() -> Iterator[ScriptedServer]:
    with ScriptedServer(ours) as server:
        yield server


@pytest.fixture
def openai(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAiDouble]:
    monkeypatch.setenv(API_KEY, KEY)
    steps = [chunk("a"), chunk(" b c", finish="length"), usage(5, 3), "[DONE]"]
    with serving_openai(lambda asked: steps, key=KEY) as server:
        yield server


def bench(*arguments: object) -> Result:
    return CliRunner().invoke(trtspec, ["bench", *map(str, arguments)])


def test_a_server_with_openais_api_is_an_arm_of_the_same_run(
    triton: ScriptedServer, openai: OpenAiDouble, tmp_path: Path
) -> None:
    page, plots = tmp_path / "run.html", tmp_path / "plots"
    url = f"{openai.url}/v1"
    files = ("--html", page, "--plots", plots, "--json", "-")
    done = bench(triton.url, "--against", url, *QUICK, "--prompts", "code", *files)
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    arms = [(arm["server"], arm["num_draft_tokens"]) for arm in result["arms"]]
    assert arms == [(triton.url, 0), (triton.url, 3), (url, None)]
    theirs = [trial for trial in result["trials"] if trial["arm"] == url]
    assert {(trial["tokens"], trial["tokens_from"], trial["error"]) for trial in theirs} == {(3, "usage", "")}
    # The same prompts, as often.
    prompts = sorted(asked.prompt for asked in triton.asked)
    assert prompts == sorted([asked.body["prompt"] for asked in openai.asked] * 2)
    assert len(openai.asked) == 4
    rows = Page(page.read_text("utf-8")).rows
    assert next(row for row in rows if row[0] == "E")[-1] == "not reported"
    assert ["tokens counted by", "ids", "ids", "the server"] in rows
    assert ["model", MODEL] in [[row[0].rpartition(" ")[2], row[-1]] for row in rows]
    assert {path.suffix for path in plots.iterdir()} == {".png", ".svg"}
    assert openai.asked[0].headers["authorization"] == f"Bearer {KEY}"
    assert KEY not in f"{done.output}{done.stderr}{page.read_text('utf-8')}"


def test_the_terminal_shows_both_in_one_table(triton: ScriptedServer, openai: OpenAiDouble) -> None:
    url = f"{openai.url}/v1"
    done = bench(triton.url, "--against", url, *QUICK)
    assert done.exit_code == 0, done.output
    head = next(line for line in done.stdout.splitlines() if line.strip().startswith("1 at a time"))
    assert head.index("γ=0") < head.index("γ=3") < head.index(url)
    acceptance = next(line for line in done.stdout.splitlines() if line.strip().startswith("α"))
    assert acceptance.rstrip().endswith("not reported")


def test_texts_are_sent_as_chats_to_both(triton: ScriptedServer, openai: OpenAiDouble) -> None:
    openai.script = lambda asked: [
        chat_chunk(role="assistant"),
        chat_chunk(content="a"),
        chat_chunk("stop"),
        usage(5, 1),
    ]
    done = bench(triton.url, "--against", f"{openai.url}/v1", "--chat", *QUICK, "--json", "-")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["prompts"]["name"] == "chat, as chats"
    assert {asked.path for asked in openai.asked} == {"/v1/chat/completions"}
    sent = sorted(asked.body["messages"][0]["content"] for asked in openai.asked)
    asked_of_us = [json.loads(asked.values["messages"][0])[0] for asked in triton.asked]
    assert {turn["role"] for turn in asked_of_us} == {"user"}
    assert sorted(turn["content"] for turn in asked_of_us) == sorted(sent * 2)


def test_a_second_triton_is_an_arm_for_each_length(triton: ScriptedServer) -> None:
    with ScriptedServer(ours) as other:
        done = bench(triton.url, "--against", other.url, *QUICK, "--json", "-")
    assert done.exit_code == 0, done.output
    assert [arm["server"] for arm in json.loads(done.stdout)["arms"]] == [triton.url] * 2 + [other.url] * 2


def test_a_server_that_refuses_the_key_is_an_error_that_names_the_variable(
    triton: ScriptedServer, openai: OpenAiDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(API_KEY, f"{KEY}-old")
    done = bench(triton.url, "--against", f"{openai.url}/v1", *QUICK)
    assert done.exit_code == 1
    assert f"put the server's key into {API_KEY}" in str(done.exception)
    assert KEY not in f"{done.output}{done.exception}"


def test_of_several_models_one_has_to_be_named(triton: ScriptedServer) -> None:
    steps = [chunk("a", finish="stop"), usage(5, 1)]
    with serving_openai(lambda asked: steps, models=("x", "y")) as server:
        arguments = (triton.url, "--against", f"{server.url}/v1", *QUICK)
        unnamed = bench(*arguments)
        assert unnamed.exit_code == 1
        assert "serves x, y, expected one model" in str(unnamed.exception)
        assert "--against-model" in str(unnamed.exception)
        assert bench(*arguments, "--against-model", "y").exit_code == 0
    assert {asked.body["model"] for asked in server.asked} == {"y"}


@pytest.mark.parametrize("url", ["http://a:8000/v1", "https://a/v1/", "http://a/api/v3"])
def test_an_address_with_a_path_is_one_of_openais_api(url: str) -> None:
    assert openai_address(url) == url
    assert isinstance(target_at(url, model=None, pair=None), OpenAiTarget)


@pytest.mark.parametrize("url", ["a", "a:8001", "grpc://a:8001", "work/pair", "./a/b"])
def test_an_address_without_http_is_never_one_of_openais_api(url: str) -> None:
    assert openai_address(url) is None


@pytest.mark.parametrize("key", ["", KEY])
@pytest.mark.parametrize("end", ["", "/"])
def test_a_server_with_openais_api_is_known_without_a_path(key: str, end: str) -> None:
    with serving_openai(lambda asked: [], key=key) as server:
        assert openai_address(server.url + end) == f"{server.url}/v1"
        assert target_at(server.url + end, model=None, pair=None).name == f"{server.url}/v1"
    assert not any("authorization" in headers for _, _, headers in server.seen)


def test_an_http_address_of_a_triton_is_a_tritons() -> None:
    with serving_http(lambda asked: []) as server:
        assert openai_address(server.url) is None
        assert isinstance(target_at(server.url, model=None, pair=None), TritonTarget)


@pytest.mark.parametrize("models", ["<html>", "[" * 100_000, "[]", "{}"])
def test_what_is_neither_is_told_of_both(models: str) -> None:
    with (
        serving_openai(lambda asked: [], models=models) as server,
        pytest.raises(
            StreamBroken, match=rf"neither a Triton \(/v2\) nor .*give the path, as {server.url}/v1"
        ),
    ):
        openai_address(server.url)


def test_where_nobody_answers_no_server_is_taken_for_ours() -> None:
    with pytest.raises(
        ConnectionFailed, match=r"^http://127\.0\.0\.1:1: no server took .* refused; is it running there\?$"
    ):
        openai_address("http://127.0.0.1:1")


def test_a_server_with_openais_api_is_an_arm_without_a_path_and_not_alone(
    triton: ScriptedServer, openai: OpenAiDouble
) -> None:
    done = bench(triton.url, "--against", openai.url, *QUICK, "--json", "-")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["arms"][-1]["server"] == f"{openai.url}/v1"
    alone = bench(openai.url, *QUICK)
    assert alone.exit_code == 2
    assert "found a server with OpenAI's API" in alone.stderr


def test_a_pairs_tokenizer_counts_for_a_server_that_does_not(built_pair: EnginePair) -> None:
    from tokenizers import Tokenizer

    text = "def main(\n    日本 🌸"
    tokenizer = Tokenizer.from_file(str(built_pair.tokenizer / "tokenizer.json"))
    assert token_counter(built_pair)(text) == len(tokenizer.encode(text, add_special_tokens=False).ids) > 5


def test_the_variable_for_the_key_is_named_in_the_help() -> None:
    assert API_KEY in bench("--help").output


def test_without_matplotlib_a_page_is_refused_before_the_run(
    triton: ScriptedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = bench(triton.url, *QUICK, "--html", tmp_path / "run.html")
    assert done.exit_code == 1
    assert "matplotlib not installed; run: pip install 'trtspec[bench]'" in str(done.exception)
    assert triton.asked == []


def test_two_things_cannot_both_be_on_stdout() -> None:
    done = bench("localhost:1", "--json", "-", "--html", "-")
    assert done.exit_code == 2
    assert "--json and --html would both be on stdout" in done.stderr


def test_the_extra_has_what_pictures_and_pages_need() -> None:
    project = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    extra = re.search(r"^bench = \[(.*?)\]", project, re.S | re.M)
    assert extra is not None
    assert set(re.findall(r'"(\w+)', extra[1])) == {"jinja2", "matplotlib", "scipy"}
