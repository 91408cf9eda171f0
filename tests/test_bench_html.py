"""The page of a benchmark says what was measured and how, and loads nothing."""

from __future__ import annotations

import re
import sys
from dataclasses import replace

import pytest
from page_parts import Page
from simulated_results import ARMS, CLOSED, OPEN, simulated

from trtspec.client.bench.html import to_html
from trtspec.client.bench.result import Arm, BenchResult
from trtspec.client.bench.table import NOT_REPORTED, SHOWN, Cell, table
from trtspec.client.verify.html import to_html as to_verify_html
from trtspec.client.verify.report import VerifyReport
from trtspec.errors import OutputError
from trtspec.theory import definitions

HOSTILE = '<script src="https://there/x.js">alert(1)</script>$x_{$ &amp;'


@pytest.fixture(scope="module")
def result() -> BenchResult:
    return simulated((CLOSED[1], OPEN[0]), prompts=4, notes=["one of the runs was odd"])


@pytest.fixture(scope="module")
def page(result: BenchResult) -> Page:
    return Page(to_html(result))


def test_the_page_loads_and_runs_nothing(page: Page) -> None:
    assert page.loads == []
    assert page.policy == "default-src 'none'; style-src 'unsafe-inline'"
    assert page.unclosed == []


def test_the_page_has_every_number_of_the_tables(result: BenchResult, page: Page) -> None:
    for load in result.loads:
        lines = table(result, load)
        assert len(lines) > 15
        for line in lines:
            assert [line.title.strip(), *map(str, line.cells)] in page.rows


def test_the_command_and_the_hardware_stand_beside_the_numbers(result: BenchResult, page: Page) -> None:
    assert page.rows[0] == ["command", result.about["command"]]
    assert page.rows[1] == ["hardware", "a machine"]
    assert "one of the runs was odd" in page.text


def test_symbols_are_defined_in_the_words_of_the_theory(page: Page) -> None:
    for symbol, words in definitions("γ", "r", "α", "E").items():
        assert re.search(rf"^{symbol}{re.escape(words)}$", page.text, re.M)


def test_the_page_has_every_picture_with_its_words_as_text(page: Page) -> None:
    titles = (
        "Tokens per second against concurrency",
        "Latency against rate",
        "Distribution of times, 4 at a time",
    )
    for words in (*titles, "Draft tokens accepted, by position", "requests a second", "share of answers"):
        assert words in page.text


def test_what_others_wrote_is_shown_as_text() -> None:
    hostile = Arm(HOSTILE, "here", 2)
    arms = (Arm("_first", "here", 0), hostile)
    html = to_html(simulated(CLOSED[:1], arms=arms, notes=[HOSTILE], prompts=2, model=HOSTILE))
    page = Page(html)
    assert page.loads == []
    assert ["model", HOSTILE] in page.rows
    # In the notes, in a table's head, in three legends.
    assert page.text.count(HOSTILE) >= 5
    assert page.text.count("_first") >= 4


def test_a_server_without_acceptance_is_said_to_report_none(result: BenchResult) -> None:
    lines = {line.title: line.cells for line in table(result, CLOSED[1])}
    theirs = [arm.name for arm in ARMS].index("theirs")
    for symbol in ("r", "α", "E"):
        assert [cell.value == NOT_REPORTED for cell in lines[symbol]] == [False, False, False, True]
    assert lines["r"][0] == Cell("")  # γ = 0 proposes nothing
    assert lines["tokens counted by"][theirs] == Cell("the server")
    assert lines["tokens counted by"][0] == Cell("ids")


def test_numbers_have_three_digits_and_times_are_milliseconds(result: BenchResult) -> None:
    lines = {line.title: line.cells[1] for line in table(result, CLOSED[1])}
    summary = result.summary_of("γ=4", CLOSED[1].name)
    assert summary.e2e_s is not None
    assert summary.acceptance is not None
    assert summary.tokens_per_s is not None
    assert lines["whole answer, ms"].value == f"{1000 * summary.e2e_s.p50.value:.0f}"
    assert lines["r"].value == f"{summary.acceptance.rate.value:.2f}"
    total = summary.tokens_per_s
    assert str(lines["tokens/s in total"]) == f"{total.value:.0f} [{total.low:.0f}, {total.high:.0f}]"
    slow = table(simulated(OPEN[2:], prompts=2), OPEN[2])
    assert not [cell for line in slow for cell in line.cells if "e+" in str(cell)]


def test_failed_requests_and_missing_numbers_are_shown(result: BenchResult) -> None:
    summaries = tuple(replace(one, failed=3, e2e_s=None) for one in result.summaries)
    lines = table(replace(result, summaries=summaries), CLOSED[1])
    assert lines[-1].title == "failed requests"
    assert {cell.value for cell in lines[-1].cells} == {"3"}
    assert SHOWN["e2e_s p50"] not in {line.title for line in lines}


def test_the_page_is_one_everybody_can_read_in_the_dark(result: BenchResult) -> None:
    html = to_html(result)
    assert "color-scheme: light dark" in html
    assert "@media (prefers-color-scheme: dark)" in html
    assert html.count('<svg role="img" aria-label="') == html.count("<svg ") == 7


def test_without_jinja2_one_is_told_how_to_get_it(
    result: BenchResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    for page in (lambda: to_html(result), lambda: to_verify_html(VerifyReport("toy"))):
        with pytest.raises(OutputError, match=r"jinja2, which is not installed; run: pip install 'trtspec\["):
            page()
