"""What `trtspec tune` shows: tables, and lines between them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from rich.table import Table

from trtspec.build.tune.experiment import Experiment
from trtspec.build.tune.intervals import Estimate
from trtspec.build.tune.measurement import Measured
from trtspec.build.tune.outlook import Outlook
from trtspec.build.tune.prediction import Advice, Point, Prediction
from trtspec.build.tune.published import Published

# From where on times vary so much that it must be told.
UNQUIET = 0.25
UNQUIET_DRIFT = 0.1


def published_tables(rows: Sequence[Published]) -> Iterator[Table | str]:
    """Yield a table for each source."""
    heads = ("pair", "task", "γ", "c", "α", "S stated", "S formula", "S measured", "residual")
    for source in dict.fromkeys(row.source for row in rows):
        shown = [
            (
                *(row.pair, row.task, str(row.num_draft_tokens), f"{row.cost_ratio:.3f}"),
                _acceptance(row),
                *(_or_blank(row.stated, ".1f"), _or_blank(row.predicted, ".2f")),
                *(f"{row.measured:.2f}", _or_blank(row.residual, "+.0%")),
            )
            for row in rows
            if row.source == source
        ]
        yield _table(source, heads, shown)
    yield "α in brackets was not published: it is the one at which the formula gives what was measured."


def outlook_tables(found: Outlook) -> Iterator[Table | str]:
    """Yield what each draft length gives, and the best."""
    costs = found.costs
    title = (
        f"α = {found.acceptance:g}, c = {costs.draft_step:g}, v = {costs.verified_token:g}, "
        f"o = {costs.round:g}"
    )
    shown = [
        (
            *(str(row.num_draft_tokens), f"{row.tokens_per_target_call:.2f}"),
            *(_or_blank(row.acceptance_rate, ".2f"), f"{row.speed_up:.2f}"),
            _or_blank(row.break_even_acceptance, ".2f"),
        )
        for row in found.rows
    ]
    yield _table(title, ("γ", "E", "r", "S", "gains above α"), shown)
    if found.best.num_draft_tokens:
        yield f"best: γ = {found.best.num_draft_tokens}, {found.best.speed_up:.2f} times the speed"
    else:
        yield "do not speculate: no draft length gains"


def prediction_tables(measured: Measured, found: Prediction) -> Iterator[Table | str]:
    """Yield what was measured of two checkpoints, and what follows."""
    agreed = [
        (
            *(agreement.dataset, str(len(agreement.matches)), str(sum(map(len, agreement.matches)))),
            *(f"{agreement.acceptance.value:.3f}", _interval(agreement.acceptance, ".3f")),
        )
        for agreement in measured.agreements
    ]
    yield _table("How often the draft agrees", ("data set", "prompts", "tokens", "α", "95 %"), agreed)
    rows = sorted({count for curve in measured.target.values() for count in curve.rows})
    costs = {load.concurrency: load.costs for load in found.advice.loads}
    timed = [
        (
            *(str(flying), f"{costs[flying].draft_step:.3f}", f"{costs[flying].verified_token:.3f}"),
            f"{1000 * measured.draft_step_s[flying]:.2f}",
            *(f"{1000 * curve.at(count):.2f}" for count in rows),
        )
        for flying, curve in measured.target.items()
    ]
    heads = ("in flight", "c", "v", "draft step", *(f"target, {count}" for count in rows))
    yield _table("What a pass takes, in ms, by the tokens that each sequence gets", heads, timed)
    if measured.unrest > UNQUIET:
        yield f"passes took {measured.unrest:.0%} longer than their shortest: the machine is not quiet"
    yield from _without_serving(measured, found.advice)
    yield from _advice("Predicted speed-up over γ = 0", found.points, found.advice)


def _without_serving(measured: Measured, advice: Advice) -> Iterator[str]:
    """Yield how much serving may add to a round, where nothing was said of it."""
    spare = []
    for load in advice.loads:
        if load.recommended and not load.costs.round:
            tokens, gain = load.best.tokens_per_target_call, load.best.speed_up
            spare_s = (tokens.low - tokens.value / gain.value) * measured.target[load.concurrency].at(1)
            spare.append(f"{1000 * spare_s:.2f} ms (γ = {load.recommended} at {load.concurrency} in flight)")
    if spare:
        yield (
            "without what serving adds to a round (--round-overhead-ms), which may be up to "
            f"{', '.join(spare)} before the gain is in doubt"
        )


def experiment_tables(found: Experiment) -> Iterator[Table | str]:
    """Yield what was measured of a server beside the fit, and what follows."""
    shown = [
        (
            *(str(one.setting.num_draft_tokens), str(one.setting.concurrency)),
            *(f"{one.tokens_per_target_call:.2f}", f"{one.tokens_per_s:.1f}"),
            *(_or_blank(one.predicted, ".1f"), f"{one.fitted:.1f}", f"{one.residual:+.1%}"),
        )
        for one in found.compared
    ]
    heads = ("γ", "in flight", "E", "measured", "predicted", "fitted", "residual")
    yield _table("Tokens/s, predicted before they were measured and fitted after", heads, shown)
    yield f"α is {found.acceptance.value:.3f} (95 %: {_interval(found.acceptance, '.3f')})"
    if abs(found.drift) > UNQUIET_DRIFT:
        yield f"γ = 0 took {found.drift:+.0%} with the later points: the machine is not quiet"
    yield from _advice("Fitted speed-up over γ = 0", found.points, found.advice)


def _advice(title: str, points: Sequence[Point], advice: Advice) -> Iterator[Table | str]:
    loads = [load.concurrency for load in advice.loads]
    at = {(point.num_draft_tokens, point.concurrency): point for point in points}
    speeds = [
        (
            *(str(length), f"{at[length, loads[0]].tokens_per_target_call.value:.2f}"),
            *(f"{at[length, flying].speed_up.value:.2f}" for flying in loads),
        )
        for length in dict.fromkeys(point.num_draft_tokens for point in points)
    ]
    yield _table(title, ("γ", "E", *(f"{flying} in flight" for flying in loads)), speeds)
    chosen = [
        (
            *(str(load.concurrency), f"{load.costs.draft_step + load.costs.verified_token:.3f}"),
            *(f"{load.costs.round:.2f}", _or_blank(load.break_even_acceptance, ".2f")),
            *(str(load.best.num_draft_tokens), f"{load.best.speed_up.value:.2f}"),
            *(_interval(load.best.speed_up, ".2f"), str(load.recommended)),
        )
        for load in advice.loads
    ]
    heads = ("in flight", "c + v", "o", "gains above α", "best γ", "S", "95 %", "use γ")
    yield _table("What to use", heads, chosen)
    yield advice.reason
    found = advice.num_draft_tokens
    yield f"trtspec repo PAIR --output DIR --num-draft-tokens {found}   # or in a recipe, as --write does:"
    yield f"num_draft_tokens = {json.dumps(found)}"


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(*heads, title=title, title_justify="left")
    for row in rows:
        table.add_row(*row)
    return table


def _acceptance(row: Published) -> str:
    if row.acceptance is not None:
        return f"{row.acceptance:.2f}"
    return "(none)" if row.implied_acceptance is None else f"({row.implied_acceptance:.2f})"


def _interval(found: Estimate, how: str) -> str:
    return f"{found.low:{how}} to {found.high:{how}}"


def _or_blank(value: float | None, how: str) -> str:
    return "" if value is None else f"{value:{how}}"
