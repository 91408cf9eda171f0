"""trtspec query: ask a running server."""

from __future__ import annotations

import json
import math
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from trtspec.cli.parts.fields import Number
from trtspec.cli.parts.prompt_text import prompt_text
from trtspec.cli.parts.report import to_stderr

if TYPE_CHECKING:
    from trtspec.client import Generation, Stream


@click.command(epilog="Exit codes: 0 done, 1 could not, 2 wrong usage.")
@click.argument("prompt")
@click.option(
    "--url",
    default="localhost:8001",
    show_default=True,
    help="Address of the server: host:port of gRPC, or with grpc://, grpcs://, http:// or https://.",
)
@click.option("--model", help="What to ask; by default what the server has.")
@click.option("--max-tokens", type=int, default=128, show_default=True, help="Tokens to generate at most.")
@click.option(
    "--num-draft-tokens",
    type=int,
    help="Tokens drafted ahead, 0 for none, -1 for as many as pay; changes no answer.",
)
@click.option("--stop", multiple=True, help="Text that ends the answer; may be given several times.")
@click.option("--temperature", type=float, help="Draw at random; greedy when left out.")
@click.option("--seed", type=int, help="Same seed, same draw.")
@click.option(
    "--timeout",
    type=Number(0, min_open=True),
    callback=lambda ctx, option, value: _finite(value),
    default=300.0,
    show_default=True,
    help="Seconds for the whole answer.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object when the answer is whole.")
@click.option("--stats", is_flag=True, help="Print counts of tokens and speculation on stderr.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    prompt: str,
    url: str,
    model: str | None,
    max_tokens: int,
    num_draft_tokens: int | None,
    stop: tuple[str, ...],
    temperature: float | None,
    seed: int | None,
    timeout: float,
    as_json: bool,
    stats: bool,
) -> None:
    """Ask a running server; the answer is printed as it comes.

    PROMPT is the text, or - to read it from stdin, byte for byte.

    \b
    Example:
      trtspec query "def main(" --max-tokens 32
      printf 'def main(' | trtspec query - --stats
    """
    from trtspec.client import Client, Options

    options: Options = {"max_tokens": max_tokens, "stop_words": stop}
    if num_draft_tokens is not None:
        options["num_draft_tokens"] = num_draft_tokens
    if temperature is not None:
        options["temperature"] = temperature
    if seed is not None:
        options["seed"] = seed
    text = prompt_text(prompt)
    with Client(url, model=model, timeout_s=timeout) as client, client.stream(text, **options) as stream:
        try:
            _print_json(stream.result) if as_json else _print_deltas(stream)
        except BrokenPipeError:
            # Whoever read us has gone: what is left must not be flushed into the closed pipe at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(1)
        if stats:
            to_stderr(_summary(stream.result))


def _finite(seconds: float) -> float:
    if not math.isfinite(seconds):
        raise click.BadParameter(f"{seconds} is no number of seconds; give a large one for no limit")
    return seconds


def _print_deltas(stream: Stream) -> None:
    for delta in stream:
        # A terminal that cannot show a character gets a question mark, not a traceback.
        click.echo(delta.text.encode(sys.stdout.encoding, "replace"), nl=False)
    click.echo()


def _print_json(result: Generation) -> None:
    fields = asdict(result)
    del fields["generation_logits"]  # never asked for here
    if spec := result.speculation:
        derived = {"acceptance": spec.acceptance, "tokens_per_target_call": spec.tokens_per_target_call}
        fields["speculation"] |= derived
    click.echo(json.dumps(fields))


def _summary(result: Generation) -> str:
    reason = f" ({result.stop_reason!r})" if result.stop_reason else ""
    parts = [f"finish: {result.finish_reason}{reason}"]
    if usage := result.usage:
        parts.append(f"{usage.prompt_tokens} prompt and {usage.completion_tokens} new tokens")
    if spec := result.speculation:
        parts.append(
            f"{spec.rounds} rounds, {spec.accepted} of {spec.proposed} draft tokens kept "
            f"({spec.acceptance:.0%}), {spec.tokens_per_target_call:.2f} tokens a target call"
        )
        if spec.off_reason:
            parts.append(f"drafting ended: {spec.off_reason}")
    return "; ".join(parts)
