"""`trtspec tune` from the shell: the formulas, a prediction, what it writes into a recipe, wrong usage."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner, Result

from trtspec.build.tune.fitting import Sample, Setting
from trtspec.cli import trtspec
from trtspec.cli.parts.tune_server import ask as ask_server
from trtspec.cli.parts.tune_server import longest_draft
from trtspec.client import Client, Generation, RequestRefused, Speculation
from trtspec.engines.pair import EnginePair
from trtspec.errors import BuildError, CheckpointError, ClientError, EngineError, RecipeError
from trtspec.recipe.edit import set_key
from trtspec.recipe.file import read_recipe
from trtspec.theory import Costs, best, tokens_per_target_call
from trtspec.triton_repo.server import Server


def run(*arguments: object) -> Result:
    return CliRunner().invoke(trtspec, ["tune", *map(str, arguments)])


def as_json(*arguments: object) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_the_formulas_are_shown_for_every_draft_length() -> None:
    found = as_json("--alpha", 0.8, "--cost-ratio", 0.05)
    assert [row["num_draft_tokens"] for row in found["rows"]] == list(range(9))
    assert found["rows"][4]["tokens_per_target_call"] == pytest.approx(tokens_per_target_call(0.8, 4))
    expected = best(0.8, Costs(0.05))
    assert found["best"] == {"num_draft_tokens": expected.num_draft_tokens, "speed_up": expected.speed_up}


def test_the_formulas_are_shown_for_one_draft_length() -> None:
    result = run(
        "--alpha", 0.6, "--cost-ratio", 0.1, "--gamma", 3, "--verify-cost", 0.02, "--round-cost", 0.1
    )
    assert result.exit_code == 0
    # E = 1 + 0.6 + 0.36 + 0.216; S = E / (1 + 3 · 0.12 + 0.1)
    assert "│ 3 │ 2.18 │ 0.39 │ 1.49 │" in result.stdout
    assert "│ 4 │" not in result.stdout


@pytest.mark.parametrize("length", [0, 1])
def test_the_best_length_does_not_depend_on_which_one_is_shown(length: int) -> None:
    every = as_json("--alpha", 0.8, "--cost-ratio", 0.05)
    assert as_json("--alpha", 0.8, "--cost-ratio", 0.05, "--gamma", length)["best"] == every["best"]


def test_a_draft_that_cannot_gain_is_told_so() -> None:
    result = run("--alpha", 0.1, "--cost-ratio", 0.5)
    assert result.exit_code == 0
    assert result.stdout.endswith("do not speculate: no draft length gains\n")


def test_published_figures_are_shown_with_what_is_left_over() -> None:
    found = as_json("--published")["published"]
    row = next(row for row in found if row["pair"] == "T5-XXL + T5-large" and row["task"] == "EN-DE, greedy")
    assert row["predicted"] == pytest.approx(2.50, abs=0.01)
    assert row["residual"] == pytest.approx(1.7 / 2.50 - 1, abs=0.01)
    shown = run("--published").stdout
    assert (
        "T5-XXL + T5-large │ EN-DE, greedy   │ 7 │ 0.110 │ 0.82 │ 2.5      │ 2.50      │ 1.70       │ -32%"
        in shown
    )
    assert "Llama 3.3 70B + 3.2 1B" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give TARGET and DRAFT"),
        (("a", "b", "c"), "give TARGET and DRAFT"),
        (("a", "b", "--published"), "give TARGET and DRAFT"),
        (("--published", "--alpha", 0.5), "give TARGET and DRAFT"),
        (("--alpha", 0.5), "--alpha and --cost-ratio belong together"),
        (("--cost-ratio", 0.5), "--alpha and --cost-ratio belong together"),
        (("--alpha", 1.0, "--cost-ratio", 0.1), "1.0 is not in the range 0<=x<1"),
        (("--alpha", "nan", "--cost-ratio", 0.1), "nan"),
        (("--alpha", 0.5, "--cost-ratio", 0), "0.0 is not in the range 0<x<=1000"),
        (("--alpha", 0.5, "--cost-ratio", -1), "-1.0 is not in the range 0<x<=1000"),
        (("--alpha", 0.5, "--cost-ratio", 0.1, "--gamma", -1), "-1 is not in the range 0<=x<=32"),
        (("--alpha", 0.5, "--cost-ratio", 0.1, "--gamma", 33), "33 is not in the range 0<=x<=32"),
        (("--alpha", 0.5, "--cost-ratio", "inf"), "inf is not in the range 0<x<=1000"),
        (("--alpha", 0.5, "--cost-ratio", 0.1, "--write", "r.toml"), "--write: of no use with --alpha"),
        (("--published", "--gamma", 3), "--gamma: of no use with --published"),
        (("a", "b", "--gamma", 3, "--points", 5), "--gamma, --points: of no use with TARGET and DRAFT"),
        (("a", "--device", "cpu"), "--device: of no use with a PAIR or URL"),
        (("a", "b", "--concurrency", "0,2"), "expected numbers from 1 to 1024"),
        (("a", "b", "--concurrency", "two"), "expected numbers from 1 to 1024"),
    ],
)
def test_wrong_usage_is_told_and_ends_with_2(arguments: tuple[object, ...], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())


def test_a_pair_is_predicted_and_written_into_a_recipe(demo_pair: Path, tmp_path: Path) -> None:
    for name in ("code", "prose"):
        (tmp_path / f"{name}.txt").write_text("def f(\nimport os\nclass A:\n")
    arguments = (
        *(demo_pair / "target", demo_pair / "draft", "--max-tokens", 6, "--max-draft-tokens", 2),
        *("--concurrency", "1,2", "--prompts", tmp_path / "code.txt", "--prompts", tmp_path / "prose.txt"),
        *("--write", tmp_path / "recipe.toml"),
    )
    found = as_json(*arguments)
    code, prose = (str(tmp_path / f"{name}.txt") for name in ("code", "prose"))
    assert set(found["datasets"]) == {code, prose}
    assert found["datasets"][code]["prompts"] == 3
    assert {(p["num_draft_tokens"], p["concurrency"]) for p in found["points"]} == {
        (length, flying) for length in range(3) for flying in (1, 2)
    }
    advised = found["advice"]["num_draft_tokens"]
    assert read_recipe(tmp_path / "recipe.toml").section("repo") == {"num_draft_tokens": advised}
    shown = run(*arguments)
    assert shown.exit_code == 0
    assert "How often the draft agrees" in shown.stdout
    assert "num_draft_tokens = " in shown.stdout
    assert f"{code}: 3 answers of the target, read by the draft" in shown.stderr


@pytest.mark.parametrize("advised", [3, "1:5,4:3,16:0"])
def test_what_was_advised_is_what_a_repository_answers_with(
    built_pair: EnginePair, tmp_path: Path, advised: int | str
) -> None:
    recipe = tmp_path / "recipe.toml"
    set_key(recipe, "repo", "num_draft_tokens", advised, ["why"])
    output = tmp_path / "repo"
    result = CliRunner().invoke(
        trtspec, ["repo", str(built_pair.path), "--output", str(output), "--recipe", str(recipe)]
    )
    assert result.exit_code == 0, result.output
    assert f'string_value: "{advised}"' in (output / "tensorrt_llm_bls" / "config.pbtxt").read_text()


def test_a_data_set_is_a_shipped_one_or_a_file_of_texts(demo_pair: Path, tmp_path: Path) -> None:
    pair = (demo_pair / "target", demo_pair / "draft")
    talk = tmp_path / "talk.jsonl"
    talk.write_text('{"messages": [{"role": "user", "content": "Hello"}]}')
    assert "found messages, expected texts" in str(run(*pair, "--prompts", talk).exception)
    assert "expected a file of prompts or one of chat, code" in str(
        run(*pair, "--prompts", "chatt").exception
    )
    found = run(*pair, "--prompts", "code", "--max-tokens", 3, "--max-draft-tokens", 1, "--json")
    assert json.loads(found.stdout)["datasets"]["code"]["prompts"] == 18


def test_an_empty_file_of_prompts_is_an_error(demo_pair: Path, tmp_path: Path) -> None:
    (tmp_path / "none.txt").write_text("\n")
    result = run(demo_pair / "target", demo_pair / "draft", "--prompts", tmp_path / "none.txt")
    assert result.exit_code == 1
    assert "found no prompts" in str(result.exception)


def test_a_folder_that_is_no_checkpoint_is_an_error(demo_pair: Path, tmp_path: Path) -> None:
    result = run(demo_pair / "target", tmp_path)
    assert isinstance(result.exception, CheckpointError)


def test_answers_shorter_than_a_round_are_an_error(demo_pair: Path) -> None:
    result = run(demo_pair / "target", demo_pair / "draft", "--max-tokens", 8)
    assert isinstance(result.exception, BuildError)
    assert "max_tokens is 8, expected more than the 8 draft tokens" in str(result.exception)


RECIPE = """# Ours.
[build]
target = "a"  # keep

