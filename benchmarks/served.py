"""Tokens a second through the live server: draft lengths against none, eight streams against one.

    python benchmarks/served.py [--runs 5] [--new-tokens 128] [--json]

The demo pair, float32, greedy, streamed over gRPC from a client on the same machine. Every run asks
all draft lengths in turn, alone and eight at a time, so that drift of the machine hits them alike;
the table shows medians over the runs. Prompts are pieces of the Python standard library's tests.
"""

from __future__ import annotations

import json
import platform
import statistics
import sysconfig
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import click

from trtspec.build.pair import build
from trtspec.client import Client
from trtspec.triton_repo.repository import RepositoryOptions, write_repository
from trtspec.triton_repo.server import FREE_PORTS, serve
from trtspec.triton_repo.speculation.draft_table import DraftTable

# -1 adapts; None leaves it to the repository's table.
DRAFT_LENGTHS = (0, 2, 3, 4, 5, 6, 8, -1, None)
TABLE = DraftTable(((1, 0), (3, 5)))
STREAMS = 8
PROMPT_CHARACTERS = 200


def prompts() -> list[str]:
    library = Path(sysconfig.get_path("stdlib"))
    # A Python without its test suite has the library at least.
    paths = sorted(library.glob("test/test_[d-h]*.py")) or sorted(library.glob("*.py"))
    texts = [text for path in paths if len(text := path.read_text("utf-8")) > 4000]
    return [text[1000 : 1000 + PROMPT_CHARACTERS] for text in texts[:STREAMS]]


def tokens_per_second(
    client: Client, asked: list[str], num_draft_tokens: int | None, new_tokens: int
) -> float:
    options = {} if num_draft_tokens is None else {"num_draft_tokens": num_draft_tokens}

    def ask(prompt: str) -> int:
        with client.stream(prompt, max_tokens=new_tokens, **options) as stream:
            return len(stream.result.token_ids)

    started = time.perf_counter()
    with ThreadPoolExecutor(len(asked)) as threads:
        tokens = sum(threads.map(ask, asked))
    return tokens / (time.perf_counter() - started)


def _name(length: int | None) -> str:
    return str(TABLE) if length is None else "auto" if length < 0 else str(length)


@click.command(help=__doc__)
@click.option("--runs", type=click.IntRange(1), default=5, show_default=True)
@click.option("--new-tokens", type=click.IntRange(1), default=128, show_default=True)
@click.option("--keep-awake", is_flag=True, help="As of `trtspec serve`.")
@click.option("--json", "as_json", is_flag=True)
def main(runs: int, new_tokens: int, keep_awake: bool, as_json: bool) -> None:
    texts = prompts()
    alone: dict[int | None, list[float]] = {length: [] for length in DRAFT_LENGTHS}
    together: dict[int | None, list[float]] = {length: [] for length in DRAFT_LENGTHS}
    source = Path(str(files("trtspec") / "demo_pair"))
    with tempfile.TemporaryDirectory() as folder:
        pair = build(source / "target", source / "draft", Path(folder, "pair"), report=lambda line: None)
        repository = write_repository(pair, Path(folder, "repo"), RepositoryOptions(num_draft_tokens=TABLE))
        options = replace(FREE_PORTS, keep_awake=keep_awake)
        with serve(repository, options) as server, Client(server.grpc_url) as client:
            tokens_per_second(client, texts, 8, 16)
            for run in range(runs):
                for length in DRAFT_LENGTHS:
                    alone[length].append(
                        tokens_per_second(client, [texts[run % len(texts)]], length, new_tokens)
                    )
                    together[length].append(tokens_per_second(client, texts, length, new_tokens))
    medians = {
        length: (statistics.median(alone[length]), statistics.median(together[length]))
        for length in DRAFT_LENGTHS
    }
    if as_json:
        click.echo(
            json.dumps(
                {
                    "tokens_per_s": {_name(length): found for length, found in medians.items()},
                    "streams": STREAMS,
                    "runs": runs,
                }
            )
        )
        return
    click.echo(f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}; {runs} runs")
    click.echo(f"{'γ':>9}  {'one stream':>10}  {'× γ 0':>6}  {STREAMS} streams  × one stream")
    for length, (one, many) in medians.items():
        click.echo(
            f"{_name(length):>9}  {one:10.1f}  {one / medians[0][0]:6.2f}  {many:9.1f}  {many / one:12.2f}"
        )
    best = max(DRAFT_LENGTHS[:-2], key=lambda length: medians[length][0])
    click.echo(f"best γ {best}: {medians[best][0] / medians[0][0]:.2f} × γ = 0")


if __name__ == "__main__":
    main()
