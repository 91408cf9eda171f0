"""γ by the number of requests in flight: how it is written, and what an answer makes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from trtspec.cli import trtspec
from trtspec.engines.pair import EnginePair
from trtspec.errors import RepositoryError
from trtspec.triton_repo.lint import lint
from trtspec.triton_repo.repository import RepositoryOptions, write_repository
from trtspec.triton_repo.speculation.adaptive_length import DraftLengths, SharedDraftLength
from trtspec.triton_repo.speculation.draft_length import Step
from trtspec.triton_repo.speculation.draft_table import (
    DraftTable,
    TabledDraftLength,
    longest,
    read_draft_tokens,
)
from trtspec.triton_repo.speculation.request import GenerationRequest, Limits, RequestError

TABLE = DraftTable(((1, 5), (4, 3), (16, 0)))
SIZES = {"vocab_size": "50", "max_seq_len": "100", "draft_max_seq_len": "90", "max_draft_len": "8"}

tables = st.builds(
    lambda first, further: DraftTable(((1, first), *sorted(further.items()))),
    st.integers(0, 32),
    st.dictionaries(st.integers(2, 1024), st.integers(0, 32), max_size=6),
)


@given(tables)
def test_a_table_is_read_as_it_was_written(table: DraftTable) -> None:
    assert read_draft_tokens(str(table)) == table


def test_a_table_may_have_spaces_and_a_number_is_no_table() -> None:
    assert read_draft_tokens(" 1:5, 4 : 3,16:0 ") == TABLE
    assert read_draft_tokens("5") == 5
    assert (longest(TABLE), longest(4)) == (5, 4)


@given(tables, st.integers(1, 2000))
def test_a_row_holds_up_to_the_next_one(table: DraftTable, in_flight: int) -> None:
    reached = {start: length for start, length in table.rows if start <= in_flight}
    assert table.at(in_flight) == reached[max(reached)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("some", "found 'some', expected a number of draft tokens, auto, or a table such as 1:5,4:3,16:0"),
        ("", "found ''"),
        ("-1", "found '-1'"),
        ("1:5,", "found '1:5,'"),
        ("1:5;4:3", "found '1:5;4:3'"),
        ("1:-1", "found '1:-1'"),
        ("1:5,4:auto", "found '1:5,4:auto'"),
        ("1:2:3", "found '1:2:3'"),
        ("1:٣", "found '1:٣'"),
        ("1:" + "9" * 5000, "found '1:999"),
        ("2:5,4:3", "whose rows begin at 2, 4 requests in flight; expected the first to begin at 1"),
        ("0:5,4:3", "begin at 0, 4 requests"),
        ("1:5,16:0,4:3", "begin at 1, 16, 4 requests in flight; .* each further one at more"),
        ("1:5,4:3,4:2", "begin at 1, 4, 4 requests"),
    ],
)
def test_what_is_no_table_is_refused_with_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_draft_tokens(text)


def of(lengths: DraftLengths, table: DraftTable = TABLE) -> SharedDraftLength:
    return lengths.request(TabledDraftLength(table, lambda: lengths.in_flight))


def test_an_answer_follows_the_requests_that_come_and_go_round_by_round() -> None:
    lengths = DraftLengths(8)
    answer = of(lengths)
    assert answer.choose(100) == Step(draft_tokens=5)
    others = [of(lengths) for _ in range(3)]
    assert answer.choose(100) == others[0].choose(100) == Step(draft_tokens=3)
    others += [lengths.request() for _ in range(12)]
    assert answer.off_reason == ""
    assert answer.choose(100) == Step(plain_tokens=100)
    assert answer.off_reason == "the repository sets no draft tokens with 16 in flight (1:5,4:3,16:0)"
    others.pop().close()
    assert answer.choose(100) == Step(draft_tokens=3)
    assert answer.off_reason == ""
    for other in others:
        other.close()
    assert answer.choose(100) == Step(draft_tokens=5)


def test_near_the_end_of_an_answer_fewer_tokens_are_drafted() -> None:
    assert of(DraftLengths(8)).choose(4) == Step(draft_tokens=3)
    assert of(DraftLengths(8)).choose(1) == Step(plain_tokens=1)


def test_a_table_longer_than_the_engine_is_refused() -> None:
    limits = Limits.of(SIZES | {"num_draft_tokens": "1:9,4:0"})
    request = GenerationRequest((1, 2), 8, limits.default_draft_len, ())
    with pytest.raises(RequestError, match="num_draft_tokens is 1:9,4:0; the engine was built for 0 to 8"):
        request.check(limits)
    replace(request, num_draft_tokens=TABLE).check(limits)


def test_a_repository_is_not_written_with_a_table_longer_than_the_engine(
    built_pair: EnginePair, tmp_path: Path
) -> None:
    options = RepositoryOptions(num_draft_tokens=DraftTable(((1, 3), (4, 9))))
    with pytest.raises(RepositoryError, match=r"num_draft_tokens is 1:3,4:9; .* was built for 0 to 8"):
        write_repository(built_pair, tmp_path / "repo", options)
    assert not list(tmp_path.iterdir())


def test_the_command_and_a_recipe_write_the_table_and_lint_agrees(
    built_pair: EnginePair, tmp_path: Path
) -> None:
    (tmp_path / "r.toml").write_text('[repo]\nnum_draft_tokens = "1:5, 4:3, 16:0"\n')
    given = {"said": ("--num-draft-tokens", "1:5,4:3,16:0"), "read": ("--recipe", tmp_path / "r.toml")}
    for name, options in given.items():
        output = tmp_path / name
        arguments = map(str, ("repo", built_pair.path, "--output", output, *options))
        result = CliRunner().invoke(trtspec, list(arguments))
        assert result.exit_code == 0, result.output
        assert 'string_value: "1:5,4:3,16:0"' in (output / "tensorrt_llm_bls" / "config.pbtxt").read_text()
        assert not [finding for finding in lint(output) if finding.rule == "draft.length"]


def test_the_command_refuses_what_is_no_table(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        trtspec, ["repo", "pair", "--output", str(tmp_path / "out"), "--num-draft-tokens", "4:3,1:5"]
    )
    assert result.exit_code == 2
    assert "begin at 4, 1 requests in flight" in " ".join(result.stderr.split())
