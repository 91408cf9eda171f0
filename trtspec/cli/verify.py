"""trtspec verify: served answers against Hugging Face."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtspec.choices import AUTO, DTYPES, MOST_DRAFT_TOKENS, PARTS, Dtype, Part
from trtspec.cli import EXIT_MISMATCH, EXIT_SIGNAL, Terminated
from trtspec.cli.parts.report import silent, to_stderr
from trtspec.cli.parts.report_files import STDOUT, check_files, file_option, write_reports
from trtspec.cli.parts.verify_subject import subject_of
from trtspec.errors import ClientError, TrtspecError
from trtspec.known_pair import dtype_of, sources_of

if TYPE_CHECKING:
    from rich.table import Table

    from trtspec.client.verify import Case, Finding, VerifyReport

# What a running server is asked up to: it does not say what its engines were built for.
MAX_DRAFT_TOKENS = 8


def _draft_lengths(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """Read "4", "0,3,5", "0-8", "auto" and mixtures of them."""
    if value is None:
        return None
    lengths: set[int] = set()
    for part in value.split(","):
        first, dash, last = part.partition("-")
        if part == "auto":
            lengths.add(AUTO)
            continue
        if not first.isdecimal() or (dash and not last.isdecimal()) or int(last or first) < int(first):
            expected = "expected lengths like 4, 0,3,5, 0-8 or auto"
            raise click.BadParameter(f"found {value!r}, {expected}", ctx, param)
        if int(last or first) > MOST_DRAFT_TOKENS:
            raise click.BadParameter(f"found {value!r}, expected at most {MOST_DRAFT_TOKENS}", ctx, param)
        lengths.update(range(int(first), int(last or first) + 1))
    if lengths == {AUTO}:
        raise click.BadParameter("auto alone says of no length that it is right; expected 0,auto", ctx, param)
    return tuple(sorted(lengths, key=lambda n: (n == AUTO, n)))


@click.command(
    epilog="Exit codes: 0 no defect, 1 could not, 2 wrong usage, 3 a defect was found, 130 stopped by Ctrl-C."
)
@click.argument("pair_or_url")
@click.option(
    "--reference",
    type=click.Path(path_type=Path),
    help="Hugging Face folder to compare with; needed for a URL, the pair's own target otherwise.",
)
@click.option(
    "--manifest",
    type=click.Path(exists=True, path_type=Path),
    help="Pair or repository that the running server was started from, or its trtspec.json.",
)
@click.option(
    "--prompts",
    type=click.Path(path_type=Path),
    help="File of prompts, one a line, or .jsonl; a default set of 64 otherwise.",
)
@click.option(
    "--part",
    "parts",
    multiple=True,
    type=click.Choice(PARTS),
    help="Look at this part only; may be given several times. All otherwise.",
)
@click.option(
    "--num-draft-tokens",
    callback=_draft_lengths,
    help="Draft lengths to ask with, such as 0,3,auto; otherwise all that a pair was built for.",
)
@click.option("--max-tokens", type=click.IntRange(1), default=64, show_default=True, help="Tokens an answer.")
@click.option(
    "--concurrency", type=click.IntRange(1), default=4, show_default=True, help="Answers at a time."
)
@click.option(
    "--dtype",
    type=click.Choice(DTYPES),
    help="What the engine computes in, which decides what is a tie; otherwise as the pair says, or the "
    "reference's checkpoint.",
)
@click.option(
    "--draws", type=click.IntRange(40), default=200, show_default=True, help="Sampled answers a prompt."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the seeds sent.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@file_option("junit", "JUnit XML")
@file_option("html", "a page that needs nothing else")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    pair_or_url: str,
    reference: Path | None,
    manifest: Path | None,
    prompts: Path | None,
    as_json: bool,
    junit_file: Path | None,
    html_file: Path | None,
    dtype: Dtype | None,
    num_draft_tokens: tuple[int, ...] | None,
    parts: tuple[Part, ...],
    **numbers: int,
) -> None:
    """Compare what is served with Hugging Face: answers, log-probs, options, sampling.

    PAIR_OR_URL is an engine pair or a repository, for which a server is started and stopped, or the
    gRPC address (host:port) of a running one. Both engines are asked what they were asked where the
    pair was built. Every prompt is asked greedily with each draft length; the reference, in float32,
    reads each answer and says where it would have gone another way. Sampled answers are tested for
    having the reference's distribution.

    \b
    Example:
      trtspec verify work/pair
      trtspec verify work/repo --part fingerprint
      trtspec verify localhost:8001 --reference checkpoints/target --num-draft-tokens 0,4 --html report.html
    """
    check_files({"--json": STDOUT if as_json else None, "--junit": junit_file, "--html": html_file})
    verification = None
    failure: TrtspecError | Terminated | None = None
    with suppress(KeyboardInterrupt):
        from trtspec.client import Client
        from trtspec.client.verify import (
            DEFAULT_PROMPTS,
            HuggingFaceReference,
            Settings,
            Verification,
            read_texts,
        )

        subject = subject_of(pair_or_url, manifest)
        known = subject.manifest
        if reference:
            trusted = HuggingFaceReference(reference, built_from=sources_of(known))
        elif subject.checkpoint:
            trusted = HuggingFaceReference(*subject.checkpoint)
        else:
            found = "is no folder; for a running server"
            if subject.repository:
                found = "has no checkpoint of its own;"
            raise click.UsageError(f"{pair_or_url!r} {found} pass --reference HF_DIR")
        limit = known.target.settings.max_draft_len if known else MAX_DRAFT_TOKENS
        if known and num_draft_tokens and max(num_draft_tokens) > limit:
            raise click.UsageError(f"--num-draft-tokens goes to {max(num_draft_tokens)}, the pair to {limit}")
        settings = Settings(
            prompts=read_texts(prompts) if prompts else DEFAULT_PROMPTS,
            num_draft_tokens=num_draft_tokens or (*range(limit + 1), AUTO),
            skip_refused_lengths=num_draft_tokens is None,
            dtype=dtype or (dtype_of(known) if known else trusted.dtype),
            parts=parts or PARTS,
            fingerprint=known.fingerprint if known else None,
            **numbers,
        )
        with subject.address() as url, Client(url) as client:
            say = silent if as_json else to_stderr
            if not (dtype or known):
                say(f"judged as {trusted.dtype}, the checkpoint's; --manifest or --dtype says what is served")
            verification = Verification(
                client,
                trusted,
                settings,
                on_finding=_Progress(say).found,
                on_part=lambda part: say(f"{part}: …"),
            )
            try:
                verification.run()
            except (TrtspecError, Terminated) as error:
                failure = error
    report = verification.report if verification else None
    if failure is not None and not (report and report.findings):
        raise failure
    if report is None or not (report.complete or report.findings):
        click.echo("trtspec verify: stopped before anything was compared", err=True)
        ctx.exit(EXIT_SIGNAL + signal.SIGINT)
    if STDOUT not in (junit_file, html_file):
        _show(report, as_json)
    _write(report, junit_file, html_file)
    if failure is not None:
        raise failure
    if not report.complete:
        ctx.exit(EXIT_SIGNAL + signal.SIGINT)
    if not report.compared:
        raise ClientError(f"{pair_or_url}: nothing was compared; see what was skipped, ask for other parts")
    if not report.ok:
        ctx.exit(EXIT_MISMATCH)


class _Progress:
    """Says which draft length the greedy answers have come to: they take most of the time."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._last: tuple[int, bool] | None = None

    def found(self, found: Finding | Case) -> None:
        from trtspec.client.verify import Case

        if not isinstance(found, Case):
            return
        now = found.num_draft_tokens, found.alone
        if now != self._last:
            drafts = "automatic" if now[0] == AUTO else str(now[0])
            self._say(f"greedy: {drafts} draft tokens{', each prompt alone' if now[1] else ''}")
        self._last = now


