"""`trtspec repo` and `trtspec repo lint`: arguments, what is printed, exit codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from nvidia_layout import write_layout
from recipe import config
from tensorrt_engines import write_engine, write_pair

from trtspec.cli import main
from trtspec.engines.pair import EnginePair
from trtspec.triton_repo.lint import RULES
from trtspec.triton_repo.repository import write_repository


@pytest.fixture(scope="module")
def tokenizer(demo_pair: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    shutil.copyfile(demo_pair / "target" / "tokenizer.json", folder / "tokenizer.json")
    (folder / "config.json").write_text('{"eos_token_id": 2}')
    return folder


@pytest.fixture(scope="module")
def pair(tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> EnginePair:
    return write_pair(tmp_path_factory.mktemp("compiled") / "pair", tokenizer, target_tp=2)


@pytest.fixture
def nvidia(tokenizer: Path, tmp_path: Path) -> Path:
    for role in ("target", "draft"):
        write_engine(tmp_path / "engines" / role, target=role == "target")
    return write_layout(tmp_path / "nvidia", tmp_path / "engines", tokenizer)


@pytest.fixture
def ours(tokenizer: Path, tmp_path: Path) -> Path:
    return write_repository(write_pair(tmp_path / "pair", tokenizer), tmp_path / "ours")


def spoil(repository: Path) -> None:
    """One error and one warning."""
    file = repository / "tensorrt_llm" / "config.pbtxt"
    text = file.read_text()
    assert "decoupled: true" in text
    file.write_text(text.replace("decoupled: true", "decoupled: false"))
    (repository / "start.sh").write_text("tritonserver --model-repository=.\n")


def ends_with(code: int, *arguments: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    assert stopped.value.code == code


def test_lint_says_that_nothing_is_wrong(ours: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["repo", "lint", str(ours)])
    assert capsys.readouterr().out == f"{ours}: 0 errors, 0 warnings\n"


def test_lint_prints_a_line_a_finding_and_ends_with_3(ours: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoil(ours)
    ends_with(3, "repo", "lint", str(ours))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("start.sh:1: warning unsafe.address: ")
    assert lines[1].startswith("tensorrt_llm/config.pbtxt:")
    assert ": error decoupled.leaves: is not decoupled; " in lines[1]
    assert lines[2:] == [f"{ours}: 1 errors, 1 warnings"]


def test_lint_with_warnings_only_ends_with_0(ours: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (ours / "start.sh").write_text("tritonserver --model-repository=.\n")
    main(["repo", "lint", str(ours)])
    assert capsys.readouterr().out.endswith("0 errors, 1 warnings\n")


def test_lint_prints_one_json_object(ours: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoil(ours)
    ends_with(3, "repo", "lint", str(ours), "--json")
    result = json.loads(capsys.readouterr().out)
    assert result["ok"] is False
    address, decoupled = result["findings"]
    assert (address["rule"], address["severity"], address["line"]) == ("unsafe.address", "warning", 1)
    assert (decoupled["rule"], decoupled["file"]) == ("decoupled.leaves", "tensorrt_llm/config.pbtxt")
    assert decoupled.keys() == {"rule", "severity", "file", "line", "message", "repair"}


def test_lint_lists_its_rules(capsys: pytest.CaptureFixture[str]) -> None:
    main(["repo", "lint", "--rules"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [[rule.id, rule.severity] for rule in RULES]
    main(["repo", "lint", "--rules", "--json"])
    table = json.loads(capsys.readouterr().out)["rules"]
    assert table[0] == {"id": RULES[0].id, "severity": RULES[0].severity, "rule": RULES[0].sentence}


def test_lint_of_no_repository_is_our_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ends_with(1, "repo", "lint", str(tmp_path))
    assert "expected a Triton model repository" in capsys.readouterr().err


def test_a_pair_in_a_folder_called_lint_needs_its_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ends_with(2, "repo", "lint", "--output", str(tmp_path / "repo"))
    ends_with(1, "repo", "./lint", "--output", str(tmp_path / "repo"))
    assert "lint: no such folder; expected an engine pair" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["repo", "lint"], "give a REPOSITORY, or --rules"),
        (["repo", "pair"], "Missing option '--output'"),
        (["repo", "--output", "x"], "give either a PAIR or --from-nvidia DIR"),
        (["repo", "pair", "--from-nvidia", "y", "--output", "x"], "give either a PAIR or --from-nvidia DIR"),
        (["repo", "pair", "--output", "x", "--target-gpus", "0,a"], "'0,a' is not GPU numbers"),
        (["repo", "pair", "--output", "x", "--launch-mode", "mpi"], "'mpi' is not one of"),
        (["repo", "pair", "--output", "x", "--target-timeout", "0"], "0.0 is not in the range 0<x<=86400"),
        (["repo", "pair", "--output", "x", "--draft-timeout", "nan"], "'nan' is not a number"),
    ],
)
def test_wrong_usage_ends_with_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    ends_with(2, *arguments)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["repo", "--help"], ["repo", "-h"]])
def test_help_shows_the_options_of_writing_and_the_way_to_lint(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    main(arguments)
    printed = capsys.readouterr().out
    assert printed.splitlines()[0].endswith(" repo [PAIR] --output DIR | lint REPO")
    assert all(text in printed for text in ("--from-nvidia", "--fast-logits", "Commands:\n  lint"))
    assert "  write" not in printed


def test_placement_reaches_the_repository(
    pair: EnginePair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "repo"
    main(
        [
            *("repo", str(pair.path), "--output", str(output), "--fast-logits"),
            *("--target-gpus", "1,2", "--draft-gpus", "3", "--json"),
        ]
    )
    result = json.loads(capsys.readouterr().out)
    assert result["repository"] == str(output)
    assert result["command"].startswith("docker run ")
    target = config(output, "tensorrt_llm").parameters
    assert target["gpu_device_ids"].string_value == "1,2"
    assert target["participant_ids"].string_value == "2,3"


def test_fast_logits_need_engines_that_give_logits(
    tmp_path: Path, built_pair: EnginePair, capsys: pytest.CaptureFixture[str]
) -> None:
    silent = write_pair(tmp_path / "pair", built_pair.tokenizer, gather_generation_logits=False)
    with pytest.raises(SystemExit) as stop:
        main(["repo", str(silent.path), "--output", str(tmp_path / "repo"), "--fast-logits"])
    assert stop.value.code == 1
    said = capsys.readouterr().err
    assert "tensorrt_llm, tensorrt_llm_draft gives none; build with --acceptance logits" in said


def test_how_to_serve_is_said(pair: EnginePair, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "repo"
    main(["repo", str(pair.path), "--output", str(output)])
    printed = capsys.readouterr().out
    assert printed.startswith(f"{output}: ready; serve it with\n  docker run ")
    assert printed.rstrip().endswith("sh /repository/launch.sh")


def test_taking_over_says_what_was_wrong_and_what_is_left(
    nvidia: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = nvidia / "tensorrt_llm" / "config.pbtxt"
    file.write_text(file.read_text().replace("decoupled: false", "decoupled: true"))
    output = tmp_path / "repo"
    main(["repo", "--from-nvidia", str(nvidia), "--output", str(output), "--num-draft-tokens", "3"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{nvidia}: 1 findings"
    assert "error decoupled.nvidia" in lines[1]
    assert lines[2] == f"{output}: 0 findings"
    assert config(output, "tensorrt_llm_bls").parameters["num_draft_tokens"].string_value == "3"


def test_taking_over_prints_one_json_object(
    nvidia: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "repo"
    main(["repo", "--from-nvidia", str(nvidia), "--output", str(output), "--json"])
    result = json.loads(capsys.readouterr().out)
    assert (result["repository"], result["found"], result["left"]) == (str(output), [], [])
