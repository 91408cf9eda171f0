"""A benchmark's result as one HTML page that needs nothing but itself."""

from __future__ import annotations

from trtspec.client.bench.plots import pictures
from trtspec.client.bench.result import BenchResult
from trtspec.client.bench.table import table
from trtspec.page import render
from trtspec.theory import definitions


def to_html(result: BenchResult) -> str:
    """Return the page: the numbers, how they were measured, pictures, and what the symbols mean.

    Raises:
        OutputError: when jinja2 is not installed.
        ClientError: when matplotlib is not.
    """
    return render(
        "trtspec.client.bench",
        "report.html.j2",
        result=result,
        tables={load.name: table(result, load) for load in result.loads},
        pictures=pictures(result),
        definitions=definitions("γ", "r", "α", "E"),
    )
