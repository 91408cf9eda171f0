"""A benchmark's pictures show its numbers, to everybody, and the same ones each time."""

from __future__ import annotations

import re
import resource
import struct
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from simulated_results import ARMS, CLOSED, OPEN, simulated

from trtspec.client.bench.drawing import DPI, INK, MARKERS, SIZE_INCHES, Picture
from trtspec.client.bench.plots import pictures, write_pictures
from trtspec.client.bench.result import Arm, BenchResult, Estimate
from trtspec.errors import ClientError

LONG = "γ=4 of a server with a rather long name"


@pytest.fixture(scope="module")
def result() -> BenchResult:
    return simulated((*CLOSED, *OPEN), prompts=4)


@pytest.fixture(scope="module")
def shown(result: BenchResult) -> dict[str, Picture]:
    return {picture.name: picture for picture in pictures(result)}


class Ids(HTMLParser):
    """The ids that a page gives, and those that it refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.given: Counter[str] = Counter()
        self.used: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.given.update(str(value) for name, value in attrs if name == "id")
        self.used |= {str(v).lstrip("#") for name, v in attrs if name in ("href", "xlink:href")}
        self.used |= {found for _, v in attrs for found in re.findall(r"url\(#([^)]*)\)", v or "")}


def curves(picture: Picture, panel: int = 0) -> dict[str, Any]:
    """What is drawn for each arm, by its name."""
    axes = picture.figure.axes[panel]
    return dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))


def test_there_is_a_picture_for_each_question(shown: dict[str, Picture]) -> None:
    loads = ("1-at-a-time", "4-at-a-time", "16-at-a-time", "0.5-per-s", "1-per-s", "2-per-s")
    times = [f"times-{load}" for load in loads]
    over_loads = ["throughput", "latency-by-concurrency", "throughput-by-rate", "latency-by-rate"]
    assert list(shown) == [*over_loads, *times, "acceptance"]


def test_throughput_is_drawn_with_its_intervals(result: BenchResult, shown: dict[str, Picture]) -> None:
    for arm in ARMS:
        drawn = curves(shown["throughput"])[arm.name]
        line, _, (bars,) = drawn.lines
        expected = [result.summary_of(arm.name, load.name).tokens_per_s for load in CLOSED]
        known = [one for one in expected if one]
        assert len(known) == len(CLOSED)
        assert list(line.get_ydata()) == [one.value for one in known]
        ends = [(low, high) for (_, low), (_, high) in bars.get_segments()]
        assert ends == [(pytest.approx(one.low), pytest.approx(one.high)) for one in known]
        # Arms stand beside each other, so that none hides another's interval.
        assert list(line.get_xdata()) == pytest.approx([1, 4, 16], rel=0.05)


@pytest.mark.parametrize(("panel", "metric"), [(0, "ttft_s"), (1, "e2e_s")])
def test_latency_is_drawn_in_milliseconds(
    result: BenchResult, shown: dict[str, Picture], panel: int, metric: str
) -> None:
    line = curves(shown["latency-by-rate"], panel)["γ=4"].lines[0]
    found = [getattr(result.summary_of("γ=4", load.name), metric).p50.value for load in OPEN]
    assert list(line.get_ydata()) == pytest.approx([1000 * value for value in found])
    tails = [
        one
        for one in shown["latency-by-rate"].figure.axes[panel].lines
        if one.get_markerfacecolor() == "none"
    ]
    assert len(tails) == len(ARMS)


def test_a_distribution_climbs_at_each_time_that_was_measured(
    result: BenchResult, shown: dict[str, Picture]
) -> None:
    line = curves(shown["times-4-at-a-time"])["auto"]
    times = sorted(1000 * (trial.ttft_s or 0) for trial in result.trials_of("auto", CLOSED[1].name))
    assert list(line.get_xdata())[1:] == pytest.approx(times)
    assert list(line.get_ydata())[-1] == 1


def test_acceptance_is_drawn_for_arms_that_have_one(result: BenchResult, shown: dict[str, Picture]) -> None:
    drawn = curves(shown["acceptance"])
    assert list(drawn) == ["γ=4", "auto"]
    acceptance = result.summary_of("γ=4", CLOSED[0].name).acceptance
    assert acceptance is not None
    assert list(drawn["γ=4"].get_ydata()) == list(acceptance.by_position)
    assert list(drawn["γ=4"].get_xdata()) == [1, 2, 3, 4]


def test_nothing_that_is_drawn_lies_outside_of_its_axes(shown: dict[str, Picture]) -> None:
    for picture in shown.values():
        for axes in picture.figure.axes:
            left, right = axes.get_xlim()
            bottom, top = axes.get_ylim()
            for line in axes.lines:
                xs, ys = line.get_xdata(), line.get_ydata()
                known = [(x, y) for x, y in zip(xs, ys, strict=True) if abs(x) < float("inf")]
                assert known
                assert all(left <= x <= right and bottom <= y <= top for x, y in known), picture.name


def test_arms_differ_by_colour_marker_and_line_style() -> None:
    arms = tuple(Arm(f"γ={n}", "here", n) for n in range(5))
    first = pictures(simulated(CLOSED[:1], arms=arms))[0]
    lines = [drawn.lines[0] for drawn in curves(first).values()]
    for look in ("get_color", "get_marker", "get_linestyle"):
        assert len({getattr(line, look)() for line in lines}) >= 4, look
    assert len({line.get_marker() for line in lines} & set(MARKERS)) == 5


def test_files_are_800_pixels_wide_pngs_and_svgs_with_text(result: BenchResult, tmp_path: Path) -> None:
    small = replace(result, loads=result.loads[:1])
    files = write_pictures(small, tmp_path / "a" / "plots")
    names = ("throughput", "latency-by-concurrency", "times-1-at-a-time", "acceptance")
    assert sorted(file.name for file in files) == sorted(
        f"{n}.{kind}" for n in names for kind in ("png", "svg")
    )
    for file in files:
        if file.suffix == ".png":
            data = file.read_bytes()
            assert data.startswith(b"\x89PNG")
            assert struct.unpack(">I", data[16:20]) == (800,)
        else:
            text = "".join(ElementTree.parse(file).getroot().itertext())
            assert "γ=4" in text


def test_the_same_result_gives_the_same_bytes(result: BenchResult, tmp_path: Path) -> None:
    small = replace(result, loads=result.loads[:1])
    first, second = (write_pictures(small, tmp_path / name) for name in ("one", "two"))
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in second]


def test_pictures_in_one_page_share_no_id_and_take_its_colour(shown: dict[str, Picture]) -> None:
    texts = [shown[name].to_inline_svg() for name in ("throughput", "acceptance", "latency-by-rate")]

    page = Ids()
    for text in texts:
        assert text.startswith('<svg role="img"')
        assert not {INK, "#ffffff", "white"} & set(re.split(r"[ :;\"]", text))
        assert "currentColor" in text
        assert "http" not in text
        page.feed(text)
    assert set(page.given.values()) == {1}
    assert page.used
    assert page.used <= set(page.given)


def test_a_long_range_of_times_is_drawn_logarithmically(result: BenchResult) -> None:
    slow = tuple(
        replace(trial, due_s=trial.due_s - 10 * (trial.prompt == 0))
        for trial in result.trials_of("γ=0", CLOSED[0].name)
    )
    only = replace(result, loads=CLOSED[:1], arms=ARMS[:1], trials=slow)
    times = next(picture for picture in pictures(only) if picture.name.startswith("times"))
    assert times.figure.axes[0].get_xscale() == "log"


def test_a_run_without_whole_answers_has_pictures_without_curves(result: BenchResult, tmp_path: Path) -> None:
    failed = tuple(replace(trial, error="no") for trial in result.trials)
    empty = tuple(
        replace(one, tokens_per_s=None, ttft_s=None, itl_s=None, e2e_s=None, acceptance=None)
        for one in result.summaries
    )
    found = pictures(replace(result, trials=failed, summaries=empty))
    over_loads = ["throughput", "latency-by-concurrency", "throughput-by-rate", "latency-by-rate"]
    assert [picture.name for picture in found] == over_loads
    assert write_pictures(replace(result, trials=failed, summaries=empty), tmp_path)


def test_an_interval_that_does_not_hold_its_value_is_drawn_all_the_same(result: BenchResult) -> None:
    odd = tuple(replace(one, tokens_per_s=Estimate(5.0, 6.0, 7.0)) for one in result.summaries)
    assert pictures(replace(result, summaries=odd, loads=CLOSED[:1]))


def test_a_legend_of_long_names_stays_inside_of_its_picture() -> None:
    arms = tuple(Arm(f"{LONG} {n}", "here", n) for n in range(3))
    throughput = pictures(simulated(CLOSED[:1], arms=arms))[0]
    throughput.to_bytes("png")
    (legend,) = throughput.figure.legends
    extent = legend.get_window_extent()
    assert 0 <= extent.x0 < extent.x1 <= DPI * SIZE_INCHES[0]


def test_a_folder_that_cannot_be_written_is_an_error(result: BenchResult, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ClientError, match=r"file: plots cannot be written there: "):
        write_pictures(replace(result, loads=CLOSED[:1]), tmp_path / "file")


def test_pictures_that_a_full_disk_cuts_short_leave_the_old_ones(result: BenchResult, tmp_path: Path) -> None:
    """Of a full disk a double: for a moment this process may write no file beyond 1000 bytes."""
    (tmp_path / "throughput.png").write_text("old")
    small, limits = replace(result, loads=CLOSED[:1]), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(ClientError, match="plots cannot be written there: File too large"):
            write_pictures(small, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in tmp_path.iterdir()] == ["throughput.png"]
    assert (tmp_path / "throughput.png").read_text() == "old"


def test_without_matplotlib_one_is_told_how_to_get_it(
    result: BenchResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(
        ClientError, match=r"matplotlib is not installed; run: pip install 'trtspec\[bench\]'"
    ):
        pictures(result)