def _show(report: VerifyReport, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(report.as_dict()))
    else:
        print_report(report)


def _write(report: VerifyReport, junit: Path | None, html: Path | None) -> None:
    from trtspec.client.verify.html import to_html
    from trtspec.client.verify.junit import to_junit

    faults = write_reports([(junit, partial(to_junit, report)), (html, partial(to_html, report))])
    if faults:
        raise ClientError("; ".join(faults))


def print_report(report: VerifyReport) -> None:
    """Print tables of the greedy answers and of the other parts, defects, what was skipped, the verdict."""
    from trtspec.cli.parts.console import console

    screen = console()
    if report.cases:
        screen.print(_greedy_table(report))
    if report.others:
        screen.print(_parts_table(report))
    for finding in report.findings:
        if finding.verdict in ("defect", "note"):
            screen.print(f"{finding.part}: {finding.name}: {finding.detail}")
    for line in report.skipped:
        screen.print(line)
    screen.print(_verdict(report))


def _verdict(report: VerifyReport) -> str:
    defects = sum(finding.verdict == "defect" for finding in report.findings)
    looked = len(report.findings)
    if report.complete and not report.compared:
        return f"nothing was compared; reference: {report.reference}"
    said = f"{defects} of {looked} findings are defects" if defects else f"no defect in {looked} findings"
    stopped = "" if report.complete else "stopped before the end; "
    return f"{stopped}{said}; judged as {report.judged_as}; reference: {report.reference}"


