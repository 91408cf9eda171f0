"""What `trtspec tune` predicts of the demo pair from its checkpoints, beside what a server of it then does.

    python benchmarks/tune.py [--max-tokens 64] [--concurrency 1,4,8] [--json]

One torch thread a model. The prediction knows passes of both models and nothing of serving; the
difference at each measured point is what Triton, the loop and the streams add.
"""

from __future__ import annotations

import json
import os
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import Any

# Before torch is imported: threads that spin would be measured instead.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("KMP_BLOCKTIME", "0")

import click
import torch
from click.testing import CliRunner

from trtspec.build.pair import build
from trtspec.cli import trtspec


def tune(*arguments: object) -> dict[str, Any]:
    result = CliRunner().invoke(trtspec, ["tune", *map(str, arguments), "--json"], catch_exceptions=False)
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@click.command(help=__doc__)
@click.option("--max-tokens", type=click.IntRange(10), default=64, show_default=True)
@click.option("--concurrency", default="1,4,8", show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(max_tokens: int, concurrency: str, as_json: bool) -> None:
    torch.set_num_threads(1)
    source = Path(str(files("trtspec") / "demo_pair"))
    options = ("--max-tokens", max_tokens, "--concurrency", concurrency)
    predicted = tune(source / "target", source / "draft", *options)
    with tempfile.TemporaryDirectory() as folder:
        pair = build(source / "target", source / "draft", Path(folder, "pair"), report=lambda line: None)
        measured = tune(pair.path, *options)
    if as_json:
        click.echo(json.dumps({"predicted": predicted, "measured": measured}))
        return
    by_setting = {(p["num_draft_tokens"], p["concurrency"]): p for p in predicted["points"]}
    alpha = predicted["acceptance"]
    click.echo(f"load {os.getloadavg()[0]:.1f}; passes {predicted['unrest']:.0%} above their shortest")
    click.echo(f"α {alpha['value']:.3f} ({alpha['low']:.3f} to {alpha['high']:.3f})")
    click.echo("  γ  in flight  E predicted  E measured  S predicted  S fitted  residual of the fit")
    fitted = {(p["num_draft_tokens"], p["concurrency"]): p["speed_up"] for p in measured["points"]}
    for one in measured["measured"]:
        key = one["num_draft_tokens"], one["concurrency"]
        before = by_setting[key]
        click.echo(
            f"{key[0]:3}  {key[1]:9}  {before['tokens_per_target_call']['value']:11.2f}"
            f"  {one['tokens_per_target_call']:10.2f}  {before['speed_up']['value']:11.2f}"
            f"  {fitted[key]['value']:8.2f}  {one['residual']:+.1%}"
        )
    for name, found in (("predicted", predicted), ("measured", measured)):
        click.echo(f"{name}: {found['advice']['reason']}; {found['advice']['num_draft_tokens']}")


if __name__ == "__main__":
    main()
