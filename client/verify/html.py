"""A report as one HTML page that needs nothing but itself."""

from __future__ import annotations

from trtspec.client.verify.report import VerifyReport, describe, name_of
from trtspec.page import render


def to_html(report: VerifyReport) -> str:
    """Return the page: every part's findings, and each difference with what was written before it.

    Raises:
        OutputError: when jinja2 is not installed.
    """
    parts = {part: [f for f in report.others if f.part == part] for part in _parts(report)}
    names = {"describe": describe, "name_of": name_of}
    return render("trtspec.client.verify", "report.html.j2", report=report, parts=parts, **names)


def _parts(report: VerifyReport) -> list[str]:
    return list(dict.fromkeys(finding.part for finding in report.others))
