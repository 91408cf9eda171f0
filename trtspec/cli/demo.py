"""`trtspec demo`."""

from __future__ import annotations

import json
import tempfile
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtspec.cli import EXIT_MISMATCH

if TYPE_CHECKING:
    from trtspec.client import Client

PROMPT = "def read_lines(path):\n    "
VERIFIED_PROMPTS = 20
# -1: the server chooses.
SPEED_DRAFT_LENGTHS = (0, 3, 5, -1)
SPEED_STREAMS = (1, 8)
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
    from trtspec.cli.parts.verify_tables import print_report
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
            say(
                f"6. time answers of {SPEED_TOKENS} tokens, one and eight at a time, "
                f"median of {SPEED_RUNS} interleaved runs"
            )
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


def _measure_speeds(client: Client) -> dict[int, dict[int, float]]:
    """Return the median tokens per second of all answers, by how many are under way and draft length."""
    import statistics
    import time

    found: dict[tuple[int, int], list[float]] = {}
    for _, streams, length in product(range(SPEED_RUNS), SPEED_STREAMS, SPEED_DRAFT_LENGTHS):
        started = time.perf_counter()
        answers = client.generate_many(
            [PROMPT] * streams, concurrency=streams, max_tokens=SPEED_TOKENS, num_draft_tokens=length
        )
        tokens = sum(len(answer.token_ids) for answer in answers)
        found.setdefault((streams, length), []).append(tokens / (time.perf_counter() - started))
    return {
        streams: {
            length: round(statistics.median(found[streams, length]), 1) for length in SPEED_DRAFT_LENGTHS
        }
        for streams in SPEED_STREAMS
    }


def _print_speeds(speeds: dict[int, dict[int, float]]) -> None:
    names = {0: "without a draft", -1: "auto"}
    for length in SPEED_DRAFT_LENGTHS:
        cells = [
            f"{found[length]:8.1f} tokens/s  × {found[length] / found[0]:.2f}" for found in speeds.values()
        ]
        click.echo(f"   {names.get(length, f'{length} draft tokens'):<16} {'   '.join(cells)}")
    click.echo(
        "   A token of so small a target may cost less than a round's two calls of Triton, which answers\n"
        "   share when there are several. `trtspec tune` and `bench` say what a draft brings your own pair."
    )
