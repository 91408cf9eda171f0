"""`trtspec trace`."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import click

from trtspec.cli.parts.prompt_text import prompt_text
from trtspec.cli.parts.report_files import STDOUT, check_files, file_option, write_reports


@click.command()
@click.argument("prompt")
@click.option(
    "--pair",
    "folder",
    type=click.Path(path_type=Path),
    required=True,
    help="An engine pair of --runtime cpu; it runs in this process, without a server.",
)
@click.option("--max-tokens", type=click.IntRange(min=1), default=64, show_default=True)
@click.option("--num-draft-tokens", type=click.IntRange(min=0), default=5, show_default=True, help="γ.")
@click.option("--temperature", type=float, help="Draw at random; greedy when left out.")
@click.option("--top-k", type=int)
@click.option("--top-p", type=float)
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), default=0, show_default=True)
@click.option(
    "--use-draft-logits",
    is_flag=True,
    help="Accept by the ratio p/q; else where the target draws the same token itself.",
)
@click.option("--probabilities", is_flag=True, help="Print p, q and their ratio for every token.")
@file_option("html", "a page too")
@click.option("--json", "as_json", is_flag=True, help="Print the trace as one JSON object.")
def command(
    prompt: str,
    folder: Path,
    max_tokens: int,
    num_draft_tokens: int,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    seed: int,
    use_draft_logits: bool,
    probabilities: bool,
    html_file: Path | None,
    as_json: bool,
) -> None:
    """Show speculation at work: a line for every round, with what was drafted and what was kept.

    PROMPT is the text, or - to read it from stdin, byte for byte.

    \b
    Example:
      trtspec trace "def main(" --pair work/pair --num-draft-tokens 4
      trtspec trace "def main(" --pair work/pair --probabilities --html trace.html
    """
    check_files({"--html": html_file, "--json": STDOUT if as_json else None})
    from trtspec.cli.parts.console import console
    from trtspec.engines.pair import open_pair
    from trtspec.errors import OutputError
    from trtspec.triton_repo.trace.picture import legend, lines, page, summary
    from trtspec.triton_repo.trace.record import trace

    found = trace(
        open_pair(folder),
        prompt_text(prompt),
        max_tokens=max_tokens,
        num_draft_tokens=num_draft_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        use_draft_logits=use_draft_logits,
    )
    if faults := write_reports([(html_file, partial(page, found))]):
        raise OutputError("; ".join(faults))
    if as_json:
        click.echo(json.dumps(found.as_dict(), ensure_ascii=False))
    if as_json or html_file == STDOUT:
        return
    screen = console()
    for line in lines(found, probabilities=probabilities):
        screen.print(line)
    screen.print(summary(found))
    screen.print(legend())
