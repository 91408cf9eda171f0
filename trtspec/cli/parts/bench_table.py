"""A benchmark and a comparison of two, as tables in the terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from trtspec.client.bench.compare import Comparison
    from trtspec.client.bench.result import BenchResult, Load


# Of a table in a file or a pipe, which has no width of its own.
WIDTH = 160


def print_result(result: BenchResult) -> None:
    """Print a table for each load, what the symbols mean, and what a reader must know."""
    from trtspec.cli.parts.console import console
    from trtspec.theory import definitions

    screen = console(width=None if sys.stdout.isatty() else WIDTH)
    for load in result.loads:
        screen.print(_table(result, load))
    if any(summary.acceptance for summary in result.summaries):
        for symbol, words in definitions("r", "α", "E").items():
            screen.print(f"{symbol}: {words}")
        _print_positions(screen, result)
    settings, prompts = result.settings, result.prompts
    screen.print(
        f"medians with {settings.confidence:.0%} intervals; {prompts.count} prompts "
        f"({prompts.name}), {settings.max_tokens} tokens at most, {settings.blocks} interleaved "
        f"blocks after {settings.warm_up}"
    )
    for note in result.notes:
        screen.print(f"note: {note}")


def _print_positions(screen: Console, result: BenchResult) -> None:
    for summary in result.summaries:
        if summary.acceptance:
            shares = ", ".join(f"{share:.0%}" for share in summary.acceptance.by_position)
            screen.print(f"accepted by position, {summary.arm}, {summary.load}: {shares}")


def _table(result: BenchResult, load: Load) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from trtspec.client.bench.table import table

    found = Table(load.name, *(arm.name for arm in result.arms), box=SIMPLE_HEAD, pad_edge=False)
    for column in found.columns:
        column.no_wrap = True
    for line in table(result, load):
        found.add_row(line.title, *map(str, line.cells))
    return found


def print_comparison(comparison: Comparison) -> None:
    """Print what is better or worse in the second run, then a line that says how many."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from trtspec.cli.parts.console import console

    screen = console(width=None if sys.stdout.isatty() else WIDTH)
    table = Table("load", "arm", "metric", "B / A", "p (Holm)", "", box=SIMPLE_HEAD, pad_edge=False)
    for column in table.columns:
        column.no_wrap = True
    for one in comparison.differences:
        ratio = f"{one.ratio.value:.3f} [{one.ratio.low:.3f}, {one.ratio.high:.3f}]"
        table.add_row(one.load, one.arm, one.metric, ratio, f"{one.adjusted_p:.2g}", one.verdict)
    screen.print(table)
    worse = len(comparison.regressions)
    better = sum(one.verdict == "better" for one in comparison.differences)
    screen.print(f"{worse} worse, {better} better, of {len(comparison.differences)} differences")
    for note in comparison.notes:
        screen.print(f"note: {note}")