[repo]
# γ of a request that asks for none.
# num_draft_tokens = …
pair = "work/pair"
"""


def test_a_key_that_is_commented_out_is_set_and_the_rest_stays(tmp_path: Path) -> None:
    file = tmp_path / "recipe.toml"
    file.write_text(RECIPE)
    file.chmod(0o640)
    set_key(file, "repo", "num_draft_tokens", 4, ["because"])
    assert file.read_text() == RECIPE.replace("# num_draft_tokens = …", "#: because\nnum_draft_tokens = 4")
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_a_key_is_set_again_without_leaving_what_was_said_of_it(tmp_path: Path) -> None:
    file = tmp_path / "recipe.toml"
    file.write_text(RECIPE)
    set_key(file, "repo", "num_draft_tokens", 4, ["because", "and"])
    set_key(file, "repo", "num_draft_tokens", "auto", ["now"])
    assert file.read_text() == RECIPE.replace("# num_draft_tokens = …", '#: now\nnum_draft_tokens = "auto"')


@pytest.mark.parametrize(
    "before", ["", '[build]\ntarget = "a"\n', '[repo]\npair = "p"\n\n[build]\ndraft = "b"']
)
def test_a_key_is_added_where_there_was_none(tmp_path: Path, before: str) -> None:
    file = tmp_path / "recipe.toml"
    file.write_text(before)
    said = read_recipe(file)
    set_key(file, "repo", "num_draft_tokens", 2)
    after = read_recipe(file)
    assert after.section("repo") == {**said.section("repo"), "num_draft_tokens": 2}
    assert after.section("build") == said.section("build")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("[repo]\nnum_draft_tokens = 3  # as agreed\n", "[repo]\nnum_draft_tokens = 4  # as agreed\n"),
        ('[repo]\nnum_draft_tokens = "auto" # "as" #2\n', '[repo]\nnum_draft_tokens = 4 # "as" #2\n'),
        (
            "[repo]\n# num_draft_tokens = 5 was too slow\n",
            "[repo]\nnum_draft_tokens = 4\n# num_draft_tokens = 5 was too slow\n",
        ),
        ("[repo]\r\n# mine\r\n", "[repo]\r\nnum_draft_tokens = 4\r\n# mine\r\n"),
        ("[repo]\n# a\u2028b\n", "[repo]\nnum_draft_tokens = 4\n# a\u2028b\n"),
    ],
)
def test_comments_and_ends_of_lines_stay(tmp_path: Path, before: str, after: str) -> None:
    file = tmp_path / "r.toml"
    file.write_bytes(before.encode())
    set_key(file, "repo", "num_draft_tokens", 4)
    assert file.read_bytes().decode() == after


def test_a_link_to_a_recipe_stays_one(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text("[repo]\n")
    (tmp_path / "link.toml").symlink_to("r.toml")
    set_key(tmp_path / "link.toml", "repo", "num_draft_tokens", 4)
    assert (tmp_path / "link.toml").is_symlink()
    assert read_recipe(tmp_path / "r.toml").section("repo") == {"num_draft_tokens": 4}


@pytest.mark.parametrize(
    ("name", "before", "message"),
    [
        ("r.toml", '["repo"]\n', "is not on a line of its own"),
        ("none/r.toml", None, "cannot be written: No such file"),
    ],
)
def test_a_recipe_that_cannot_be_written_is_refused_before_anything_is_measured(
    demo_pair: Path, tmp_path: Path, name: str, before: str | None, message: str
) -> None:
    if before is not None:
        (tmp_path / name).write_text(before)
    files = set(tmp_path.iterdir())
    result = run(demo_pair / "target", demo_pair / "draft", "--write", tmp_path / name)
    assert message in str(result.exception)
    assert "answers of the target" not in result.stderr
    assert set(tmp_path.iterdir()) == files


def test_a_recipe_is_made_where_there_is_none(tmp_path: Path) -> None:
    set_key(tmp_path / "new.toml", "repo", "num_draft_tokens", 0)
    assert (tmp_path / "new.toml").read_text() == "[repo]\nnum_draft_tokens = 0\n"


@pytest.mark.parametrize(
    ("before", "message"),
    [
        ("repo = { num_draft_tokens = 3 }\n", "not on a line of its own"),
        ("repo.num_draft_tokens = 3\n", "not on a line of its own"),
        ("[repo]\nnonsense = 1\n", "repo.nonsense is unknown"),
        ("not toml", "not TOML"),
    ],
)
def test_a_recipe_that_cannot_be_edited_stays_as_it_was(tmp_path: Path, before: str, message: str) -> None:
    file = tmp_path / "recipe.toml"
    file.write_text(before)
    with pytest.raises(RecipeError, match=message):
        set_key(file, "repo", "num_draft_tokens", 2)
    assert file.read_text() == before
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.toml"]


def test_a_recipe_in_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="cannot be written"):
        set_key(tmp_path / "none" / "recipe.toml", "repo", "num_draft_tokens", 2)


def test_a_pair_is_served_and_measured(built_pair: EnginePair, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("def f(\nimport os\n")
    found = as_json(
        *(built_pair.path, "--prompts", tmp_path / "prompts.txt", "--max-tokens", 8),
        *(
            "--max-draft-tokens",
            2,
            "--concurrency",
            "1,2",
            "--points",
            5,
            "--write",
            tmp_path / "recipe.toml",
        ),
    )
    measured = found["measured"]
    assert {(one["num_draft_tokens"], one["concurrency"]) for one in measured} >= {(0, 1), (0, 2), (2, 1)}
    assert all(one["tokens_per_s"] > 0 and one["fitted_tokens_per_s"] > 0 for one in measured)
    assert len(found["acceptance_by_position"]) == 2
    assert len(found["points"]) == 6
    advised = found["advice"]["num_draft_tokens"]
    assert read_recipe(tmp_path / "recipe.toml").section("repo") == {"num_draft_tokens": advised}


def test_a_running_server_is_measured(live_server: Server, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("def f(\nimport os\n")
    result = run(
        *(live_server.grpc_url, "--prompts", tmp_path / "prompts.txt", "--max-tokens", 8),
        *("--max-draft-tokens", 1, "--concurrency", "1", "--points", 5),
    )
    assert result.exit_code == 0, result.output
    assert "turn 1 of 3: γ 0 at 1, γ 1 at 1" in result.stderr
    assert "fitted after" in result.stdout
    *_, command, entry = result.stdout.splitlines()
    assert command.startswith("trtspec repo PAIR --output DIR --num-draft-tokens ")
    assert entry.startswith("num_draft_tokens = ")


def test_no_longer_drafts_are_asked_for_than_the_server_takes(live_server: Server) -> None:
    with Client(live_server.grpc_url) as client:
        assert longest_draft(client, "def f(", 10) == 8
        assert longest_draft(client, "def f(", 3) == 3
        with pytest.raises(RequestRefused, match="no tokens"):
            longest_draft(client, "", 10)


def test_neither_a_pair_nor_a_server_is_an_error(tmp_path: Path) -> None:
    result = run(tmp_path)
    assert isinstance(result.exception, EngineError)
    result = run("127.0.0.1:1", "--max-tokens", 4)
    assert isinstance(result.exception, ClientError)


class AnsweringClient:
    """A double of a client whose answers all have the same counts."""

    def __init__(self, speculation: Speculation | None) -> None:
        self._speculation = speculation
        self.options: dict[str, Any] = {}

    def generate_many(self, prompts: list[str], **options: Any) -> list[Generation]:
        self.options = options
        return [Generation("", token_ids=(1, 2, 3), speculation=self._speculation) for _ in prompts]


def ask(client: AnsweringClient, setting: Setting) -> Sample:
    return ask_server(cast(Client, client), ["a", "b"], 3, setting)


def test_counts_of_all_answers_are_added_up() -> None:
    client = AnsweringClient(Speculation(2, 5, 3, accepted_per_position=(2, 1)))
    found = ask(client, Setting(3, 2))
    assert (found.tokens, found.rounds, found.accepted) == (6, 4, 6)
    assert found.kept == ((2, 2, 1), (2, 2, 1))
    assert found.seconds > 0
    assert client.options == {"concurrency": 2, "max_tokens": 3, "num_draft_tokens": 3}


def test_a_server_that_does_not_count_cannot_be_measured() -> None:
    with pytest.raises(ClientError, match="does not say how many draft tokens it kept"):
        ask(AnsweringClient(None), Setting(2, 1))


def test_a_server_whose_draft_fails_cannot_be_measured() -> None:
    client = AnsweringClient(Speculation(0, 0, 0, off_reason="the draft failed: no memory"))
    with pytest.raises(ClientError, match="went on without its draft: the draft failed: no memory"):
        ask(client, Setting(2, 1))
    assert ask(client, Setting(0, 1)).tokens == 6
