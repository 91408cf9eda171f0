"""Peers side by side on the same pair, in one run: plain and speculative tokens a second.

\b
    python benchmarks/peers/run.py --peers-python PEERS/bin/python --work /var/tmp/peers
    python benchmarks/peers/run.py --only transformers --only trtspec     # needs no peers installed
    python benchmarks/peers/run.py --pair large --prompts 3 --peers-python … --work …

Greedy, one answer at a time. Each system has a process of its own, on one core and with one thread;
trtspec's server has all cores, since it is several processes of one thread each. The peers have no
server here. In every round each system answers with each draft length, so that drift hits all alike;
the prompts go round among the draft lengths. No system may answer from a cache of earlier prompts. Medians
over the rounds; the time is that of the whole answer, its prompt included. Answers are compared with
those of plain float32 transformers.

--pair demo: trtspec's demo pair; prompts are 64 tokens of text that its training left out.
--pair large: 0.43 B parameters of random weights (large_pair.py says how its draft comes to be right).
The table says what share of the memory bandwidth, measured in the same run, reading the weights takes.
All systems together hold 18 GB; with less, name some by --only.

--clock processor counts the processor's time in place of the wall's: for a machine that has other work.
It says nothing about the server, whose processes are not the one that asks.

requirements.txt says how to make the environment of PEERS.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import click
import pairs
import report
from processes import Worker, start
from systems import Answer, Question
from worker import CLOCKS

WARM_UP_TOKENS = 16
# In each round; the fastest of all counts.
MEMORY_READS = 5
# Gigabytes of the matrix that the system `memory` reads.
MEMORY_GB = (1 << 30) / 1e9


@dataclass(frozen=True)
class System:
    """What worker.py loads under a name of the table, and where its files come from."""

    name: str
    loads: str
    folder: Callable[[pairs.Setting, str], Path]
    dtype: str = "float32"
    weight_bytes: int = 4  # that a pass reads; trtspec keeps the bfloat16 of the checkpoint
    of_peers: bool = False
    all_cores: bool = False
    only_large: bool = False


SYSTEMS = (
    System("transformers", "hugging_face", pairs.as_it_is),
    System("transformers bf16", "hugging_face", pairs.as_it_is, "bfloat16", 2, only_large=True),
    System("onnxruntime-genai", "onnxruntime", pairs.prepare_onnx, of_peers=True),
    System("openvino-genai", "openvino", pairs.prepare_openvino, of_peers=True),
    System("trtspec", "trtspec_engine", pairs.prepare_engines, weight_bytes=2),
    System("trtspec served", "trtspec_served", pairs.prepare_repository, weight_bytes=2, all_cores=True),
)
# By system and draft length: the answers by prompt.
Answers = dict[tuple[System, int], dict[int, Answer]]


def measure(
    workers: dict[System, Worker],
    memory: Worker,
    prompts: Sequence[list[int]],
    draft_lengths: Sequence[int],
    new_tokens: int,
) -> tuple[Answers, float]:
    """Return all answers, and the largest bandwidth that was seen, in GB/s."""
    answers: Answers = {(system, length): {} for system in workers for length in draft_lengths}
    for system, length in answers:
        workers[system].ask(Question(prompts[-1], length, WARM_UP_TOKENS))
    seconds = []
    for round_ in range(len(prompts)):
        seconds += [memory.ask(Question([], 0, 0)).seconds for _ in range(MEMORY_READS)]
        for system, worker in workers.items():
            for place, length in enumerate(draft_lengths):
                prompt = (round_ + place) % len(prompts)
                answer = worker.ask(Question(prompts[prompt], length, new_tokens))
                answers[system, length][prompt] = answer
        click.echo(f"round {round_ + 1} of {len(prompts)}", err=True)
    return answers, MEMORY_GB / min(seconds)


@click.command(help=__doc__)
@click.option("--pair", type=click.Choice(["demo", "large"]), default="demo", show_default=True)
@click.option("--only", "names", multiple=True, type=click.Choice([system.name for system in SYSTEMS]))
@click.option("--draft-length", "lengths", multiple=True, type=click.IntRange(0, pairs.MAX_DRAFT_LEN))
@click.option("--prompts", "count", type=click.IntRange(1), default=8, show_default=True)
@click.option("--new-tokens", type=click.IntRange(1, 256), default=128, show_default=True)
@click.option("--peers-python", help="The Python that has the peers.")
@click.option("--work", type=click.Path(path_type=Path), help="Keeps the exports; large: 12 GB.")
@click.option("--clock", type=click.Choice(list(CLOCKS)), default="wall", show_default=True)
@click.option("--core", type=int, default=max(os.sched_getaffinity(0)), show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    pair: str,
    names: Sequence[str],
    lengths: Sequence[int],
    count: int,
    new_tokens: int,
    peers_python: str | None,
    work: Path | None,
    clock: str,
    core: int,
    as_json: bool,
) -> None:
    chosen = [
        system
        for system in SYSTEMS
        if (system.name in names if names else pair == "large" or not system.only_large)
    ]
    if clock == "processor":
        chosen = [system for system in chosen if not system.all_cores]
    if not peers_python and (missing := [system.name for system in chosen if system.of_peers]):
        raise click.UsageError(f"{', '.join(missing)}: --peers-python is missing; or choose with --only")
    lengths = lengths or (0, 3, 5, 8)
    with ExitStack() as stack:
        folder = work or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder = folder / pair
        folder.mkdir(parents=True, exist_ok=True)
        at = pairs.Setting(pairs.prepare_checkpoints(pair, folder), folder, peers_python or sys.executable)

        def started(system: System) -> Worker:
            python = at.peers_python if system.of_peers else sys.executable
            files, log = system.folder(at, system.dtype), folder / f"{system.name}.log"
            cores = "all" if system.all_cores else str(core)
            return stack.enter_context(start(python, system.loads, files, system.dtype, clock, cores, log))

        workers = {system: started(system) for system in chosen}
        memory = started(System("memory", "memory", pairs.as_it_is))
        answers, bandwidth = measure(workers, memory, pairs.prompts(count), lengths, new_tokens)
        target, draft = (pairs.weights_per_pass(at.checkpoints / role) for role in pairs.ROLES)
    expected = next(
        (found for (system, length), found in answers.items() if _is_reference(system, length)), {}
    )
    rows = [
        report.row(
            system.name,
            system.dtype,
            length,
            found,
            expected,
            (target * system.weight_bytes, draft * system.weight_bytes),
        )
        for (system, length), found in answers.items()
    ]
    if as_json:
        click.echo(json.dumps(report.summary(rows, bandwidth)))
        return
    click.echo(f"{report.hardware()}; memory {bandwidth:.1f} GB/s")
    click.echo(
        f"{pair} pair, {clock} clock; {count} prompts of {pairs.PROMPT_TOKENS} tokens, "
        f"{new_tokens} new, greedy"
    )
    click.echo(report.table(rows, bandwidth, with_share=pair == "large"))


def _is_reference(system: System, draft_length: int) -> bool:
    return system.name == report.REFERENCE and draft_length == 0


if __name__ == "__main__":
    main()
