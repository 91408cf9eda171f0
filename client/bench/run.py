"""One run: all arms under all loads, interleaved.

Within a block every arm passes over the same prompts in the same order, at the same times where the
loop is open. The arms' order is drawn for every second block and turned round for the one after it,
so that what drifts evenly hits all arms alike, and what jumps hits them by chance.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from trtspec.client._errors import InvalidArgument
from trtspec.client.bench.load import Batch, check_load, run_segment
from trtspec.client.bench.random_tokens import WHY_NO_ACCEPTANCE
from trtspec.client.bench.result import (
    Arm,
    BenchResult,
    Load,
    PromptSet,
    Segment,
    Settings,
    Trial,
)
from trtspec.client.bench.statistics import largest_rate
from trtspec.client.bench.summary import summarize
from trtspec.client.bench.targets import BenchPrompt, Target

WARM_UP = -1
OnSegment = Callable[[Segment], None]


@dataclass(frozen=True)
class Prompts:
    """What is asked, with its name."""

    about: PromptSet
    items: tuple[BenchPrompt, ...]

    @classmethod
    def of(cls, name: str, items: Sequence[BenchPrompt], *, random_tokens: bool = False) -> Prompts:
        if not items:
            raise InvalidArgument(f"{name}: found no prompts, expected some")
        lines = "".join(json.dumps(item, ensure_ascii=False, sort_keys=True) + "\n" for item in items)
        sha256 = hashlib.sha256(lines.encode(errors="surrogatepass")).hexdigest()
        return cls(PromptSet(name, len(items), sha256, random_tokens), tuple(items))


@dataclass(frozen=True)
class Plan:
    """What is measured; the first arm is what the others are compared with.

    Args:
        requests: of a segment; more than there are prompts ask them again. None: every prompt once, and
            at least twice as many requests as are under way.
    """

    arms: tuple[Arm, ...]
    loads: tuple[Load, ...]
    prompts: Prompts
    settings: Settings
    requests: int | None = None

    def __post_init__(self) -> None:
        for kind, found in (("arms", self.arms), ("loads", self.loads)):
            all_names = [one.name for one in found]
            if not all_names or len(set(all_names)) < len(all_names):
                raise InvalidArgument(
                    f"{kind}: found {', '.join(all_names) or 'none'}, expected some, each once"
                )
        for load in self.loads:
            check_load(load)
        settings = self.settings
        counts = {"max_tokens": settings.max_tokens, "blocks": settings.blocks, "requests": self.requests}
        for name, count in counts.items():
            if count is not None and count < 1:
                raise InvalidArgument(f"{name}: found {count}, expected at least 1")
        if not 0 < settings.confidence < 1:
            raise InvalidArgument(f"confidence: found {settings.confidence}, expected a rate between 0 and 1")

    def requests_of(self, load: Load) -> int:
        """Return how many requests a segment under this load has."""
        return self.requests or max(len(self.prompts.items), 2 * (load.concurrency or 0))


def bench(
    targets: Sequence[Target],
    plan: Plan,
    *,
    about: Mapping[str, str] | None = None,
    on_segment: OnSegment = lambda segment: None,
) -> BenchResult:
    """Return what was measured; the targets are closed.

    Args:
        targets: the servers that the arms name.
        about: what else shall stand in the result.
        on_segment: called with each segment when it is over, warm-up included (block -1).

    Raises:
        InvalidArgument, RequestRefused: for what cannot be asked of one of the servers.
        CallFailed: when no request of a segment was answered.
    """
    return asyncio.run(bench_async(targets, plan, about=about, on_segment=on_segment))


async def bench_async(
    targets: Sequence[Target],
    plan: Plan,
    *,
    about: Mapping[str, str] | None = None,
    on_segment: OnSegment = lambda segment: None,
) -> BenchResult:
    """As `bench`, in the running event loop, whose clock times everything."""
    run = _Run({target.name: target for target in targets}, plan, on_segment)
    try:
        described = await run.describe()
        await run.run()
    finally:
        for target in targets:
            await target.close()
    return run.result({**described, **(about or {})})


class _Run:
    def __init__(self, targets: Mapping[str, Target], plan: Plan, on_segment: OnSegment) -> None:
        if missing := sorted({arm.server for arm in plan.arms} - targets.keys()):
            raise InvalidArgument(f"arms: found servers {', '.join(missing)}, expected {', '.join(targets)}")
        self._targets = targets
        self._plan = plan
        self._on_segment = on_segment
        self._segments: list[Segment] = []
        self._trials: list[Trial] = []

    async def describe(self) -> dict[str, str]:
        """Return what the servers say of themselves; the first that does not answer is an error."""
        found = {}
        for name, target in self._targets.items():
            prefix = f"{name}: " if len(self._targets) > 1 else ""
            found |= {prefix + key: value for key, value in (await target.describe()).items()}
        return found

    async def run(self) -> None:
        plan, settings = self._plan, self._plan.settings
        # The last load is the heaviest where they are given in order.
        for _ in range(settings.warm_up):
            for arm in plan.arms:
                await self._segment(arm, plan.loads[-1], WARM_UP)
        for block in range(settings.blocks):
            for number, load in enumerate(plan.loads):
                for arm in arms_in_order(plan.arms, block, seed=settings.seed + number):
                    await self._segment(arm, load, block)

    async def _segment(self, arm: Arm, load: Load, block: int) -> None:
        plan = self._plan
        rng = random.Random(f"{plan.settings.seed} {block}")
        numbers = [n % len(plan.prompts.items) for n in range(plan.requests_of(load))]
        rng.shuffle(numbers)
        batch = Batch(arm, load, block, tuple(numbers), plan.settings.max_tokens)
        # The same for all arms of a block, so that an open loop sends to all at the same times.
        seed = (plan.settings.seed, block - WARM_UP)
        segment, trials = await run_segment(self._targets[arm.server], batch, plan.prompts.items, seed)
        self._on_segment(segment)
        if block != WARM_UP:
            self._segments.append(segment)
            self._trials += trials

    def result(self, about: dict[str, str]) -> BenchResult:
        plan, is_random = self._plan, self._plan.prompts.about.random_tokens
        trials = tuple(replace(t, speculation=None) if is_random else t for t in self._trials)
        return BenchResult(
            about=about,
            settings=plan.settings,
            prompts=plan.prompts.about,
            arms=plan.arms,
            loads=plan.loads,
            segments=tuple(self._segments),
            trials=trials,
            summaries=summarize(
                trials, self._segments, plan.arms, plan.loads, plan.settings, shows_acceptance=not is_random
            ),
            notes=tuple(_notes(plan, trials)),
        )


def arms_in_order(arms: Sequence[Arm], block: int, *, seed: int) -> tuple[Arm, ...]:
    """Return the arms in the order they run in a block; the next block's is the reverse of an even one's."""
    order = list(arms)
    random.Random(f"{seed} {block // 2}").shuffle(order)
    return tuple(reversed(order) if block % 2 else order)


def _notes(plan: Plan, trials: Sequence[Trial]) -> list[str]:
    notes = []
    if plan.prompts.about.random_tokens:
        notes.append(WHY_NO_ACCEPTANCE)
    rate = largest_rate(plan.settings.blocks)
    if rate < plan.settings.confidence:
        notes.append(
            f"{plan.settings.blocks} blocks: intervals of totals hold the truth at a rate of {rate:.3g} at "
            f"most, not {plan.settings.confidence:g}; ask for more blocks"
        )
    if off := sorted({t.speculation.off_reason for t in trials if t.speculation} - {""}):
        notes.append(f"some answers were written without a draft: {off[0]}")
    if failed := [t for t in trials if not t.ok]:
        notes.append(f"{len(failed)} of {len(trials)} requests failed, the first with: {failed[0].error}")
    answers: dict[int, set[str]] = {}
    for trial in trials:
        if trial.ok:
            answers.setdefault(trial.prompt, set()).add(trial.answer)
    if differ := sum(len(found) > 1 for found in answers.values()):
        notes.append(
            f"{differ} of {len(answers)} prompts had not the same answer from all arms: different models, or "
            "near-ties that rounding decides; arms that write other texts are not asked for the same work"
        )
    return notes
