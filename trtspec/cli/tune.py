"""`trtspec tune`: whether and how far to speculate."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtspec.cli.fields import Number

if TYPE_CHECKING:
    from trtspec.build.tune.measurement import Measured
    from trtspec.build.tune.prediction import Advice, Point, Prediction

# More than any engine is built for, and few enough to be listed.
MOST_DRAFT_TOKENS = 32
# From where on passes vary so much that it must be told.
UNQUIET = 0.25
# Columns of a table at most.
WIDEST = 200


def _numbers(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
    """Read "1,2,8"."""
    parts = value.split(",")
    if not all(part.isdecimal() and int(part) for part in parts):
        raise click.BadParameter(f"found {value!r}, expected numbers from 1 on, as in 1,4,16", ctx, param)
    return tuple(sorted({int(part) for part in parts}))


@click.command("tune")
@click.argument("what", nargs=-1, metavar="[TARGET DRAFT | PAIR | URL]")
@click.option("--published", is_flag=True, help="Hold the formulas to published measurements.")
@click.option(
    "--alpha",
    type=Number(min=0, max=1, max_open=True),
    help="α, the chance that a draft token is kept; shows what follows from it and --cost-ratio.",
)
@click.option("--cost-ratio", type=Number(min=0, min_open=True), help="c: draft step / target step.")
@click.option("--verify-cost", type=Number(min=0), default=0.0, help="v: a verified token / target step.")
@click.option("--round-cost", type=Number(min=0), default=0.0, help="o: the rest of a round / target step.")
@click.option(
    "--gamma",
    type=click.IntRange(0, MOST_DRAFT_TOKENS),
    help="With --alpha: this draft length only.  [default: all up to --max-draft-tokens]",
)
@click.option(
    "--prompts",
    type=click.Path(path_type=Path),
    multiple=True,
    help="File of prompts, one a line, or .jsonl: a data set. May be given several times; a set that "
    "ships otherwise.",
)
@click.option(
    "--max-draft-tokens",
    type=click.IntRange(1, MOST_DRAFT_TOKENS),
    default=8,
    show_default=True,
    help="The longest draft to look at.",
)
@click.option(
    "--concurrency",
    default="1,2,4,8",
    show_default=True,
    callback=_numbers,
    help="Requests in flight to look at.",
)
@click.option(
    "--max-tokens", type=click.IntRange(2), default=64, show_default=True, help="An answer's tokens."
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="Where TARGET and DRAFT are tried; cuda was not yet run on a GPU.",
)
@click.option(
    "--round-overhead-ms",
    type=Number(min=0),
    default=0.0,
    help="What serving adds to a round beside the models, for a prediction.",
)
@click.option(
    "--write",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="RECIPE",
    help="Set num_draft_tokens in this recipe's [repo]; it is made where there is none.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    what: tuple[str, ...],
    published: bool,
    alpha: float | None,
    cost_ratio: float | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Say whether a pair should speculate, and with how many draft tokens.

    With TARGET and DRAFT, two Hugging Face folders, before anything is built: how often they agree on
    your prompts, what their passes take here, and what follows for every draft length and load. With
    an engine PAIR, for which a server is started and stopped, or the gRPC address of a running one: a
    few measured points, chosen by the model that is fitted to them. With --alpha, or --published: the
    formulas alone.

    \b
    Example:
      trtspec tune models/target models/draft --prompts chat.jsonl --write recipe.toml
      trtspec tune work/pair --concurrency 1,8
      trtspec tune --alpha 0.8 --cost-ratio 0.05
      trtspec tune --published
    """
    theory = alpha is not None or cost_ratio is not None
    if len(what) > 2 or published + theory + bool(what) != 1:
        raise click.UsageError(
            "give TARGET and DRAFT, a PAIR, a URL, --alpha with --cost-ratio, or --published"
        )
    if published:
        _published(as_json)
    elif theory:
        if alpha is None or cost_ratio is None:
            raise click.UsageError("--alpha and --cost-ratio belong together")
        _theory(alpha, cost_ratio, as_json, **options)
    elif len(what) == 2:
        _predict(Path(what[0]), Path(what[1]), as_json, **options)


