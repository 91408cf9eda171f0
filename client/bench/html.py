"""A benchmark's result as one HTML page that needs nothing but itself."""

from __future__ import annotations

from importlib.resources import files

from trtspec.client.bench.plots import pictures
from trtspec.client.bench.result import BenchResult
from trtspec.client.bench.table import table
from trtspec.errors import ClientError
from trtspec.theory import definitions


def to_html(result: BenchResult) -> str:
    """Return the page: the numbers, how they were measured, pictures, and what the symbols mean.

    Raises:
        ClientError: when jinja2 or matplotlib is not installed.
    """
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError as error:
        raise ClientError(
            "bench --html: jinja2 is not installed; run: pip install 'trtspec[bench]'"
        ) from error
    source = (files("trtspec.client.bench") / "report.html.j2").read_text("utf-8")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(source).render(
        result=result,
        tables={load.name: table(result, load) for load in result.loads},
        pictures=pictures(result),
        definitions=definitions("γ", "r", "α", "E"),
    )
