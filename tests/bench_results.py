"""Results of scripted runs in virtual time, with noise from a seed."""

from __future__ import annotations

import csv
import io
import random

from bench_doubles import Script, Scripted, TargetDouble, arms, run_virtually

from trtspec.client import ServerTimes, Speculation
from trtspec.client.bench.plan import Plan, Prompts
from trtspec.client.bench.result import BenchResult, Bound, Load, Settings
from trtspec.client.bench.rows import Row
from trtspec.client.bench.run import bench_async

PROMPTS = tuple(f"prompt {n}" for n in range(12))


def noisy(
    seed: int, *, slower: float = 1.0, accepted: int = 3, noise: float = 0.03, between_passes: float = 0.0
) -> Script:
    """Answers whose times vary by some percent; γ > 0 is faster, and `slower` says by how much less.

    Each pass over the prompts may be faster or slower as a whole, by the factor exp(`between_passes`).
    """
    rng = random.Random(seed)
    asked = 0
    machine = 1.0

    def script(prompt: object, num_draft_tokens: int | None) -> Scripted:
        nonlocal asked, machine
        if asked % len(PROMPTS) == 0 and between_passes:
            machine = rng.lognormvariate(0.0, between_passes)
        asked += 1
        factor = machine * rng.lognormvariate(0.0, noise) * (1 + PROMPTS.index(str(prompt)) % 5 / 10)
        times = ServerTimes(1, 1, 1, 10**8, engine_ns=8 * 10**7)
        if not num_draft_tokens:
            return Scripted([(0.05 * factor, 1)] + [(0.1 * factor, 5)] * 8, ending={"server": times})
        rounds = 40 // (accepted + 1)
        kept = tuple(rounds if n < accepted else 0 for n in range(4))
        speculation = Speculation(rounds, 4 * rounds, accepted * rounds, kept, (rounds,) * 4)
        wait_s = 0.03 * factor * slower
        responses = [(0.06 * factor, 1)] + [(wait_s, accepted + 1)] * rounds
        return Scripted(responses, ending={"server": times, "speculation": speculation})

    return script


def result_of(
    script: Script | None = None,
    *,
    blocks: int = 2,
    max_tokens: int = 41,
    prompts: tuple[str, ...] = PROMPTS,
    loads: tuple[Load, ...] = (Load.closed(1),),
    lengths: tuple[int, ...] = (0, 4),
) -> BenchResult:
    settings = Settings(max_tokens, blocks, warm_up=0, seed=0, bound=Bound(e2e_s=0.8))
    plan = Plan(arms(*lengths), loads, Prompts.of("test", prompts), settings)
    return run_virtually(
        bench_async([TargetDouble(script or noisy(0))], plan, about={"hardware": "a script"})
    )


def read_csv(text: str) -> tuple[Row, ...]:
    """Return the rows of a file that `bench --csv` wrote."""
    read = csv.DictReader(io.StringIO(text))
    return tuple(
        Row(
            row["load"],
            row["arm"],
            row["metric"],
            float(row["value"]),
            *(float(row[end]) if row[end] else None for end in ("low", "high")),
        )
        for row in read
    )