def _published(as_json: bool) -> None:
    from trtspec.build.tune.published import TABLES

    if as_json:
        derived = ("predicted", "residual", "implied_acceptance")
        rows = [asdict(row) | {name: getattr(row, name) for name in derived} for row in TABLES]
        click.echo(json.dumps({"published": rows}))
        return
    for source in dict.fromkeys(row.source for row in TABLES):
        columns = ("pair", "task", "γ", "c", "α", "S stated", "S formula", "S measured", "residual")
        rows = [
            (
                *(row.pair, row.task, str(row.num_draft_tokens), f"{row.cost_ratio:.3f}"),
                _acceptance(row.acceptance, row.implied_acceptance),
                *(_or_blank(row.stated, ".1f"), _or_blank(row.predicted, ".2f")),
                *(f"{row.measured:.2f}", _or_blank(row.residual, "+.0%")),
            )
            for row in TABLES
            if row.source == source
        ]
        _table(source, columns, rows)
    click.echo("α in brackets was not published: it is the one at which the formula gives what was measured.")


def _acceptance(known: float | None, implied: float | None) -> str:
    if known is not None:
        return f"{known:.2f}"
    return "(none)" if implied is None else f"({implied:.2f})"


def _theory(
    alpha: float,
    cost_ratio: float,
    as_json: bool,
    *,
    verify_cost: float,
    round_cost: float,
    gamma: int | None,
    max_draft_tokens: int,
    **unused: Any,
) -> None:
    from trtspec.theory import Costs, acceptance_rate, best, break_even_acceptance, speed_up
    from trtspec.theory import tokens_per_target_call as tokens

    costs = Costs(cost_ratio, verify_cost, round_cost)
    lengths = range(max_draft_tokens + 1) if gamma is None else (gamma,)
    rows = [
        {
            "num_draft_tokens": length,
            "tokens_per_target_call": tokens(alpha, length),
            "acceptance_rate": acceptance_rate(alpha, length) if length else None,
            "speed_up": speed_up(alpha, length, costs),
            "break_even_acceptance": break_even_acceptance(length, costs),
        }
        for length in lengths
    ]
    found = best(alpha, costs, max(max_draft_tokens, gamma or 0))
    if as_json:
        click.echo(json.dumps({"rows": rows, "best": asdict(found)}))
        return
    title = f"α = {alpha:g}, c = {cost_ratio:g}, v = {verify_cost:g}, o = {round_cost:g}"
    formats = ("d", ".2f", ".2f", ".2f", ".2f")
    shown = [[_or_blank(v, f) for v, f in zip(row.values(), formats, strict=True)] for row in rows]
    _table(title, ("γ", "E", "r", "S", "gains above α"), shown)
    click.echo(
        f"best: γ = {found.num_draft_tokens}, {found.speed_up:.2f} times the speed"
        if found.num_draft_tokens
        else "do not speculate: no draft length gains"
    )


def _predict(
    target: Path,
    draft: Path,
    as_json: bool,
    *,
    prompts: Sequence[Path],
    max_draft_tokens: int,
    concurrency: tuple[int, ...],
    max_tokens: int,
    device: Any,
    round_overhead_ms: float,
    write: Path | None,
    **unused: Any,
) -> None:
    from trtspec.build.tune.measurement import TuneOptions, measure_pair
    from trtspec.build.tune.prediction import predict

    _check_recipe(write)
    options = TuneOptions(max_draft_tokens, concurrency, max_tokens, device)
    say = _quiet if as_json else _to_stderr
    measured = measure_pair(target, draft, _datasets(prompts), options, report=say)
    found = predict(measured, max_draft_tokens, round_overhead_s=round_overhead_ms / 1000)
    if as_json:
        click.echo(json.dumps(_prediction_as_json(measured, found)))
    else:
        _show_prediction(measured, found)
    if write:
        _write(write, found.advice, f"Predicted by `trtspec tune` from {target} and {draft}.")


def _datasets(files: Sequence[Path]) -> dict[str, tuple[str, ...]]:
    """Return prompts by the name of their data set, which is that of their file."""
    from trtspec.client.verify.prompts import DEFAULT_PROMPTS, read_prompts

    if not files:
        return {"shipped prompts": DEFAULT_PROMPTS}
    return {file.name: read_prompts(file) for file in files}


