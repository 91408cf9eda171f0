"""A benchmark's result reads back as what was written, and by the schema that ships."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from bench_results import read_csv, result_of

from trtspec.client import InvalidArgument, ServerTimes, Speculation
from trtspec.client.bench.result import Arrival, BenchResult, Trial, read_result, schema
from trtspec.client.bench.rows import Row, rows, to_csv


@pytest.fixture(scope="module")
def result() -> BenchResult:
    return result_of()


def test_the_schema_that_ships_is_the_one_of_the_result() -> None:
    shipped = (files("trtspec.client.bench") / "result.schema.json").read_text("utf-8")
    assert shipped == schema(), "write bench.result.schema() to client/bench/result.schema.json"


def test_every_field_of_the_result_is_in_the_schema(result: BenchResult) -> None:
    described = json.loads(schema())
    assert set(described["properties"]) == set(asdict(result))
    assert set(described["$defs"]["Trial"]["properties"]) == set(asdict(result.trials[0]))
    assert set(described["$defs"]["Summary"]["properties"]) == set(asdict(result.summaries[0]))


def test_a_result_reads_back_as_what_was_written(result: BenchResult, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps(result.as_dict()))
    assert read_result(file) == result


def test_the_numbers_read_back_from_csv_as_what_was_written(result: BenchResult) -> None:
    written = rows(result)
    assert read_csv(to_csv(result)) == written
    assert {row.metric for row in written} >= {"tokens_per_s", "ttft_s p50", "itl_s p99", "e2e_s ratio", "α"}
    assert Row("1 at a time", "γ=0", "requests", 24) in written


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "its text: Invalid JSON"),
        ("[" * 100_000, "its text: Invalid JSON"),
        ("{}", "about: Field required; 8 faults in all"),
        ('{"format": 2}', "Field required"),
    ],
)
def test_what_is_no_result_is_refused_by_name(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text(text)
    with pytest.raises(
        InvalidArgument, match=rf"run\.json: no result of `trtspec bench --json`: .*{message}"
    ):
        read_result(file)
    with pytest.raises(InvalidArgument, match=r"none\.json: cannot be read: No such file"):
        read_result(tmp_path / "none.json")


def test_unknown_keys_are_refused(result: BenchResult, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps({**result.as_dict(), "secret": 1}))
    with pytest.raises(InvalidArgument, match="secret: "):
        read_result(file)


def with_first(result: BenchResult, kind: str, **changes: object) -> dict[str, Any]:
    changed = result.as_dict()
    changed[kind][0].update(changes)
    return changed


def test_numbers_that_are_none_are_refused(result: BenchResult, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps(with_first(result, "trials", ended_s=float("nan"))))
    with pytest.raises(InvalidArgument, match=r"trials\.0\.ended_s: Input should be a finite number"):
        read_result(file)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("trials", {"arm": "γ=9"}, "trials of 'γ=9', '1 at a time', which are not among its arms and loads"),
        ("trials", {"block": 7}, "trials of a segment that is not there"),
        ("trials", {"tokens": -5}, "trial 0: -5 tokens for prompt"),
        ("trials", {"prompt": 99}, "trial 0: 41 tokens for prompt 99 of 12"),
        ("trials", {"ended_s": -1.0}, "trial 0: what came later has the smaller time"),
        ("segments", {"block": 1}, "1 segments more than once"),
        ("segments", {"wall_s": -1.0}, "a segment that took less than no time"),
        ("arms", {"name": "γ=9"}, "segments of 'γ=0', '1 at a time', which are not among"),
    ],
)
def test_a_result_that_contradicts_itself_is_refused(
    result: BenchResult, kind: str, changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps(with_first(result, kind, **changes)))
    with pytest.raises(InvalidArgument, match=f"contradicts itself: {message}"):
        read_result(file)


TRIAL = Trial(
    *("γ=4", "1 at a time", 0, 0),
    due_s=1.0,
    sent_s=1.5,
    ended_s=4.0,
    arrivals=(Arrival(2.0, 3), Arrival(2.5, 4), Arrival(3.5, 4)),
    tokens=11,
    server=ServerTimes(1, 2, 3, 4),
    speculation=Speculation(2, 8, 7),
)


def test_waiting_times_count_from_when_a_request_was_due() -> None:
    assert (TRIAL.ttft_s, TRIAL.e2e_s, TRIAL.tokens_per_s) == (1.0, 3.0, 11 / 3)


def test_latency_between_tokens_is_told_by_response_and_amortised() -> None:
    assert TRIAL.chunk_gaps_s == (0.5, 1.0)
    assert TRIAL.itl_s == 1.5 / 8


def test_a_first_response_of_unknown_size_counts_as_one_token() -> None:
    assert replace(TRIAL, arrivals=(Arrival(2.0, None), Arrival(3.5, None))).itl_s == 1.5 / 10


def test_an_answer_in_one_piece_has_no_latency_between_tokens() -> None:
    whole = replace(TRIAL, arrivals=(Arrival(2.0, 11),))
    assert (whole.chunk_gaps_s, whole.itl_s) == ((), None)
    assert replace(TRIAL, arrivals=(Arrival(2.0, None),)).itl_s is None
    assert (replace(TRIAL, arrivals=()).ttft_s, replace(TRIAL, arrivals=()).itl_s) == (None, None)
