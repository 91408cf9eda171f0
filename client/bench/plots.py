"""A benchmark's result as pictures."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trtspec.client.bench.drawing import Kind, Picture, begin, finish, label, looks, style
from trtspec.client.bench.result import BenchResult, Distribution, Estimate, Load, Summary, Trial
from trtspec.errors import ClientError
from trtspec.whole_file import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KINDS: tuple[Kind, ...] = ("png", "svg")
# Of a distribution, largest / smallest; beyond, its axis is logarithmic.
WIDEST_LINEAR_RANGE = 20.0
# Arms stand beside each other, by this factor of the load, so that their intervals can be told apart.
BESIDE = 1.02
# What an axis of loads shows before the first and after the last, by this factor.
MARGIN = 1.3


def pictures(result: BenchResult) -> tuple[Picture, ...]:
    """Return what there is to see: throughput, latencies, their distributions, acceptance.

    Raises:
        ClientError: when matplotlib is not installed.
    """
    with style():
        return tuple(_pictures(result))


def write_pictures(result: BenchResult, folder: Path) -> tuple[Path, ...]:
    """Write each picture as PNG and as SVG; return the files.

    Raises:
        ClientError: when matplotlib is not installed, or the folder cannot be written.
    """
    found = pictures(result)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = {folder / f"{one.name}.{kind}": one.to_bytes(kind) for one in found for kind in KINDS}
        for path, data in files.items():
            write_whole(path, data)
    except OSError as error:
        raise ClientError(f"{folder}: plots cannot be written there: {error.strerror}") from None
    return tuple(files)


def _pictures(result: BenchResult) -> Iterator[Picture]:
    closed = [load for load in result.loads if load.kind == "closed"]
    rated = [load for load in result.loads if load.kind == "open"]
    if closed:
        yield _throughput(result, closed, "throughput", "concurrency")
        yield _latency(result, closed, "concurrency")
    if rated:
        yield _throughput(result, rated, "throughput-by-rate", "rate")
        yield _latency(result, rated, "rate")
    for load in result.loads:
        if any(trial.ok and trial.load == load.name for trial in result.trials):
            yield _distributions(result, load)
    if accepting := [summary.load for summary in result.summaries if summary.acceptance]:
        yield _acceptance(result, accepting[0])


def _throughput(result: BenchResult, loads: Sequence[Load], name: str, over: str) -> Picture:
    figure, (axes,) = begin(1)
    _over_loads(axes, result, loads, lambda summary: summary.tokens_per_s)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("tokens/s in total")
    return finish(name, f"Tokens per second against {over}", figure)


def _latency(result: BenchResult, loads: Sequence[Load], over: str) -> Picture:
    figure, panels = begin(2)
    for axes, name, title in zip(panels, ("ttft_s", "e2e_s"), ("first token", "whole answer"), strict=True):
        _over_loads(axes, result, loads, _percentile_ms(name, "p50"))
        _over_loads(axes, result, loads, _percentile_ms(name, "p95"), hollow=True)
        axes.set_ylim(bottom=0)
        axes.set_ylabel(f"{title}, ms")
    title = f"Latency against {over}: median filled, 95th percentile hollow"
    return finish(f"latency-by-{over}", title, figure)


def _distributions(result: BenchResult, load: Load) -> Picture:
    figure, (first, later) = begin(2)
    _times(first, result, load, lambda trial: trial.ttft_s)
    first.set_xlabel("first token, ms")
    _times(later, result, load, lambda trial: trial.itl_s)
    later.set_xlabel("per token after the first, ms")
    name = re.sub(r"[^a-z0-9.]+", "-", load.name.lower().replace("/", " per ")).strip("-")
    return finish(f"times-{name}", f"Distribution of times, {load.name}", figure)


def _acceptance(result: BenchResult, load: str) -> Picture:
    figure, (axes,) = begin(1)
    longest = 1
    for place, arm in enumerate(result.arms):
        if found := result.summary_of(arm.name, load).acceptance:
            shares = found.by_position
            longest = max(longest, len(shares))
            axes.plot(range(1, len(shares) + 1), shares, label=label(arm.name), **looks(place))
    axes.set_xlabel("position of the draft token in its round")
    axes.set_xticks(range(1, longest + 1))
    axes.set_ylabel("accepted / proposed")
    axes.set_ylim(0, 1.02)
    return finish("acceptance", f"Draft tokens accepted, by position, {load}", figure)


def _over_loads(
    axes: Axes,
    result: BenchResult,
    loads: Sequence[Load],
    number: Callable[[Summary], Estimate | None],
    *,
    hollow: bool = False,
) -> None:
    """Draw a number of each arm, with its interval, over the loads."""
    for place, arm in enumerate(result.arms):
        beside = BESIDE ** (place - (len(result.arms) - 1) / 2)
        found = [(_amount(load), number(result.summary_of(arm.name, load.name))) for load in loads]
        known = [(amount * beside, one) for amount, one in found if one]
        if not known:
            continue
        look = {**looks(place), "capsize": 3, "label": label(arm.name)}
        if hollow:
            look |= {"markerfacecolor": "none", "linewidth": 0.9, "label": "_nolegend_"}
        # An interval by percentiles need not hold its value, and matplotlib draws no negative ones.
        below = [max(one.value - one.low, 0) for _, one in known]
        above = [max(one.high - one.value, 0) for _, one in known]
        axes.errorbar([x for x, _ in known], [one.value for _, one in known], yerr=(below, above), **look)
    amounts = sorted(map(_amount, loads))
    axes.set_xscale("log", base=2)
    axes.set_xticks(amounts, [f"{amount:g}" for amount in amounts])
    axes.minorticks_off()
    axes.set_xlim(amounts[0] / MARGIN, amounts[-1] * MARGIN)
    axes.set_xlabel("requests at a time" if loads[0].kind == "closed" else "requests a second")


def _times(axes: Axes, result: BenchResult, load: Load, number: Callable[[Trial], float | None]) -> None:
    """Draw the share of each arm's answers whose time is at most so long."""
    everything: list[float] = []
    for place, arm in enumerate(result.arms):
        trials = [trial for trial in result.trials_of(arm.name, load.name) if trial.ok]
        times = [1000 * time for trial in trials if (time := number(trial)) is not None]
        if times:
            everything += times
            axes.ecdf(times, label=label(arm.name), **{**looks(place), "marker": ""})
    if everything and max(everything) > WIDEST_LINEAR_RANGE * min(everything) > 0:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
    else:
        axes.set_xlim(left=0)
    axes.set_ylabel("share of answers")


def _percentile_ms(name: str, percentile: str) -> Callable[[Summary], Estimate | None]:
    def of_summary(summary: Summary) -> Estimate | None:
        distribution: Distribution | None = getattr(summary, name)
        if distribution is None:
            return None
        found: Estimate = getattr(distribution, percentile)
        return Estimate(1000 * found.value, 1000 * found.low, 1000 * found.high)

    return of_summary


def _amount(load: Load) -> float:
    return float(load.concurrency or load.rate_per_s or 0)