def _prediction_as_json(measured: Measured, found: Prediction) -> dict[str, Any]:
    return {
        "acceptance": asdict(found.acceptance),
        "datasets": {
            agreement.dataset: {
                "acceptance": asdict(agreement.acceptance),
                "prompts": len(agreement.matches),
                "tokens": sum(map(len, agreement.matches)),
            }
            for agreement in measured.agreements
        },
        "target_pass_s": {
            flying: dict(zip(curve.rows, curve.seconds, strict=True))
            for flying, curve in measured.target.items()
        },
        "draft_step_s": measured.draft_step_s,
        "unrest": measured.unrest,
        "points": [asdict(point) for point in found.points],
        "advice": asdict(found.advice) | {"speculate": found.advice.speculate},
    }


def _show_prediction(measured: Measured, found: Prediction) -> None:
    columns = ("data set", "prompts", "tokens", "α", "95 %")
    rows = [
        (
            *(agreement.dataset, str(len(agreement.matches)), str(sum(map(len, agreement.matches)))),
            *(f"{agreement.acceptance.value:.3f}", _interval(agreement.acceptance, ".3f")),
        )
        for agreement in measured.agreements
    ]
    _table("How often the draft agrees", columns, rows)
    rows = sorted({count for curve in measured.target.values() for count in curve.rows})
    timed = [
        (
            *(str(flying), f"{1000 * measured.draft_step_s[flying]:.2f}"),
            *(f"{1000 * curve.at(count):.2f}" for count in rows),
        )
        for flying, curve in measured.target.items()
    ]
    heads = ("in flight", "draft step", *(f"target, {count}" for count in rows))
    _table("What a pass takes, in ms, by the tokens that each sequence gets", heads, timed)
    if measured.unrest > UNQUIET:
        click.echo(f"passes took {measured.unrest:.0%} longer than their shortest: the machine is not quiet")
    _show_advice("Predicted speed-up over γ = 0", found.points, found.advice)


def _show_advice(title: str, points: Sequence[Point], advice: Advice) -> None:
    loads = [load.concurrency for load in advice.loads]
    speeds = {(p.num_draft_tokens, p.concurrency): p for p in points}
    shown = [
        (
            *(str(length), f"{speeds[length, loads[0]].tokens_per_target_call.value:.2f}"),
            *(f"{speeds[length, flying].speed_up.value:.2f}" for flying in loads),
        )
        for length in dict.fromkeys(p.num_draft_tokens for p in points)
    ]
    _table(title, ("γ", "E", *(f"{flying} in flight" for flying in loads)), shown)
    summary = [
        (
            *(str(load.concurrency), f"{load.costs.draft_step:.2f}", f"{load.costs.verified_token:.3f}"),
            _or_blank(load.break_even_acceptance, ".2f"),
            *(str(load.best.num_draft_tokens), f"{load.best.speed_up.value:.2f}"),
            *(_interval(load.best.speed_up, ".2f"), str(load.recommended)),
        )
        for load in advice.loads
    ]
    heads = ("in flight", "c", "v", "gains above α", "best γ", "S", "95 %", "use γ")
    _table("What to use", heads, summary)
    click.echo(advice.reason)
    click.echo(f"num_draft_tokens = {json.dumps(advice.num_draft_tokens)}")


def _check_recipe(recipe: Path | None) -> None:
    """Refuse a recipe that cannot be read before anything is measured for it."""
    if recipe and recipe.exists():
        from trtspec.recipe.file import read_recipe

        read_recipe(recipe)


def _write(recipe: Path, advice: Advice, origin: str) -> None:
    from trtspec.recipe.edit import set_key

    table = ", ".join(
        f"{load.concurrency} in flight: {load.recommended} (x {load.fastest:.2f})" for load in advice.loads
    )
    why = (origin, advice.reason, f"The best γ by load: {table}.")
    set_key(recipe, "repo", "num_draft_tokens", advice.num_draft_tokens, why)


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*row)
    console = Console(soft_wrap=True, highlight=False, markup=False)
    # Wider than the terminal rather than cut off.
    wide = console.options.update(width=WIDEST)
    console.width = max(console.width, console.measure(table, options=wide).maximum)
    console.print(table)


def _quiet(line: str) -> None:
    pass


def _to_stderr(line: str) -> None:
    click.echo(line, err=True)


def _interval(found: Any, how: str) -> str:
    return f"{found.low:{how}} to {found.high:{how}}"


def _or_blank(value: float | None, how: str) -> str:
    return "" if value is None else f"{value:{how}}"
