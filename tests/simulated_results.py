"""Results of benchmarks that never ran: times and acceptance are drawn from known distributions."""

from __future__ import annotations

import random
from collections.abc import Sequence

from trtspec.client import ServerTimes, Speculation
from trtspec.client.bench.result import (
    Arm,
    Arrival,
    BenchResult,
    Bound,
    Load,
    PromptSet,
    Segment,
    Settings,
    Trial,
)
from trtspec.client.bench.summary import summarize

CLOSED = (Load.closed(1), Load.closed(4), Load.closed(16))
OPEN = (Load.open(0.5), Load.open(1), Load.open(2))
ARMS = (Arm("γ=0", "here", 0), Arm("γ=4", "here", 4), Arm("auto", "here", -1), Arm("theirs", "there", None))
TOKENS = 40
BLOCKS = 4


def simulated(
    loads: Sequence[Load] = CLOSED,
    *,
    arms: Sequence[Arm] = ARMS,
    prompts: int = 8,
    alpha: float = 0.8,
    notes: Sequence[str] = (),
    **about: str,
) -> BenchResult:
    """Return what a run of these arms and loads could have measured; same arguments, same result."""
    rng = random.Random(5)
    settings = Settings(max_tokens=TOKENS, blocks=BLOCKS, warm_up=1, seed=0, bound=Bound(e2e_s=2.0))
    trials, segments = [], []
    for load in loads:
        for block in range(BLOCKS):
            for arm in arms:
                found = [_trial(rng, arm, load, block, prompt, alpha) for prompt in range(prompts)]
                trials += found
                at_once = load.concurrency or 4
                wall_s = sum(trial.e2e_s for trial in found) / min(at_once, prompts)
                segments.append(Segment(arm.name, load.name, block, wall_s))
    return BenchResult(
        about={"command": "trtspec bench here --against https://there/v1", "hardware": "a machine", **about},
        settings=settings,
        prompts=PromptSet("code", prompts, "0" * 64),
        arms=tuple(arms),
        loads=tuple(loads),
        segments=tuple(segments),
        trials=tuple(trials),
        summaries=summarize(trials, segments, arms, loads, settings, shows_acceptance=True),
        notes=tuple(notes),
    )


def _trial(rng: random.Random, arm: Arm, load: Load, block: int, prompt: int, alpha: float) -> Trial:
    draft_tokens = {-1: 3, None: 0}.get(arm.num_draft_tokens, arm.num_draft_tokens or 0)
    busy = 1 + 0.1 * (load.concurrency or 4 * (load.rate_per_s or 0))
    now = due = rng.uniform(0, 1)
    now += 0.05 * busy * rng.lognormvariate(0, 0.4)
    arrivals, tokens, rounds = [], 0, 0
    proposed, accepted = [0] * draft_tokens, [0] * draft_tokens
    while tokens < TOKENS:
        now += 0.02 * busy * (1 + 0.1 * draft_tokens) * rng.lognormvariate(0, 0.3)
        kept = next((k for k in range(draft_tokens) if rng.random() > alpha), draft_tokens)
        rounds += bool(draft_tokens)
        proposed = [count + 1 for count in proposed]
        accepted = [count + (k < kept) for k, count in enumerate(accepted)]
        new = min(kept + 1, TOKENS - tokens)
        tokens += new
        arrivals.append(Arrival(now, None if arm.num_draft_tokens is None else new))
    is_ours = arm.num_draft_tokens is not None
    speculation = Speculation(rounds, sum(proposed), sum(accepted), tuple(accepted), tuple(proposed))
    begun_ns, ended_ns = 10**9, 10**9 + int((now - due) * 0.9e9)
    return Trial(
        arm=arm.name,
        load=load.name,
        block=block,
        prompt=prompt,
        due_s=due,
        sent_s=due,
        ended_s=now,
        arrivals=tuple(arrivals),
        tokens=tokens,
        tokens_from="ids" if is_ours else "usage",
        finish_reason="length",
        server=ServerTimes(begun_ns, begun_ns, begun_ns + 10**7, ended_ns) if is_ours else None,
        speculation=speculation if is_ours else None,
    )
