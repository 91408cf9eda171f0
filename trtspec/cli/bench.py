"""trtspec bench: draft lengths against none, and servers against each other, in one run."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtspec import __version__
from trtspec.choices import AUTO, MOST_CONCURRENT, MOST_DRAFT_TOKENS
from trtspec.cli.bench_compare import compare
from trtspec.cli.parts.against import openai_address, target_at
from trtspec.cli.parts.bench_files import check_extra, new_folder, write_files
from trtspec.cli.parts.bench_table import print_result
from trtspec.cli.parts.fields import Number
from trtspec.cli.parts.numbers import Numbers
from trtspec.cli.parts.pair_or_url import pair_at, served
from trtspec.cli.parts.report_files import STDOUT, Decorator, check_files, file_option
from trtspec.errors import ClientError

if TYPE_CHECKING:
    from trtspec.client.bench.plan import Prompts
    from trtspec.client.bench.result import BenchResult, Segment
    from trtspec.engines.pair import EnginePair

# Asked for no length: as the repository sets it.
DEFAULT = -2
# What a running server is asked with: it does not say what its engines were built for.
DRAFT_TOKENS = 5
MOST_RANDOM_TOKENS = 100_000
RANDOM_PROMPTS = 16


class _WithCompare(click.Command):
    """`bench URL` is what is mostly meant; `bench compare A B` is a command of its own."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args[:1] == ["compare"]:
            return compare.make_context(f"{info_name} compare", args[1:], parent=parent, **extra)
        return super().make_context(info_name, args, parent=parent, **extra)


def _bound(name: str, what: str) -> Decorator:
    seconds = Number(0, min_open=True)
    return click.option(f"--{name}-bound", type=seconds, help=f"{what} within so many seconds.")


@click.command("bench", cls=_WithCompare)
@click.argument("url_or_pair")
@click.option(
    "--num-draft-tokens",
    "lengths",
    type=Numbers(int, low=0, high=MOST_DRAFT_TOKENS, words={"auto": AUTO, "default": DEFAULT}),
    help="Draft lengths to compare, such as 0,3,5,auto; the others are held against the first. default: what "
    "the repository sets, as a table.  [default: 0,5,auto]",
)
@click.option(
    "--against",
    multiple=True,
    metavar="URL",
    help="Another server, asked the same in the same run: a Triton, or one with OpenAI's API (vLLM, TGI, "
    "trtllm-serve, llama.cpp), such as http://host:8000/v1, with the key in $TRTSPEC_AGAINST_API_KEY.",
)
@click.option("--against-model", metavar="NAME", help="The model to ask of them, where they serve several.")
@click.option(
    "--prompts",
    "prompt_set",
    default="chat",
    show_default=True,
    help="A set (chat, code, summarising, translation), or a file with one prompt a line, or .jsonl.",
)
@click.option(
    "--chat", "as_chat", is_flag=True, help="Send texts as what a user says, for the chat template."
)
@click.option(
    "--random-tokens",
    type=click.IntRange(1, MOST_RANDOM_TOKENS),
    help=f"Ask {RANDOM_PROMPTS} prompts of so many random tokens instead: load without meaning.",
)
@click.option(
    "--max-tokens", type=click.IntRange(1), default=128, show_default=True, help="Tokens an answer."
)
@click.option(
    "--concurrency",
    type=Numbers(int, low=1, high=MOST_CONCURRENT),
    help="Requests under way at a time, such as 1,4,16.  [default: 1]",
)
@click.option(
    "--rate",
    "rates",
    type=Numbers(float, low=1e-3, high=1e6),
    help="Requests a second, such as 0.5,2, at random times and whatever has become of those before.",
)
@click.option("--requests", type=click.IntRange(1), help="Of an arm in a block.  [default: each prompt once]")
@click.option("--blocks", type=click.IntRange(1), default=6, show_default=True, help="Passes that count.")
@click.option("--warm-up", type=click.IntRange(0), default=1, show_default=True, help="Passes before them.")
@_bound("ttft", "A good answer begins")
@_bound("itl", "A good answer brings each token after its first response, on average,")
@_bound("latency", "A good answer is whole")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of orders and times.")
@file_option("json", "all that was measured")
@file_option("csv", "the numbers of the tables")
@file_option("html", "a page that needs nothing else")
@click.option(
    "--plots",
    type=click.Path(path_type=Path, file_okay=False),
    callback=new_folder,
    help="Write PNG and SVG into this folder.",
)
def command(
    url_or_pair: str,
    json_file: Path | None,
    csv_file: Path | None,
    html_file: Path | None,
    plots: Path | None,
    **options: Any,
) -> None:
    """Measure what is served: what a draft gains, at which length, under which load.

    URL_OR_PAIR is the gRPC address (host:port) of a running server, or an engine pair, for which a
    server is started and stopped. Draft lengths and servers take turns within one run.
    `trtspec bench compare A.json B.json` says what is different between two runs.

    \b
    Example:
      trtspec bench work/pair
      trtspec bench localhost:8001 --num-draft-tokens 0,4 --concurrency 1,4,16 --json run.json
      trtspec bench localhost:8001 --rate 0.5,1,2 --latency-bound 5 --csv run.csv
      trtspec bench localhost:8001 --against http://localhost:8000/v1 --plots plots --html run.html
      trtspec bench compare before.json after.json
    """
    from trtspec.client.bench.run import Unfinished

    files = {"--json": json_file, "--csv": csv_file, "--html": html_file}
    check_files(files)
    if html_file or plots:
        check_extra()
    stopped: BaseException | None = None
    try:
        result = _measure(url_or_pair, **options)
    except Unfinished as unfinished:
        result, stopped = unfinished.result, unfinished.__cause__
    if STDOUT not in files.values():
        print_result(result)
    unwritten = write_files(files, result)
    if plots is not None:
        from trtspec.client.bench.plots import write_pictures

        write_pictures(result, plots)
    if stopped is not None:
        raise stopped
    if unwritten:
        raise ClientError("; ".join(unwritten))


