"""A benchmark and a comparison of two, as tables in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from trtspec.client.bench.compare import Comparison
    from trtspec.client.bench.result import BenchResult, Load
    from trtspec.client.bench.rows import Row


def _number(value: float) -> str:
    """Return three digits, but no fewer than before the point."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _ms(seconds: float) -> str:
    return _number(seconds * 1000)


def _percent(share: float) -> str:
    return f"{share:.1%}"


def _share(share: float) -> str:
    return f"{share:.2f}"


# What the terminal shows of all rows: titles, and how a number is written.
SHOWN: dict[str, tuple[str, Callable[[float], str]]] = {
    "tokens_per_s": ("tokens/s in total", _number),
    "tokens_per_s ratio": ("  × the first", _number),
    "tokens_per_s_per_request p50": ("tokens/s a request", _number),
    "tokens_per_s_per_request ratio": ("  × the first", _number),
    "goodput_per_s": ("good requests/s", _number),
    "ttft_s p50": ("first token, ms", _ms),
    "ttft_s p99": ("  p99", _ms),
    "itl_chunk_s p50": ("responses apart, ms", _ms),
    "itl_chunk_s p99": ("  p99", _ms),
    "itl_s p50": ("per later token, ms", _ms),
    "itl_s p99": ("  p99", _ms),
    "e2e_s p50": ("whole answer, ms", _ms),
    "e2e_s p95": ("  p95", _ms),
    "e2e_s p99": ("  p99", _ms),
    "server_s p50": ("in the server, ms", _ms),
    "outside_share": ("outside the server", _percent),
    "orchestration_share": ("beside its engines", _percent),
    "r": ("r", _share),
    "α": ("α", _share),
    "E": ("E", _number),
    "draft tokens a round": ("draft tokens a round", _number),
}
# Of a table in a file or a pipe, which has no width of its own.
WIDTH = 160


def print_result(result: BenchResult) -> None:
    """Print a table for each load, what the symbols mean, and what a reader must know."""
    from trtspec.client.bench.rows import rows
    from trtspec.theory import definitions

    console = _console()
    found = {(row.load, row.arm, row.metric): row for row in rows(result)}
    for load in result.loads:
        console.print(_table(result, load, found))
    if any(summary.acceptance for summary in result.summaries):
        for symbol, words in definitions("r", "α", "E").items():
            console.print(f"{symbol}: {words}")
        _print_positions(console, result)
    settings, prompts = result.settings, result.prompts
    console.print(
        f"medians with {settings.confidence:.0%} intervals; {prompts.count} prompts ({prompts.name}), "
        f"{settings.max_tokens} tokens at most, {settings.blocks} interleaved blocks after {settings.warm_up}"
    )
    for note in result.notes:
        console.print(f"note: {note}")


def _print_positions(console: Console, result: BenchResult) -> None:
    for summary in result.summaries:
        if summary.acceptance:
            shares = ", ".join(f"{share:.0%}" for share in summary.acceptance.by_position)
            console.print(f"accepted by position, {summary.arm}, {summary.load}: {shares}")


def _table(result: BenchResult, load: Load, found: dict[tuple[str, str, str], Row]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(load.name, *(arm.name for arm in result.arms), box=SIMPLE_HEAD, pad_edge=False)
    for column in table.columns:
        column.no_wrap = True
    for metric, (title, write) in SHOWN.items():
        cells = [found.get((load.name, arm.name, metric)) for arm in result.arms]
        if any(cells):
            table.add_row(title, *(_cell(row, write) if row else "" for row in cells))
    failed = [summary.failed for summary in result.summaries if summary.load == load.name]
    if any(failed):
        table.add_row("failed requests", *map(str, failed))
    return table


def _cell(row: Row, write: Callable[[float], str]) -> str:
    """Return a number with its interval."""
    if row.low is None or row.high is None:
        return write(row.value)
    return f"{write(row.value)} [{write(row.low)}, {write(row.high)}]"


def _console() -> Console:
    from rich.console import Console

    width = None if sys.stdout.isatty() else WIDTH
    return Console(width=width, soft_wrap=True, highlight=False, markup=False)


def print_comparison(comparison: Comparison) -> None:
    """Print what is better or worse in the second run, then a line that says how many."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    console = _console()
    table = Table("load", "arm", "metric", "B / A", "p (Holm)", "", box=SIMPLE_HEAD, pad_edge=False)
    for column in table.columns:
        column.no_wrap = True
    for one in comparison.differences:
        ratio = f"{one.ratio.value:.3f} [{one.ratio.low:.3f}, {one.ratio.high:.3f}]"
        table.add_row(one.load, one.arm, one.metric, ratio, f"{one.adjusted_p:.2g}", one.verdict)
    console.print(table)
    worse = len(comparison.regressions)
    better = sum(one.verdict == "better" for one in comparison.differences)
    console.print(f"{worse} worse, {better} better, of {len(comparison.differences)} differences")
    for note in comparison.notes:
        console.print(f"note: {note}")
