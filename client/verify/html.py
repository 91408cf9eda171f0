"""A report as one HTML page that needs nothing but itself."""

from __future__ import annotations

from importlib.resources import files

from trtspec.client.verify.report import VerifyReport, describe, name_of
from trtspec.errors import ClientError


def to_html(report: VerifyReport) -> str:
    """Return the page: every part's findings, and each difference with what was written before it.

    Raises:
        ClientError: when jinja2 is not installed.
    """
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError as error:
        raise ClientError(
            "verify --html: jinja2 is not installed; run: pip install 'trtspec[build]'"
        ) from error
    source = files("trtspec.client.verify").joinpath("report.html.j2").read_text("utf-8")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    parts = {part: [f for f in report.others if f.part == part] for part in _parts(report)}
    return environment.from_string(source).render(
        report=report, parts=parts, describe=describe, name_of=name_of
    )


def _parts(report: VerifyReport) -> list[str]:
    return list(dict.fromkeys(finding.part for finding in report.others))
