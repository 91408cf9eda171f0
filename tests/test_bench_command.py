"""trtspec bench and trtspec bench compare, from the command line."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench_results import noisy, read_csv, result_of
from scripted_server import Asked, Fault, ScriptedServer, Step

from trtspec.cli import main
from trtspec.client.bench.result import read_result
from trtspec.client.bench.rows import rows
from trtspec.engines.pair import EnginePair

MAX_DRAFT_TOKENS = 8
QUICK = ("--blocks", "2", "--warm-up", "1", "--requests", "3", "--max-tokens", "6")


def talk(asked: Asked) -> Iterator[Step | Fault]:
    """Six tokens: one at a time without a draft, else in two responses of three."""
    length = asked.values.get("num_draft_tokens", [4])[0]
    if length > MAX_DRAFT_TOKENS:
        yield Fault(f"refused: num_draft_tokens is {length}, at most {MAX_DRAFT_TOKENS}", "INVALID_ARGUMENT")
        return
    size = 1 if length == 0 else 3
    for first in range(0, 6, size):
        yield Step("x" * size, list(range(first, first + size)))
    counts = {"num_input_tokens": 5, "num_output_tokens": 6, "finish_reason": "length"}
    drafts = {"num_rounds": 2, "total_draft_tokens": 6, "total_accepted_draft_tokens": 4} if length else {}
    places = {"proposed_per_position": [2, 2, 2], "accepted_per_position": [2, 2, 0]} if length else {}
    names = ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns")
    times = dict(zip(names, (10**9, 10**9, 10**9 + 1000, 10**9 + 2000), strict=True))
    yield Step(more={**counts, **drafts, **places, **times, "engine_time_ns": 500})


@pytest.fixture
def url() -> Iterator[str]:
    with ScriptedServer(talk) as server:
        yield server.url


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    file = tmp_path / "prompts.txt"
    file.write_text("one\ntwo\nthree\n")
    return str(file)


def ended(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["bench", *map(str, arguments)])
    return int(stopped.value.code or 0)


def test_a_running_server_is_measured_and_written_down(
    url: str, prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, table = tmp_path / "run.json", tmp_path / "run.csv"
    lengths = (
        "--num-draft-tokens",
        "0,3,auto,default",
        "--concurrency",
        "1,2",
        "--rate",
        "200",
        "--latency-bound",
        "30",
    )
    main(["bench", url, "--prompts", prompts, *lengths, *QUICK, "--json", str(run), "--csv", str(table)])
    result = read_result(run)
    assert [arm.name for arm in result.arms] == ["γ=0", "γ=3", "auto", "default"]
    assert [load.name for load in result.loads] == ["1 at a time", "2 at a time", "200/s"]
    assert (result.prompts.count, len(result.segments)) == (3, 2 * 3 * 4)
    assert {trial.tokens for trial in result.trials} == {6}
    assert {trial.tokens_from for trial in result.trials} == {"ids"}
    drafted = result.summary_of("γ=3", "1 at a time")
    assert drafted.acceptance is not None
    assert drafted.acceptance.rate.value == pytest.approx(4 / 6)
    assert drafted.acceptance.by_position == (1.0, 1.0, 0.0)
    assert drafted.orchestration_share is not None
    assert drafted.orchestration_share.value == pytest.approx(0.75)
    assert drafted.goodput_per_s is not None
    assert result.about["server"] == "Triton 2.51.0"
    assert read_csv(table.read_text()) == rows(result)
    shown = capsys.readouterr().out
    for words in ("γ=0", "1 at a time", "200/s", "first token, ms", "r: accepted / proposed", "3 prompts"):
        assert words in shown, words


def test_json_and_csv_on_stdout_are_all_there_is_on_it(
    url: str, prompts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["bench", url, "--prompts", prompts, "--num-draft-tokens", "0", *QUICK, "--json", "-"])
    assert json.loads(capsys.readouterr().out)["arms"][0]["name"] == "γ=0"
    main(["bench", url, "--prompts", prompts, "--num-draft-tokens", "0", *QUICK, "--csv", "-"])
    assert capsys.readouterr().out.startswith(
        "load,arm,metric,value,low,high\n1 at a time,γ=0,requests,6,,\n"
    )


def test_a_second_server_is_asked_in_the_same_run(url: str, prompts: str, tmp_path: Path) -> None:
    run = tmp_path / "run.json"
    with ScriptedServer(talk) as other:
        main(
            [
                "bench",
                url,
                "--against",
                other.url,
                "--prompts",
                prompts,
                "--num-draft-tokens",
                "0,3",
                *QUICK,
                "--json",
                str(run),
            ]
        )
    names = [f"{server} γ={length}" for server in (url, other.url) for length in (0, 3)]
    assert [arm.name for arm in read_result(run).arms] == names


def test_random_tokens_have_no_acceptance(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run.json"
    main(["bench", url, "--random-tokens", "7", "--num-draft-tokens", "0,3", *QUICK, "--json", str(run)])
    result = read_result(run)
    assert (result.prompts.random_tokens, result.prompts.count) == (True, 16)
    assert all(summary.acceptance is None for summary in result.summaries)
    shown = capsys.readouterr().out
    assert "note: acceptance is not reported: the prompts are random tokens" in shown
    assert "α" not in shown


def test_a_pair_is_served_for_the_run(built_pair: EnginePair, prompts: str, tmp_path: Path) -> None:
    run = tmp_path / "run.json"
    main(["bench", str(built_pair.path), "--prompts", prompts, *QUICK, "--json", str(run)])
    result = read_result(run)
    assert [arm.num_draft_tokens for arm in result.arms] == [0, 5, -1]
    assert result.notes[0].startswith("2 blocks: ")
    assert not any("same answer" in note for note in result.notes)
    assert all(trial.ok and trial.tokens for trial in result.trials)
    shares = [summary.orchestration_share for summary in result.summaries]
    assert all(share is not None and 0 < share.value < 1 for share in shares)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--num-draft-tokens", "0,x"],
            "found '0,x', expected numbers from 0 to 1024 or auto or default, with commas",
        ),
        (["--num-draft-tokens", "3,3"], "found '3,3', expected each number once"),
        (["--rate", "1,1.0000000001"], "found '1,1.0000000001', expected each number once, to six digits"),
        (["--concurrency", "0"], "found '0', expected numbers from 1 to 1024"),
        (["--concurrency", "1,100000000"], "expected numbers from 1 to 1024"),
        (["--rate", "nan"], "found 'nan', expected numbers from 0.001"),
        (["--rate", "0"], "found '0', expected numbers from 0.001"),
        (["--latency-bound", "nan"], "'nan' is not a number"),
        (["--blocks", "0"], "0 is not in the range"),
        (["--json", "-", "--csv", "-"], "would both be on stdout"),
        (["--json", "/nowhere/run.json"], "there is no folder /nowhere"),
        (["--json", "run.out", "--csv", "./run.out"], "found one file for several of --json, --csv, --html"),
        (["--plots", "/dev/null/plots"], "/dev/null/plots: cannot be made"),
    ],
)
def test_wrong_usage_is_said_before_anything_is_asked(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended("127.0.0.1:1", *arguments) == 2
    assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_openais_api_is_asked_beside_a_server_and_not_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("http://127.0.0.1:1/v1") == 2
    assert "with --against" in capsys.readouterr().err


def test_a_draft_length_above_the_pairs_is_wrong_usage(
    built_pair: EnginePair, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(built_pair.path, "--num-draft-tokens", "0,99") == 2
    assert "--num-draft-tokens goes to 99, the pair to" in capsys.readouterr().err


def test_a_draft_length_above_the_servers_is_its_refusal(
    url: str, prompts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(url, "--prompts", prompts, "--num-draft-tokens", "0,99", *QUICK) == 1
    assert "num_draft_tokens is 99, at most 8" in capsys.readouterr().err


def test_a_server_that_is_not_there_and_no_prompts_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        # Bound and not listening: nobody else gets the port, and whoever connects is refused.
        taken.bind(("127.0.0.1", 0))
        assert ended(f"127.0.0.1:{taken.getsockname()[1]}", "--num-draft-tokens", "0") == 1
    assert capsys.readouterr().err.startswith("trtspec: ")
    empty = tmp_path / "empty.txt"
    empty.write_text("\n\n")
    assert ended("127.0.0.1:1", "--prompts", empty) == 1
    assert capsys.readouterr().err == f"trtspec: {empty}: found no prompts, expected one a line\n"


def test_a_request_that_a_busy_server_turned_away_is_counted_and_not_asked_again(
    prompts: str, tmp_path: Path
) -> None:
    def busy_for_two(asked: Asked) -> Iterator[Step | Fault]:
        if asked.prompt == "two":
            yield Fault("busy: 64 in flight", "UNAVAILABLE")
        else:
            yield from talk(asked)

    run = tmp_path / "run.json"
    with ScriptedServer(busy_for_two) as server:
        main(
            ["bench", server.url, "--prompts", prompts, "--num-draft-tokens", "0", *QUICK, "--json", str(run)]
        )
        assert len(server.asked) == 3 * 3  # warm-up and two blocks
    assert read_result(run).summaries[0].failed == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_report_that_cannot_be_written_is_named_and_hinders_no_other(
    url: str, prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    csv = tmp_path / "run.csv"
    assert ended(url, "--prompts", prompts, *QUICK, "--json", "/dev/full", "--csv", csv) == 1
    assert "/dev/full: cannot be written: No space left on device" in capsys.readouterr().err
    assert csv.read_text().startswith("load,arm,metric")


@pytest.mark.parametrize("stopper", [KeyboardInterrupt, Fault("the engine is gone", "UNAVAILABLE")])
def test_what_was_measured_is_written_when_the_run_is_stopped(
    stopper: object, prompts: str, tmp_path: Path
) -> None:
    asked = 0

    def dying(request: Asked) -> Iterator[Step | Fault]:
        nonlocal asked
        asked += 1
        if asked <= 2 * 3:  # warm-up and a block
            yield from talk(request)
        elif isinstance(stopper, Fault):
            yield stopper
        else:
            os.kill(os.getpid(), signal.SIGINT)
            yield Step("x", [1])

    run = tmp_path / "run.json"
    with ScriptedServer(dying) as server:
        options = ("--prompts", prompts, "--num-draft-tokens", "0", *QUICK, "--json", run)
        assert ended(server.url, *options) == (1 if isinstance(stopper, Fault) else 130)
    result = read_result(run)
    assert (result.settings.blocks, result.summaries[0].requests) == (1, 3)
    assert result.notes[0].startswith("stopped in block 2 of 2: ")


@pytest.mark.parametrize("fails", ["two", "one"])
def test_what_a_server_says_does_not_steer_the_terminal(
    fails: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def hostile(asked: Asked) -> Iterator[Step | Fault]:
        if asked.prompt == fails:
            yield Fault("no\x1b[2J\x1b]0;title\x07", "UNAVAILABLE")
        else:
            yield from talk(asked)

    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\ntwo\n" if fails == "two" else "one\n")
    with ScriptedServer(hostile) as server:
        arguments = (server.url, "--prompts", prompts, "--num-draft-tokens", "0", *QUICK)
        if fails == "two":
            main(["bench", *map(str, arguments)])
        else:
            assert ended(*arguments) == 1
    shown = "".join(capsys.readouterr())
    assert "\\x1b[2J" in shown
    assert not {"\x1b", "\x07"} & set(shown)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    scripts = {
        "before": noisy(1),
        "same": noisy(2),
        "slower": noisy(3, slower=1.3),
        "faster": noisy(4, slower=0.7),
    }
    results = {name: result_of(script, blocks=6) for name, script in scripts.items()}
    results["other"] = result_of(noisy(5), max_tokens=9)
    for name, result in results.items():
        (folder / f"{name}.json").write_text(json.dumps(result.as_dict()))
    return {name: folder / f"{name}.json" for name in results}


def test_compare_exits_with_3_where_something_is_worse(
    runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended("compare", runs["before"], runs["slower"]) == 3
    shown = capsys.readouterr().out
    assert "worse, 0 better, of 12 differences" in shown
    assert "Holm" in shown


@pytest.mark.parametrize("after", ["before", "same", "faster"])
def test_compare_exits_with_0_where_nothing_is_worse(
    runs: dict[str, Path], after: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["bench", "compare", str(runs["before"]), str(runs[after]), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["ok"]
    assert ("better" in {one["verdict"] for one in found["differences"]}) == (after == "faster")


def test_compare_exits_with_1_for_runs_of_other_things_and_for_no_results(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended("compare", runs["before"], runs["other"]) == 1
    assert "max_tokens: found 41 in the first result and 9 in the second" in capsys.readouterr().err
    (tmp_path / "none.json").write_text("{}")
    assert ended("compare", runs["before"], tmp_path / "none.json") == 1
    assert "no result of `trtspec bench --json`" in capsys.readouterr().err


def test_compare_without_files_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("compare") == 2
    assert "Missing argument 'A'" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--help"], ["compare", "--help"]])
def test_help_has_an_example(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    main(["bench", *arguments])
    assert "Example:\n    trtspec bench " in capsys.readouterr().out
