"""trtspec verify: served answers against Hugging Face."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtspec.cli import EXIT_MISMATCH

if TYPE_CHECKING:
    from trtspec.client.verify import Case, VerifyReport
    from trtspec.engines.pair import EnginePair

# What a running server is asked up to: it does not say what its engines were built for.
MAX_DRAFT_TOKENS = 8


def _draft_lengths(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """Read "4", "0,3,5", "0-8" and mixtures of them."""
    if value is None:
        return None
    lengths: set[int] = set()
    for part in value.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or int(last or first) < int(first):
            raise click.BadParameter(f"found {value!r}, expected lengths like 4, 0,3,5 or 0-8", ctx, param)
        lengths.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(lengths))


@click.command(epilog="Exit codes: 0 all equal, 1 could not, 2 wrong usage, 3 a difference was found.")
@click.argument("pair_or_url")
@click.option(
    "--reference",
    type=click.Path(path_type=Path),
    help="Hugging Face folder to compare with; needed for a URL, the pair's own target otherwise.",
)
@click.option(
    "--prompts",
    type=click.Path(path_type=Path),
    help="File of prompts, one a line, or .jsonl; a default set of 20 otherwise.",
)
@click.option(
    "--num-draft-tokens",
    callback=_draft_lengths,
    help="Draft lengths to ask with, such as 0,3,5; otherwise all that a pair was built for.",
)
@click.option("--max-tokens", type=click.IntRange(1), default=64, show_default=True, help="Tokens an answer.")
@click.option(
    "--concurrency", type=click.IntRange(1), default=4, show_default=True, help="Answers at a time."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    pair_or_url: str,
    reference: Path | None,
    prompts: Path | None,
    num_draft_tokens: tuple[int, ...] | None,
    max_tokens: int,
    concurrency: int,
    as_json: bool,
) -> None:
    """Compare what is served with Hugging Face, token by token.

    PAIR_OR_URL is an engine pair, for which a server is started and stopped, or the gRPC address
    (host:port) of a running one. Every prompt is asked greedily with each draft length; the
    reference, in float32, reads each answer and says where it would have gone another way.

    \b
    Example:
      trtspec verify work/pair
      trtspec verify localhost:8001 --reference checkpoints/target --num-draft-tokens 0,4
    """
    from trtspec.client import Client
    from trtspec.client.prompts import DEFAULT_PROMPTS, read_prompts
    from trtspec.client.reference import HuggingFaceReference
    from trtspec.client.verify import verify

    pair = _open(pair_or_url)
    if reference:
        trusted = HuggingFaceReference(reference)
    elif pair:
        trusted = HuggingFaceReference(pair.target, pair.tokenizer)
    else:
        raise click.UsageError(f"{pair_or_url!r} is no folder; for a running server pass --reference HF_DIR")
    texts = read_prompts(prompts) if prompts else DEFAULT_PROMPTS
    limit = pair.manifest.target.settings.max_draft_len if pair else MAX_DRAFT_TOKENS
    with _served(pair) if pair else nullcontext(pair_or_url) as url, Client(url) as client:
        report = verify(
            client,
            trusted,
            texts,
            num_draft_tokens or range(limit + 1),
            max_tokens=max_tokens,
            concurrency=concurrency,
        )
    if as_json:
        click.echo(json.dumps(_as_dict(report)))
    else:
        print_report(report)
    if not report.ok:
        ctx.exit(EXIT_MISMATCH)


def _open(pair_or_url: str) -> EnginePair | None:
    folder = Path(pair_or_url)
    if not folder.exists():
        return None
    from trtspec.engines.pair import open_pair

    return open_pair(folder)


@contextmanager
def _served(pair: EnginePair) -> Iterator[str]:
    """Serve a pair from a temporary repository on free ports; yields the gRPC address."""
    from trtspec.triton_repo.repository import write_repository
    from trtspec.triton_repo.server import FREE_PORTS, serve

    with tempfile.TemporaryDirectory(prefix="trtspec-verify-") as folder:
        repository = write_repository(pair, Path(folder) / "repository")
        with serve(repository, FREE_PORTS) as server:
            yield server.grpc_url


def _as_dict(report: VerifyReport) -> dict[str, Any]:
    return {
        "ok": report.ok,
        **asdict(report),
        "cases": [asdict(case) | {"ok": case.ok} for case in report.cases],
    }


def print_report(report: VerifyReport) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("draft tokens", "prompts", "tokens", "equal", "tokens a target call", "acceptance")
    for num_draft_tokens in dict.fromkeys(case.num_draft_tokens for case in report.cases):
        cases = [case for case in report.cases if case.num_draft_tokens == num_draft_tokens]
        table.add_row(*_row(num_draft_tokens, cases))
    console = Console(soft_wrap=True, highlight=False, markup=False)
    console.print(table)
    for case in report.mismatches:
        console.print(_describe(case))
    verdict = "all equal" if report.ok else f"{len(report.mismatches)} of {len(report.cases)} answers differ"
    console.print(f"{verdict}; reference: {report.reference}")


def _row(num_draft_tokens: int, cases: list[Case]) -> tuple[str, ...]:
    known = [case.speculation for case in cases if case.speculation]
    rounds, proposed, accepted = (
        sum(getattr(speculation, count) for speculation in known)
        for count in ("rounds", "proposed", "accepted")
    )
    return (
        str(num_draft_tokens),
        str(len(cases)),
        str(sum(len(case.token_ids) for case in cases)),
        str(sum(case.ok for case in cases)),
        f"{1 + accepted / rounds:.2f}" if rounds else "",
        f"{accepted / proposed:.0%}" if proposed else "",
    )


def _describe(case: Case) -> str:
    where = f"{case.prompt[:40]!r} with {case.num_draft_tokens} draft tokens"
    if not (difference := case.difference):
        return (
            f"{where}: the server read {case.prompt_tokens} prompt tokens, the reference "
            f"{case.expected_prompt_tokens}; compare tokenizer and BOS rule"
        )
    served, expected = (
        f"{token.text!r} ({token.id})" if token else "the end"
        for token in (difference.served, difference.expected)
    )
    return (
        f"{where}: position {difference.position} after {difference.before[-40:]!r}: served {served}, "
        f"the reference says {expected}, {difference.margin:.3g} logits above its second choice"
    )