def _measure(
    url_or_pair: str,
    *,
    lengths: tuple[int, ...] | None,
    against: tuple[str, ...],
    against_model: str | None,
    prompt_set: str,
    as_chat: bool,
    random_tokens: int | None,
    concurrency: tuple[int, ...] | None,
    rates: tuple[float, ...] | None,
    requests: int | None,
    ttft_bound: float | None,
    itl_bound: float | None,
    latency_bound: float | None,
    **settings: int,
) -> BenchResult:
    from trtspec.client.bench.plan import Plan, arms_of
    from trtspec.client.bench.result import Bound, Load, Settings
    from trtspec.client.bench.run import bench
    from trtspec.client.bench.targets import TritonTarget

    if openai_address(url_or_pair):
        raise click.UsageError(
            f"{url_or_pair}: found a server with OpenAI's API, which knows no draft length; "
            "name a pair or a Triton server, and this with --against"
        )
    pair = pair_at(url_or_pair)
    name = str(pair.path) if pair else url_or_pair
    # A pair's address is known when it is served; what is wrong is said before.
    others = [target_at(url, model=against_model, pair=pair) for url in against]
    targets = [TritonTarget(url_or_pair, name=name), *others]
    closed = [Load.closed(n) for n in concurrency or (() if rates else (1,))]
    plan = Plan(
        arms=arms_of(targets, [None if n == DEFAULT else n for n in _lengths(lengths, pair)]),
        loads=(*closed, *map(Load.open, rates or ())),
        prompts=_prompts(prompt_set, as_chat, random_tokens, pair, settings["seed"]),
        settings=Settings(**settings, bound=Bound(ttft_bound, itl_bound, latency_bound)),
        requests=requests,
    )
    with served(pair, "trtspec-bench-") if pair else nullcontext(url_or_pair) as url:
        targets[0] = TritonTarget(url, name=name)
        return bench(targets, plan, about=_about(), on_segment=_say)


def _lengths(lengths: tuple[int, ...] | None, pair: EnginePair | None) -> tuple[int, ...]:
    limit = pair.manifest.target.settings.max_draft_len if pair else MOST_DRAFT_TOKENS
    if lengths is None:
        return tuple(dict.fromkeys((0, min(DRAFT_TOKENS, limit), AUTO)))
    if max(lengths) > limit:
        raise click.UsageError(f"--num-draft-tokens goes to {max(lengths)}, the pair to {limit}")
    return lengths


def _prompts(
    name: str, as_chat: bool, random_tokens: int | None, pair: EnginePair | None, seed: int
) -> Prompts:
    from trtspec.client.bench.plan import Prompts
    from trtspec.client.bench.prompts import as_messages, load_prompts
    from trtspec.client.bench.random_tokens import SMALL_VOCABULARY, random_prompts

    if random_tokens is None:
        found = load_prompts(name)
        return Prompts.of(f"{name}, as chats", as_messages(found)) if as_chat else Prompts.of(name, found)
    vocabulary = pair.manifest.target.settings.vocab_size if pair else SMALL_VOCABULARY
    ids = random_prompts(RANDOM_PROMPTS, random_tokens, seed=seed, vocabulary=vocabulary)
    return Prompts.of(f"{RANDOM_PROMPTS} × {random_tokens} random tokens", ids, random_tokens=True)


def _about() -> dict[str, str]:
    return {
        "command": shlex.join(["trtspec", *sys.argv[1:]]),
        "trtspec": __version__,
        "python": platform.python_version(),
        "hardware": f"{platform.machine()}, {os.cpu_count()} cores here, {platform.system()}",
    }


def _say(segment: Segment) -> None:
    block = "warm-up" if segment.block < 0 else f"block {segment.block + 1}"
    click.echo(f"{block}: {segment.arm}, {segment.load}: {segment.wall_s:.1f} s", err=True)
