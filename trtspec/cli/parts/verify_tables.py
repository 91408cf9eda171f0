"""A verification's report, as tables in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtspec.choices import AUTO

if TYPE_CHECKING:
    from rich.table import Table

    from trtspec.client.verify import Case, Finding, VerifyReport


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
