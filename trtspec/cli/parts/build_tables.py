"""What a build would do, and what quantisation has cost, in the terminal."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from trtspec.build.preview import Preview
    from trtspec.engines.manifest import Manifest


def print_preview(found: Preview, *, as_json: bool) -> None:
    """Print what would be built, and the commands that would compile it."""
    if as_json:
        memory = found.memory and found.memory.model_dump(mode="json")
        click.echo(json.dumps({**asdict(replace(found, memory=None)), "memory": memory}))
        return
    from rich.filesize import decimal

    for note in found.notes:
        click.echo(f"note: {note}")
    for engine in found.engines:
        size = decimal(engine.checkpoint_bytes)
        kind = f"{engine.dtype}, {engine.quantization or 'not quantised'}"
        click.echo(
            f"{engine.role}: {engine.architecture}, {kind}, tp {engine.tp} x pp {engine.pp}, "
            f"{size} to convert"
        )
    if found.memory:
        longest = found.memory.concurrency[-1]
        click.echo(
            f"memory: fits {found.memory.gpu}, {longest.served} sequences of {longest.length} tokens at once"
        )
    for engine in found.engines:
        click.echo(shlex.join(engine.command).replace(" --", " \\\n  --"))


def print_quality(manifest: Manifest) -> None:
    """Print what quantisation cost, where it was measured."""
    from rich.table import Table

    from trtspec.cli.parts.console import console

    table = Table("", "top-1 equal", "KL, nats", "perplexity", "weights, relative error")
    for name, engine in (("target", manifest.target), ("draft", manifest.draft)):
        if engine is None or engine.quantization is None or (quality := engine.quantization.quality) is None:
            continue
        errors = quality.weight_errors.values()
        table.add_row(
            name,
            f"{quality.top1_agreement:.1%}",
            f"{quality.kl_divergence:.4f}",
            f"{quality.perplexity_before:.4g} → {quality.perplexity_after:.4g}",
            f"{sum(errors) / len(errors):.2%}, at most {max(errors):.2%}",
        )
    screen = console()
    if table.row_count:
        screen.print(table)
    if found := manifest.acceptance:
        screen.print(
            f"acceptance of draft tokens: {found.sampled_before:.3f} → {found.sampled_after:.3f} at "
            f"temperature 1, {found.greedy_before:.3f} → {found.greedy_after:.3f} greedy"
        )
