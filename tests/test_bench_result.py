"""A benchmark's result reads back as what was written, and by the schema that ships."""

from __future__ import annotations

from importlib.resources import files

from trtspec.client.bench.result import schema


def test_the_schema_that_ships_is_the_one_of_the_result() -> None:
    shipped = (files("trtspec.client.bench") / "result.schema.json").read_text("utf-8")
    assert shipped == schema(), "write bench.result.schema() to client/bench/result.schema.json"
