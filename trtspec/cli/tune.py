"""`trtspec tune`: whether and how far to speculate."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtspec.build.quantize.choices import DEVICES
from trtspec.choices import MOST_CONCURRENT
from trtspec.cli.parts.fields import Number
from trtspec.cli.parts.numbers import Numbers
from trtspec.cli.parts.pair_or_url import pair_at, served
from trtspec.cli.parts.report import silent, to_stderr
from trtspec.cli.parts.result_tables import show
from trtspec.cli.parts.tune_theory import show_published, show_theory

if TYPE_CHECKING:
    from trtspec.build.tune.prediction import Advice

# More than ever pays, and few enough to be tried.
MOST_TUNED_DRAFT_TOKENS = 32
# Answers of a run at least: at every load the same prompts are asked.
LEAST_ANSWERS = 16
# Target steps that a draft step, a token or a round may be said to cost.
DEAREST = 1000

_ASKING = frozenset({"what", "prompts", "max_draft_tokens", "concurrency", "max_tokens", "write"})
# What each way to use the command reads, beside --json.
READ = {
    "--published": frozenset({"published"}),
    "--alpha": frozenset({"alpha", "cost_ratio", "verify_cost", "round_cost", "gamma", "max_draft_tokens"}),
    "TARGET and DRAFT": _ASKING | {"device", "round_overhead_ms"},
    "a PAIR or URL": _ASKING | {"points"},
}


@click.command("tune")
@click.argument("what", nargs=-1, metavar="[TARGET DRAFT | PAIR | URL]")
@click.option("--published", is_flag=True, help="Hold the formulas to published measurements.")
@click.option(
    "--alpha",
    type=Number(min=0, max=1, max_open=True),
    help="α, the chance that a draft token is kept; shows what follows from it and --cost-ratio.",
)
@click.option("--cost-ratio", type=Number(0, DEAREST, min_open=True), help="c: draft step / target step.")
@click.option(
    "--verify-cost", type=Number(0, DEAREST), default=0.0, help="v: a verified token / target step."
)
@click.option(
    "--round-cost", type=Number(0, DEAREST), default=0.0, help="o: the rest of a round / target step."
)
@click.option(
    "--gamma",
    type=click.IntRange(0, MOST_TUNED_DRAFT_TOKENS),
    help="With --alpha: this draft length only.  [default: all up to --max-draft-tokens]",
)
@click.option(
    "--prompts",
    multiple=True,
    metavar="SET|FILE",
    help="A data set: chat, code, summarising, translation, or a file of prompts, one a line, or .jsonl. "
    "May be given several times; the 64 of `trtspec verify` otherwise.",
)
@click.option(
    "--max-draft-tokens",
    type=click.IntRange(1, MOST_TUNED_DRAFT_TOKENS),
    default=8,
    show_default=True,
    help="The longest draft to look at.",
)
@click.option(
    "--concurrency",
    type=Numbers(int, low=1, high=MOST_CONCURRENT),
    default="1,2,4,8",
    show_default=True,
    help="Requests in flight to look at.",
)
@click.option(
    "--max-tokens", type=click.IntRange(2), default=64, show_default=True, help="An answer's tokens."
)
@click.option(
    "--device",
    type=click.Choice(DEVICES),
    default="cpu",
    show_default=True,
    help="Where TARGET and DRAFT are tried; cuda was not yet run on a GPU.",
)
@click.option(
    "--round-overhead-ms",
    type=Number(0, 1000 * DEAREST),
    default=0.0,
    help="What serving adds to a round beside the models, for a prediction.",
)
@click.option(
    "--points",
    type=click.IntRange(5, 8),
    default=8,
    show_default=True,
    help="Draft lengths and loads to measure of a PAIR or URL.",
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
    if theory and (alpha is None or cost_ratio is None):
        raise click.UsageError("--alpha and --cost-ratio belong together")
    way = "--published" if published else "--alpha" if theory else "a PAIR or URL"
    _refuse_unread("TARGET and DRAFT" if len(what) == 2 else way)
    if published:
        show_published(as_json)
    elif alpha is not None and cost_ratio is not None:
        show_theory(alpha, cost_ratio, as_json, **options)
    elif len(what) == 2:
        _predict(Path(what[0]), Path(what[1]), as_json, **options)
    else:
        _measure(what[0], as_json, **options)


def _refuse_unread(way: str) -> None:
    """Refuse options that would be passed over."""
    context = click.get_current_context()
    given = click.core.ParameterSource.COMMANDLINE
    unread = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name
        and parameter.name not in READ[way] | {"as_json"}
        and context.get_parameter_source(parameter.name) is given
    ]
    if unread:
        raise click.UsageError(f"{', '.join(unread)}: of no use with {way}")


def _predict(
    target: Path,
    draft: Path,
    as_json: bool,
    *,
    prompts: Sequence[str],
    max_draft_tokens: int,
    concurrency: tuple[int, ...],
    max_tokens: int,
    device: Any,
    round_overhead_ms: float,
    write: Path | None,
    **unused: Any,
) -> None:
    from trtspec.build.tune.measurement import TuneOptions, measure_costs
    from trtspec.build.tune.prediction import predict, prediction_as_json
    from trtspec.build.tune.tables import prediction_tables

    _check_recipe(write)
    options = TuneOptions(max_draft_tokens, concurrency, max_tokens, device)
    say = silent if as_json else to_stderr
    measured = measure_costs(target, draft, _datasets(prompts), options, report=say)
    found = predict(measured, max_draft_tokens, round_overhead_s=round_overhead_ms / 1000)
    show(as_json, prediction_as_json(measured, found), prediction_tables(measured, found))
    if write:
        _write(write, found.advice, f"Predicted by `trtspec tune` from {target} and {draft}.")


def _measure(
    pair_or_url: str,
    as_json: bool,
    *,
    prompts: Sequence[str],
    max_draft_tokens: int,
    concurrency: tuple[int, ...],
    max_tokens: int,
    points: int,
    write: Path | None,
    **unused: Any,
) -> None:
    from trtspec.build.tune.experiment import run_experiment
    from trtspec.build.tune.tables import experiment_tables
    from trtspec.cli.parts.tune_server import ask, longest_draft
    from trtspec.client import Client
    from trtspec.errors import BuildError

    _check_recipe(write)
    texts = [prompt for texts in _datasets(prompts).values() for prompt in texts]
    if len(texts) < 2:
        raise BuildError(f"tune: {len(texts)} prompts, expected at least 2")
    # Few, but from all over the data sets.
    texts = texts[:: max(1, len(texts) // max(LEAST_ANSWERS, *concurrency))]
    pair = pair_at(pair_or_url)
    say = silent if as_json else to_stderr
    with served(pair, "trtspec-tune-") if pair else nullcontext(pair_or_url) as url, Client(url) as client:
        if (longest := longest_draft(client, texts[0], max_draft_tokens)) < max_draft_tokens:
            say(f"{pair_or_url} takes {longest} draft tokens at most: longer drafts are not looked at")
        found = run_experiment(
            lambda setting: ask(client, texts, max_tokens, setting),
            longest,
            concurrency,
            points=points,
            report=say,
        )
    show(as_json, found.as_dict(), experiment_tables(found))
    if write:
        _write(write, found.advice, f"Measured by `trtspec tune` of {pair_or_url}.")


def _datasets(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return prompts by the name of their data set: a shipped one, or a file."""
    from trtspec.client._prompts import texts_only
    from trtspec.client.bench.prompts import load_prompts
    from trtspec.client.verify.prompts import DEFAULT_PROMPTS

    if not names:
        return {"shipped prompts": DEFAULT_PROMPTS}
    return {name: texts_only(load_prompts(name), name) for name in names}


def _check_recipe(recipe: Path | None) -> None:
    """Refuse a recipe that could not be written before anything is measured for it."""
    if recipe:
        from trtspec.recipe.edit import set_key

        set_key(recipe, "repo", "num_draft_tokens", "auto", write=False)


def _write(recipe: Path, advice: Advice, origin: str) -> None:
    from trtspec.recipe.edit import set_key

    table = ", ".join(
        f"{load.concurrency} in flight: {load.recommended} (x {load.fastest:.2f})" for load in advice.loads
    )
    why = (origin, advice.reason, f"The best γ by load: {table}.")
    set_key(recipe, "repo", "num_draft_tokens", advice.num_draft_tokens, why)
