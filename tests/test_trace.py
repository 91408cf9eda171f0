"""A trace shows what speculation did: the same answer, the right verdicts, the models' probabilities."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer

from trtspec.cli import trtspec
from trtspec.engines.pair import EnginePair
from trtspec.errors import EngineError, TrtspecError
from trtspec.triton_repo.trace import Drafted, Trace, trace
from trtspec.triton_repo.trace.picture import LOOKS, lines, page, shown, summary, tokens

PROMPT = "def main("


@pytest.fixture(scope="module")
def greedy(built_pair: EnginePair) -> Trace:
    return trace(built_pair, PROMPT, max_tokens=40, num_draft_tokens=4)


@pytest.fixture(scope="module")
def sampled(built_pair: EnginePair) -> Trace:
    return trace(
        built_pair, PROMPT, max_tokens=40, num_draft_tokens=3, temperature=1.0, use_draft_logits=True, seed=3
    )


def answer_ids(found: Trace) -> list[int]:
    kept = [
        [token.id for token in round.drafted if token.verdict == "accepted"]
        + ([round.added.id] if round.added else [])
        for round in found.rounds
    ]
    return [token_id for ids in kept for token_id in ids]


def test_the_answer_is_the_one_without_a_draft(built_pair: EnginePair, greedy: Trace) -> None:
    alone = trace(built_pair, PROMPT, max_tokens=40, num_draft_tokens=0)
    assert greedy.text == alone.text
    assert all(not round.drafted and round.added.kind == "target" for round in alone.rounds)
    assert answer_ids(greedy)[:40] == answer_ids(alone)
    assert any(token.verdict == "rejected" for round in greedy.rounds for token in round.drafted)


def test_the_probabilities_are_those_of_hugging_face(demo_pair: Path, greedy: Trace) -> None:
    tokenizer = AutoTokenizer.from_pretrained(demo_pair / "target")
    models = [
        AutoModelForCausalLM.from_pretrained(demo_pair / name, dtype=torch.float32)
        for name in ("target", "draft")
    ]
    ids = tokenizer(PROMPT)["input_ids"]
    for round in greedy.rounds:
        drafted = [token.id for token in round.drafted]
        with torch.no_grad():
            p, q = (m(torch.tensor([ids + drafted])).logits[0, len(ids) - 1 :].softmax(-1) for m in models)
        for k, token in enumerate(round.drafted):
            assert token.q == pytest.approx(q[k, token.id].item(), abs=1e-4)
            if token.p is not None:
                assert token.p == pytest.approx(p[k, token.id].item(), abs=1e-4)
                assert token.ratio == pytest.approx(min(1, token.p / token.q))
        kept = [token.id for token in round.drafted if token.verdict == "accepted"]
        if round.added is not None:
            assert round.added.p == pytest.approx(p[len(kept), round.added.id].item(), abs=1e-4)
            kept.append(round.added.id)
        ids += kept


@pytest.mark.parametrize("name", ["greedy", "sampled"])
def test_verdicts_come_in_order_and_name_the_added_token(name: str, request: pytest.FixtureRequest) -> None:
    found: Trace = request.getfixturevalue(name)
    order = ["accepted", "rejected", "unread"]
    for round in found.rounds:
        verdicts = [token.verdict for token in round.drafted]
        assert verdicts == sorted(verdicts, key=order.index)
        assert verdicts.count("rejected") <= 1
        if round.added is not None and round.drafted:
            assert round.added.kind == ("correction" if "rejected" in verdicts else "bonus")
        assert all(token.p is None for token in round.drafted if token.verdict == "unread")
    assert found.accepted == sum(t.verdict == "accepted" for r in found.rounds for t in r.drafted)
    assert found.proposed == sum(len(round.drafted) for round in found.rounds)


def test_only_a_token_the_draft_likes_better_can_be_rejected_by_the_ratio(sampled: Trace) -> None:
    rejected = [t for r in sampled.rounds for t in r.drafted if t.verdict == "rejected"]
    assert rejected
    assert all(token.ratio is not None and token.ratio < 1 for token in rejected)


def test_an_end_token_ends_the_trace(built_pair: EnginePair, greedy: Trace) -> None:
    end = greedy.rounds[1].added
    assert end is not None
    ending = built_pair.manifest.model_copy(update={"eos_token_ids": (end.id,)})
    found = trace(EnginePair(built_pair.path, ending), PROMPT, max_tokens=40, num_draft_tokens=4)
    assert found.finish_reason == "stop"
    assert answer_ids(found)[-1] == end.id
    assert answer_ids(found).count(end.id) == 1


def test_what_the_engine_cannot_hold_is_refused(built_pair: EnginePair) -> None:
    with pytest.raises(EngineError, match="num_draft_tokens is 9; the engine was built for 0 to 8"):
        trace(built_pair, PROMPT, num_draft_tokens=9)


def test_every_kind_of_token_differs_without_colour() -> None:
    assert len({look.sign for look in LOOKS.values()}) == len(LOOKS)


def test_a_line_shows_a_round(greedy: Trace) -> None:
    console = Console(no_color=True, width=200, record=True)
    with console.capture() as shot:
        for line in lines(greedy):
            console.print(line)
    printed = shot.get().splitlines()
    assert len(printed) == len(greedy.rounds)
    for line, round in zip(printed, greedy.rounds, strict=True):
        for kind, token in tokens(round):
            assert LOOKS[kind].sign + shown(token.text) in line


def test_the_page_loads_nothing_and_runs_nothing(built_pair: EnginePair) -> None:
    found = trace(built_pair, "<script>alert(1)</script>", max_tokens=8, num_draft_tokens=2)
    html = page(found)
    assert "<script" not in html
    assert "&lt;script&gt;alert(1)" in html
    assert not any(sign in html for sign in ("http:", "https:", "src=", "url(", "@import"))
    assert summary(found) in html.replace("&#39;", "'")


def test_text_that_cannot_be_seen_is_shown() -> None:
    assert shown(" a\n\t\x07") == "␣a⏎⇥�"
    assert shown("") == "∅"


def test_the_command_prints_json_and_writes_a_page(built_pair: EnginePair, tmp_path: Path) -> None:
    html = tmp_path / "trace.html"
    arguments = ["trace", PROMPT, "--pair", built_pair.path, "--max-tokens", 8, "--json", "--html", html]
    done = CliRunner().invoke(trtspec, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    written = json.loads(done.stdout)
    assert written["text"] == trace(built_pair, PROMPT, max_tokens=8).text
    assert Drafted(**written["rounds"][0]["drafted"][0]).verdict in ("accepted", "rejected")
    assert html.read_text("utf-8").startswith("<!DOCTYPE html>")
    assert np.isclose(written["accepted"] + sum(r["added"] is not None for r in written["rounds"]), 8, atol=1)


def test_a_dash_reads_the_prompt_from_stdin(built_pair: EnginePair) -> None:
    arguments = ["trace", "-", "--pair", str(built_pair.path), "--max-tokens", "4", "--json"]
    done = CliRunner().invoke(trtspec, arguments, input="größe = (\n")
    assert json.loads(done.stdout)["prompt"] == "größe = (\n"


def test_a_prompt_that_cannot_be_read_is_one_line(built_pair: EnginePair) -> None:
    arguments = ["trace", "--pair", str(built_pair.path), "--max-tokens", "4", "a\udcff"]
    done = CliRunner().invoke(trtspec, arguments)
    assert isinstance(done.exception, TrtspecError)
    assert "PROMPT: found byte 0xff at offset 1, expected UTF-8 text" in str(done.exception)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("none/trace.html", "none/trace.html: there is no folder none"),
        ("/proc/trace.html", "/proc/trace.html: cannot be written: No such file"),
        ("/", "/: is a folder"),
    ],
)
def test_a_page_that_could_not_be_written_is_said_before_anything_is_read(file: str, message: str) -> None:
    done = CliRunner().invoke(trtspec, ["trace", "a", "--pair", "no-pair", "--html", file])
    assert done.exit_code == 2
    assert message in " ".join(done.output.replace("│", " ").split())


def test_the_page_can_go_to_stdout_alone(
    built_pair: EnginePair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["trace", PROMPT, "--pair", str(built_pair.path), "--max-tokens", "2", "--html", "-"]
    done = CliRunner().invoke(trtspec, arguments)
    assert (done.exit_code, list(tmp_path.iterdir())) == (0, [])
    assert done.stdout.startswith("<!DOCTYPE html>")
    assert done.stdout.rstrip().endswith("</html>")
    assert CliRunner().invoke(trtspec, [*arguments, "--json"]).exit_code == 2


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_that_no_engine_takes_is_wrong_usage(built_pair: EnginePair, seed: int) -> None:
    arguments = ["trace", PROMPT, "--pair", str(built_pair.path), "--seed", str(seed)]
    assert CliRunner().invoke(trtspec, arguments).exit_code == 2


def test_the_command_needs_a_pair() -> None:
    assert CliRunner().invoke(trtspec, ["trace", PROMPT]).exit_code == 2