def _greedy_table(report: VerifyReport) -> Table:
    from rich.table import Table

    columns = ("draft tokens", "answers", "tokens", "right", "ties", "tokens a target call", "acceptance")
    table = Table(*columns)
    for num_draft_tokens in dict.fromkeys(case.num_draft_tokens for case in report.cases):
        cases = [case for case in report.cases if case.num_draft_tokens == num_draft_tokens]
        table.add_row(*_row(num_draft_tokens, cases))
    return table


def _parts_table(report: VerifyReport) -> Table:
    from rich.table import Table

    table = Table("part", "findings", "ok", "skipped", "defects", "")
    for part in dict.fromkeys(finding.part for finding in report.others):
        found = [finding for finding in report.others if finding.part == part]
        counts = [sum(f.verdict == verdict for f in found) for verdict in ("ok", "skipped", "defect")]
        table.add_row(part, str(len(found)), *map(str, counts), _remark(found))
    return table


def _remark(found: list[Finding]) -> str:
    """What a part can see at best: the smallest deviation of a distribution, the largest error."""
    names = {
        "detectable_tv": "finds a total variation of {:.3f}",
        "largest_error": "largest error {:.2g}",
        "mean_kl": "largest mean KL {:.2g}",
    }
    remarks = []
    for key, words in names.items():
        values = [finding.numbers[key] for finding in found if key in finding.numbers]
        if values:
            remarks.append(words.format(min(values) if key == "detectable_tv" else max(values)))
    return ", ".join(remarks)


def _row(num_draft_tokens: int, cases: list[Case]) -> tuple[str, ...]:
    known = [case.speculation for case in cases if case.speculation]
    rounds, proposed, accepted = (
        sum(getattr(speculation, count) for speculation in known)
        for count in ("rounds", "proposed", "accepted")
    )
    return (
        "auto" if num_draft_tokens == AUTO else str(num_draft_tokens),
        str(len(cases)),
        str(sum(len(case.token_ids) for case in cases)),
        str(sum(case.ok for case in cases)),
        str(sum(case.ties for case in cases)),
        f"{1 + accepted / rounds:.2f}" if rounds else "",
        f"{accepted / proposed:.0%}" if proposed else "",
    )
