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
from trtspec.cli.parts.verify_subject import Subject, subject_of
from trtspec.cli.parts.verify_tables import print_report
from trtspec.errors import ClientError, TrtspecError

if TYPE_CHECKING:
    from trtspec.client.verify import (
        Case,
        Finding,
        HuggingFaceReference,
        Settings,
        Verification,
        VerifyReport,
    )
    from trtspec.engines.manifest import Manifest


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
def command(
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
    run = _Run()
    with suppress(KeyboardInterrupt):
        subject = subject_of(pair_or_url, manifest)
        trusted = _trusted(subject, reference)
        settings = _settings(
            subject.manifest,
            trusted.dtype,
            prompts=prompts,
            num_draft_tokens=num_draft_tokens,
            dtype=dtype,
            parts=parts or PARTS,
            **numbers,
        )
        say = silent if as_json else to_stderr
        if not (dtype or subject.manifest):
            say(f"judged as {trusted.dtype}, the checkpoint's; --manifest or --dtype says what is served")
        run.verify(subject, trusted, settings, say)
    report = run.report()
    if STDOUT not in (junit_file, html_file):
        _show(report, as_json)
    _write(report, junit_file, html_file)
    run.end(report, pair_or_url)


def _trusted(subject: Subject, reference: Path | None) -> HuggingFaceReference:
    """Return what the answers are compared with: the folder that was named, or the subject's own."""
    from trtspec.client.verify import HuggingFaceReference

    if reference:
        return HuggingFaceReference(
            reference, built_from=subject.manifest.sources if subject.manifest else {}
        )
    if subject.checkpoint:
        return HuggingFaceReference(*subject.checkpoint)
    found = "has no checkpoint of its own;" if subject.repository else "is no folder; for a running server"
    raise click.UsageError(f"{subject.what!r} {found} pass --reference HF_DIR")


def _settings(
    known: Manifest | None,
    checkpoint_dtype: Dtype,
    *,
    prompts: Path | None,
    num_draft_tokens: tuple[int, ...] | None,
    dtype: Dtype | None,
    parts: tuple[Part, ...],
    **numbers: int,
) -> Settings:
    """Return what is asked and how it is judged, from the options and what is known of the pair."""
    from trtspec.client.verify import DEFAULT_PROMPTS, Settings, all_lengths, read_texts

    limit = known.target.settings.max_draft_len if known else None
    if limit is not None and num_draft_tokens and max(num_draft_tokens) > limit:
        raise click.UsageError(f"--num-draft-tokens goes to {max(num_draft_tokens)}, the pair to {limit}")
    return Settings(
        prompts=read_texts(prompts) if prompts else DEFAULT_PROMPTS,
        num_draft_tokens=num_draft_tokens or all_lengths(limit),
        skip_refused_lengths=num_draft_tokens is None,
        dtype=dtype or (known.served_dtype if known else checkpoint_dtype),
        parts=parts,
        fingerprint=known.fingerprint if known else None,
        **numbers,
    )


class _Run:
    """A verification that may be stopped: what it has found by then is reported all the same."""

    def __init__(self) -> None:
        self._verification: Verification | None = None
        self._failure: TrtspecError | Terminated | None = None

    def verify(
        self,
        subject: Subject,
        trusted: HuggingFaceReference,
        settings: Settings,
        say: Callable[[str], None],
    ) -> None:
        """Compare; an error is kept for the end."""
        from trtspec.client import Client
        from trtspec.client.verify import Verification

        with subject.address() as url, Client(url) as client:
            self._verification = Verification(
                client,
                trusted,
                settings,
                on_finding=_Progress(say).found,
                on_part=lambda part: say(f"{part}: …"),
            )
            try:
                self._verification.run()
            except (TrtspecError, Terminated) as error:
                self._failure = error

    def report(self) -> VerifyReport:
        """Return what was found; where that is nothing, raise what ended it."""
        report = self._verification.report if self._verification else None
        if self._failure is not None and not (report and report.findings):
            raise self._failure
        if report is None or not (report.complete or report.findings):
            click.echo("trtspec verify: stopped before anything was compared", err=True)
            raise click.exceptions.Exit(EXIT_SIGNAL + signal.SIGINT)
        return report

    def end(self, report: VerifyReport, what: str) -> None:
        """Raise what the exit code is, where it is not 0."""
        if self._failure is not None:
            raise self._failure
        if not report.complete:
            raise click.exceptions.Exit(EXIT_SIGNAL + signal.SIGINT)
        if not report.compared:
            raise ClientError(f"{what}: nothing was compared; see what was skipped, ask for other parts")
        if not report.ok:
            raise click.exceptions.Exit(EXIT_MISMATCH)


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
