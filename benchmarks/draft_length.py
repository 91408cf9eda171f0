"""The draft length that adapts against every fixed one, on made-up traces of acceptance and cost.

    python benchmarks/draft_length.py [--seeds 20] [--only WORDS] [--json]

Throughput is tokens per second that a request is in flight. "to best" divides by the fixed γ that
was best for the whole trace, known afterwards; "to none" by γ = 0. Mean and worst over the seeds.
The last line is what choosing and recording costs, one thread, at γ max 8.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from speculation_simulator import MAX_DRAFT_LEN, Comparison, compare, traces

from trtspec.triton_repo.speculation.adaptive_length import DraftLengths
from trtspec.triton_repo.speculation.draft_length import Round

ROUNDS = 20_000


def microseconds_a_round() -> float:
    request = DraftLengths(MAX_DRAFT_LEN).request()
    started = time.process_time()
    for i in range(ROUNDS):
        count = request.choose(1000).draft_tokens
        request.record_round(Round(count, i % (count + 1), i % (count + 1) + 1, 0.01 * count, 0.1))
    return (time.process_time() - started) / ROUNDS * 1e6


def line(found: list[Comparison]) -> str:
    gains = [max(each.fixed) / each.fixed[0] for each in found]
    to_best, to_plain = [each.to_best for each in found], [each.to_plain for each in found]
    lengths = sorted({each.best_fixed for each in found})
    return (
        f"{found[0].trace:42}  {','.join(map(str, lengths)):>5}  {sum(gains) / len(gains):5.2f}"
        f"  {sum(to_best) / len(found):7.3f}  {min(to_best):6.3f}"
        f"  {sum(to_plain) / len(found):7.3f}  {min(to_plain):6.3f}"
    )


@click.command(help=__doc__)
@click.option("--seeds", type=click.IntRange(1), default=20, show_default=True)
@click.option("--only", default="", help="Traces whose name holds this.")
@click.option("--json", "as_json", is_flag=True)
def main(seeds: int, only: str, as_json: bool) -> None:
    found = {
        trace.name: [compare(trace, seed) for seed in range(seeds)]
        for trace in traces()
        if only in trace.name
    }
    price = microseconds_a_round()
    if as_json:
        ratios = {name: [(each.to_best, each.to_plain) for each in of] for name, of in found.items()}
        click.echo(json.dumps({"ratios": ratios, "microseconds_a_round": price}))
        return
    click.echo(f"{seeds} seeds\n{'trace':42}  best γ   gain  to best   worst  to none   worst")
    for of in found.values():
        click.echo(line(of))
    worst = min(each.to_best for of in found.values() for each in of)
    lowest = min(each.to_plain for of in found.values() for each in of)
    click.echo(f"worst of all: {worst:.3f} of the best fixed γ, {lowest:.3f} of γ = 0")
    click.echo(f"{price:.1f} µs a round")


if __name__ == "__main__":
    main()
