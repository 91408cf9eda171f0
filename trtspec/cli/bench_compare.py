"""`trtspec bench compare`: is a difference between two runs more than chance?"""

from __future__ import annotations

import json
from pathlib import Path

import click

from trtspec.cli import EXIT_MISMATCH
from trtspec.cli.parts.bench_table import print_comparison
from trtspec.cli.parts.fields import Number


@click.command(
    "compare", epilog="Exit codes: 0 nothing is worse, 1 could not, 2 wrong usage, 3 something is."
)
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option(
    "--level",
    type=Number(0, 1, min_open=True, max_open=True),
    default=0.05,
    show_default=True,
    help="Rate at which equal runs are called different.",
)
@click.option(
    "--tolerance",
    type=Number(0, 1),
    default=0.02,
    show_default=True,
    help="Smaller differences are not called.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def compare(ctx: click.Context, a: Path, b: Path, level: float, tolerance: float, as_json: bool) -> None:
    """Say what is different in B, and whether that is more than chance.

    A and B are files of `trtspec bench --json`, of the same prompts, loads and lengths.

    \b
    Example:
      trtspec bench compare before.json after.json --tolerance 0.05
    """
    from trtspec.client.bench import compare as comparing
    from trtspec.client.bench.result import read_result

    comparison = comparing.compare(read_result(a), read_result(b), level=level, tolerance=tolerance)
    if as_json:
        click.echo(json.dumps(comparison.as_dict(), ensure_ascii=False))
    else:
        print_comparison(comparison)
    if comparison.regressions:
        ctx.exit(EXIT_MISMATCH)
