"""`trtspec doctor`: what this machine has, and which runtimes it can build and serve."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from trtspec.choices import RUNTIMES
from trtspec.cli import EXIT_MISMATCH

if TYPE_CHECKING:
    from trtspec.doctor.report import DoctorReport

COLOURS = {
    "found": "green",
    "warning": "yellow",
    "missing": "red",
    "here": "green",
    "container": "yellow",
    "no": "red",
}


@click.command("doctor")
@click.option(
    "--for",
    "runtime",
    type=click.Choice(RUNTIMES),
    help="Exit 3 where this runtime cannot run here.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
def command(runtime: str | None, as_json: bool) -> None:
    """Say what this machine has and which runtimes can be built and served on it.

    Each line has its evidence and, where something is missing, the next step. Nothing is changed, nothing
    needs root, and no program that is asked may take longer than ten seconds.

    \b
    Example:
      trtspec doctor
      trtspec doctor --for tensorrt --json

    Exit codes: 0 looked, 3 the runtime of --for cannot run here.
    """
    from trtspec.doctor.report import examine

    report = examine()
    if as_json:
        click.echo(json.dumps(report.as_dict(), ensure_ascii=False))
    else:
        _show(report)
    if runtime and not report.can_serve(runtime):
        raise click.exceptions.Exit(EXIT_MISMATCH)


def _show(report: DoctorReport) -> None:
    from rich.table import Column, Table
    from rich.text import Text

    from trtspec.cli.parts.console import console

    def cells(status: str, evidence: str, next_step: str) -> tuple[Text, Text]:
        said = Text(evidence)
        if next_step:
            said.append(f"\n→ {next_step}", style="dim")
        return Text(status, COLOURS[status]), said

    machine = Table("", "", Column("evidence → next step", overflow="fold"), title="this machine")
    for line in report.lines:
        machine.add_row(line.id.replace("_", " "), *cells(line.status, line.evidence, line.next_step))
    because = Column("because → next step", overflow="fold")
    runtimes = Table("runtime", "", "", because, title="what it can do")
    for found in report.runtimes:
        for what, ability in (("build", found.build), ("serve", found.serve)):
            runtimes.add_row(found.runtime, what, *cells(ability.how, ability.because, ability.next_step))
    screen = console()
    screen.print(machine)
    screen.print(runtimes)
