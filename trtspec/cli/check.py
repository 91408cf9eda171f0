"""`trtspec check`: whether a pair can speculate together, what to fix, what it will cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtspec.cli import EXIT_MISMATCH

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from trtspec.build.check.pair_report import Model, PairReport

COLOURS = {"error": "red", "warning": "yellow", "note": "cyan"}


@click.command("check")
@click.argument("target")
@click.argument("draft")
@click.option("--json", "as_json", is_flag=True, help="Print the whole report as one JSON object.")
def command(target: str, draft: str, as_json: bool) -> None:
    """Say whether TARGET and DRAFT can speculate together, what to fix, and what it will cost.

    TARGET and DRAFT are folders, or models on the Hugging Face hub at a pinned revision. Only their JSON
    files and the headers of their weights are read.

    \b
    Example:
      trtspec check models/Llama-3.1-70B-Instruct models/Llama-3.2-1B-Instruct
      trtspec check Qwen/Qwen2.5-72B-Instruct@495f393 Qwen/Qwen2.5-0.5B-Instruct@7ae5576 --json

    Exit codes: 0 the pair can be built, 3 it cannot.
    """
    from trtspec.build.check.pair_report import check
    from trtspec.build.hub import open_source

    report = check(open_source(target), open_source(draft))
    if as_json:
        click.echo(json.dumps(report.as_dict(), ensure_ascii=False))
    else:
        _show(report)
    if not report.ok:
        raise click.exceptions.Exit(EXIT_MISMATCH)


def _show(report: PairReport) -> None:
    from trtspec.cli.parts.console import console

    screen = console()
    screen.print(_facts(report))
    for part in _findings(report):
        screen.print(part, soft_wrap=False)
    screen.print(_verdict(report), soft_wrap=False)


def _facts(report: PairReport) -> Table:
    """Return the table with what each model is, side by side."""
    from rich.table import Table

    names = [Path(model.path).name for model in (report.target, report.draft)]
    table = Table("", f"target: {names[0]}", f"draft: {names[1]}", "draft / target")
    ratios = report.ratios
    sides = [_column(model) for model in (report.target, report.draft)]
    last = {
        "parameters": f"{ratios.parameters:.3g}",
        "read per token": f"{ratios.weight_bytes_per_token:.3g}",
        "cache per token": f"{ratios.kv_bytes_per_token:.3g}" if ratios.kv_bytes_per_token else "",
    }
    for name in sides[0]:
        table.add_row(name, sides[0][name], sides[1][name], last.get(name, ""))
    return table


def _column(model: Model) -> dict[str, str]:
    shape = model.shape
    ends = ", ".join(map(str, model.end_of_text.ids)) if model.end_of_text else ""
    before, after = model.around_text or ((), ())
    return {
        "is": model.identity.title,
        "architecture": model.architecture,
        "parameters": _short(shape.parameters, ("", " k", " M", " B"), 1000),
        "weights": f"{shape.dtype}, {_size(shape.weight_bytes)}",
        "read per token": _size(shape.weight_bytes_per_token),
        "cache per token": _size(shape.kv_bytes_per_token),
        "layers": _number(shape.layers),
        "heads": f"{_number(shape.heads)} of {_number(shape.head_dim)}, {_number(shape.kv_heads)} key-value",
        "GPUs to split over": ", ".join(map(str, shape.tensor_parallel)) or "?",
        "context": _number(shape.context_length),
        "RoPE": shape.rope,
        "vocabulary rows": _number(model.vocab_rows),
        "tokenizer ids": _number(model.strings),
        "ends a text": ends or "?",
        "put around a text": " ".join([*before, "…", *after]) if before or after else "nothing",
    }


def _findings(report: PairReport) -> list[RenderableType]:
    """Return each finding as a line of its own, and its repair below it."""
    from rich.padding import Padding
    from rich.text import Text

    parts: list[RenderableType] = []
    for finding in report.findings:
        head = Text.assemble((finding.severity, COLOURS[finding.severity]), f" {finding.id}: ")
        parts.append(head + Text(finding.message))
        if finding.repair:
            parts.append(Padding(Text(f"→ {finding.repair}", style="dim"), (0, 0, 0, 4)))
    return parts


def _verdict(report: PairReport) -> str:
    from trtspec.theory import Costs, best

    if not report.ok:
        errors = sum(finding.severity == "error" for finding in report.findings)
        return f"This pair cannot be built: {errors} error{'s' if errors > 1 else ''}."
    ratios = report.ratios
    gains = [
        f"{found.speed_up:.2g} times at {acceptance:.0%} acceptance (γ = {found.num_draft_tokens})"
        for acceptance in (0.6, 0.8)
        if (found := best(acceptance, Costs(ratios.cost_ratio))).num_draft_tokens
    ]
    return (
        f"This pair can be built. A draft step costs about {ratios.cost_ratio:.2g} of a target step (bytes "
        f"read, {ratios.context_tokens} tokens of context); the most it can give: "
        f"{', '.join(gains) or 'nothing, even at 80% acceptance'}."
    )


def _number(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def _size(size_bytes: int | None) -> str:
    return "?" if size_bytes is None else _short(size_bytes, (" B", " kB", " MB", " GB", " TB"), 1000)


def _short(value: float, units: tuple[str, ...], step: int) -> str:
    for unit in units[:-1]:
        if value < step:
            return f"{value:.3g}{unit}"
        value /= step
    return f"{value:.3g}{units[-1]}"
