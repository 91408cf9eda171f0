"""`trtspec demo`."""

from __future__ import annotations

import json
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtspec.cli import EXIT_MISMATCH

if TYPE_CHECKING:
    from trtspec.client import Client

PROMPT = "def read_lines(path):\n    "
VERIFIED_PROMPTS = 20
SPEED_DRAFT_LENGTHS = (0, 3, 5)
SPEED_RUNS = 5
SPEED_TOKENS = 128


@click.command()
@click.option(
    "--work",
    type=click.Path(path_type=Path),
    help="Keep pair/ and repo/ in this folder; default: do not keep.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(1, 512),
    default=32,
    show_default=True,
    help="For each answer verified.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end, and nothing before.")
@click.pass_context
def command(ctx: click.Context, /, work: Path | None, max_tokens: int, as_json: bool) -> None:
    """Build, serve, ask, verify and time the pair that ships with trtspec.

    Two small models that complete Python. No GPU is needed: the engines are those of `--runtime cpu`,
    the server is a real Triton. Exit 3 when an answer differs from Hugging Face.

    \b
    Example:
      trtspec demo
      trtspec demo --work work
    """
    from importlib.resources import files

    from trtspec.build.pair import build
    from trtspec.cli.verify import print_report
    from trtspec.client import Client
    from trtspec.client.verify import DEFAULT_PROMPTS, HuggingFaceReference, Settings, verify
    from trtspec.triton_repo.repository import write_repository
    from trtspec.triton_repo.server import FREE_PORTS, serve

    def say(line: str) -> None:
        if not as_json:
            click.secho(line, bold=True)

    source = Path(str(files("trtspec") / "demo_pair"))
    with nullcontext(str(work)) if work else tempfile.TemporaryDirectory(prefix="trtspec-demo-") as folder:
        say("1. build the pair")
        pair = build(
            source / "target", source / "draft", Path(folder, "pair"), cache="none", report=lambda line: None
        )
        say("2. write the Triton model repository")
        repository = write_repository(pair, Path(folder, "repo"))
        say("3. start Triton and wait until it has answered")
        with serve(repository, FREE_PORTS) as server, Client(server.grpc_url) as client:
            say("4. stream an answer")
            if not as_json:
                _stream(client)
            prompts = DEFAULT_PROMPTS[:VERIFIED_PROMPTS]
            say(
                f"5. verify {len(prompts)} prompts against Hugging Face, without and with 1 to 8 draft tokens"
            )
            reference = HuggingFaceReference(pair.target, pair.tokenizer)
            settings = Settings(prompts, range(9), max_tokens=max_tokens, alone=0, parts=("greedy",))
            report = verify(client, reference, settings)
            if not as_json:
                print_report(report)
            say(f"6. time one stream of {SPEED_TOKENS} tokens, median of {SPEED_RUNS} interleaved runs")
            speeds = _measure_speeds(client)
            if not as_json:
                _print_speeds(speeds)
    if as_json:
        click.echo(json.dumps({"ok": report.ok, "answers": len(report.cases), "tokens_per_s": speeds}))
    if not report.ok:
        ctx.exit(EXIT_MISMATCH)


def _stream(client: Client) -> None:
    click.secho(PROMPT, dim=True, nl=False)
    with client.stream(PROMPT, max_tokens=64) as stream:
        for delta in stream:
            click.echo(delta.text, nl=False)
    click.echo()


def _measure_speeds(client: Client) -> dict[int, float]:
    """Return the median tokens per second of one stream, by draft length."""
    import statistics
    import time

    speeds: dict[int, list[float]] = {length: [] for length in SPEED_DRAFT_LENGTHS}
    for _ in range(SPEED_RUNS):
        for num_draft_tokens, found in speeds.items():
            started = time.perf_counter()
            answer = client.generate(PROMPT, max_tokens=SPEED_TOKENS, num_draft_tokens=num_draft_tokens)
            found.append(len(answer.token_ids) / (time.perf_counter() - started))
    return {length: round(statistics.median(found), 1) for length, found in speeds.items()}


def _print_speeds(speeds: dict[int, float]) -> None:
    for num_draft_tokens, speed in speeds.items():
        name = f"{num_draft_tokens} draft tokens" if num_draft_tokens else "without a draft"
        click.echo(f"   {name:<16} {speed:6.1f} tokens/s  × {speed / speeds[0]:.2f}")
