"""Our pages as a browser shows them: legible at 800 pixels, by day and by night, and alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from headless_chromium import WIDTH, Browser
from simulated_results import CLOSED, OPEN, simulated

from trtspec.cli import trtspec
from trtspec.client.bench.html import to_html
from trtspec.client.verify import Finding, VerifyReport
from trtspec.client.verify.html import to_html as verify_to_html
from trtspec.engines.pair import EnginePair

pytestmark = pytest.mark.browser
HOSTILE = "<img src='http://127.0.0.1:1/x'><script>document.title = 'taken'</script>"


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    return Browser(tmp_path)


def written(folder: Path, html: str) -> Path:
    path = folder / "page.html"
    path.write_text(html, "utf-8")
    return path


def test_a_page_that_loads_something_would_be_found_out(browser: Browser, tmp_path: Path) -> None:
    loads = "<img src='http://127.0.0.1:1/x.png'><style>@import 'http://there.invalid/y.css';</style>"
    page = written(tmp_path, f"<title>mine</title>{loads}<body>{HOSTILE}</body>")
    expected = {"http://127.0.0.1:1/x.png", "http://127.0.0.1:1/x", "http://there.invalid/y.css"}
    assert set(browser.look_at(page).loaded) == expected
    assert browser.title_of(page) == "taken"


def test_the_page_of_a_benchmark(browser: Browser, tmp_path: Path) -> None:
    result = simulated((CLOSED[0], CLOSED[1], OPEN[0]), notes=[HOSTILE])
    page = written(tmp_path, to_html(result))
    seen = browser.look_at(page)
    for words in ("Benchmark on code", "tokens/s in total", "not reported", HOSTILE, result.about["command"]):
        assert words in seen.text
    assert seen.page_width <= WIDTH
    # Throughput, latency by two kinds of load, three distributions, acceptance.
    assert len(seen.svgs) == 8
    assert all(600 < width <= WIDTH and height > 300 for width, height in seen.svgs)
    assert browser.title_of(page) == "trtspec bench: code"
    assert {"γ=0", "γ=4", "auto", "theirs", "tokens/s in total", "share of answers"} <= set(seen.svg_text)
    assert seen.loaded == []
    assert seen.broken == []


def test_the_page_of_a_benchmark_is_light_by_day_and_dark_by_night(browser: Browser, tmp_path: Path) -> None:
    page = written(tmp_path, to_html(simulated(CLOSED[:1], prompts=2)))
    day, night = browser.look_at(page), browser.look_at(page, dark=True)
    assert (day.paper, night.ink) == ("rgb(255, 255, 255)", "rgb(230, 237, 243)")
    assert day.paper != night.paper
    assert day.ink != night.ink


def test_the_page_of_a_trace(browser: Browser, built_pair: EnginePair, tmp_path: Path) -> None:
    page = tmp_path / "trace.html"
    arguments = ["trace", "def main(", "--pair", built_pair.path, "--max-tokens", 24, "--html", page]
    done = CliRunner().invoke(trtspec, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    seen = browser.look_at(page)
    for words in ("Speculation, round by round", "accepted", "✗rejected", "★bonus", "def main("):
        assert words in seen.text
    assert seen.page_width <= WIDTH
    assert seen.loaded == []
    assert seen.broken == []


def test_the_page_of_a_verification(browser: Browser, tmp_path: Path) -> None:
    findings = (
        Finding("options", HOSTILE, "defect", "expected a stop, found " + "x" * 400),
        Finding("sampling", "all prompts", "ok", "a total variation of 0.01"),
    )
    page = written(tmp_path, verify_to_html(VerifyReport("the reference", others=findings)))
    seen = browser.look_at(page)
    for words in ("Defects", "the reference", HOSTILE, "a total variation of 0.01"):
        assert words in seen.text
    assert seen.page_width <= WIDTH
    assert seen.loaded == []
    assert seen.broken == []
    assert browser.title_of(page) == "trtspec verify: defects found"
