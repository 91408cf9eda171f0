"""One run: all arms under all loads, interleaved.

Within a block every arm passes over the same prompts in the same order, at the same times where the
loop is open. The arms' order is drawn for every second block and turned round for the one after it,
so that what drifts evenly hits all arms alike, and what jumps hits them by chance.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from trtspec.choices import AUTO
from trtspec.client._errors import InvalidArgument
from trtspec.client.bench.load import Batch, run_segment
from trtspec.client.bench.plan import Plan
from trtspec.client.bench.random_tokens import WHY_NO_ACCEPTANCE
from trtspec.client.bench.result import (
    Arm,
    BenchResult,
    Load,
    Segment,
    Trial,
)
from trtspec.client.bench.statistics import largest_rate
from trtspec.client.bench.summary import summarize
from trtspec.client.bench.targets import Target
from trtspec.errors import ClientError, TrtspecError

WARM_UP = -1
OnSegment = Callable[[Segment], None]


class Unfinished(TrtspecError):
    """A run that could not go on; `result` has the blocks that were whole, and the cause says why."""

    def __init__(self, message: str, result: BenchResult) -> None:
        super().__init__(message)
        self.result = result


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
        Unfinished: from one of these, or from what interrupted it, once a block is whole.
    """
    run = _Run({target.name: target for target in targets}, plan, on_segment, about or {})
    try:
        return asyncio.run(run.measured())
    except Exception:
        raise
    except BaseException as error:
        if not run.whole_blocks:
            raise
        raise run.unfinished(error) from error


async def bench_async(
    targets: Sequence[Target],
    plan: Plan,
    *,
    about: Mapping[str, str] | None = None,
    on_segment: OnSegment = lambda segment: None,
) -> BenchResult:
    """As `bench`, in the running event loop, whose clock times everything."""
    return await _Run({target.name: target for target in targets}, plan, on_segment, about or {}).measured()


class _Run:
    def __init__(
        self, targets: Mapping[str, Target], plan: Plan, on_segment: OnSegment, about: Mapping[str, str]
    ) -> None:
        if missing := sorted({arm.server for arm in plan.arms} - targets.keys()):
            raise InvalidArgument(f"arms: found servers {', '.join(missing)}, expected {', '.join(targets)}")
        self._targets = targets
        self._plan = plan
        self._on_segment = on_segment
        self._segments: list[Segment] = []
        self._trials: list[Trial] = []
        self._about = dict(about)
        self.whole_blocks = 0

    async def measured(self) -> BenchResult:
        try:
            self._about = {**await self.describe(), **self._about}
            await self.run()
        except ClientError as error:
            if not self.whole_blocks:
                raise
            raise self.unfinished(error) from error
        finally:
            for target in self._targets.values():
                await target.close()
        return self.result()

    def unfinished(self, error: BaseException) -> Unfinished:
        """Return the error with what the whole blocks come to, of which there must be one."""
        done, asked = self.whole_blocks, self._plan.settings.blocks
        why = "interrupted" if isinstance(error, KeyboardInterrupt) else error
        said = f"stopped in block {done + 1} of {asked}: {why}"
        self._segments = [segment for segment in self._segments if segment.block < done]
        self._trials = [trial for trial in self._trials if trial.block < done]
        self._plan = replace(self._plan, settings=replace(self._plan.settings, blocks=done))
        result = self.result()
        return Unfinished(said, replace(result, notes=(said, *result.notes)))

    async def describe(self) -> dict[str, str]:
        """Return what the servers say of themselves; the first that does not answer is an error."""
        found: dict[str, str] = {}
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
            self.whole_blocks = block + 1

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

    def result(self) -> BenchResult:
        plan, is_random = self._plan, self._plan.prompts.about.random_tokens
        trials = tuple(replace(t, speculation=None) if is_random else t for t in self._trials)
        return BenchResult(
            about=self._about,
            settings=plan.settings,
            prompts=plan.prompts.about,
            arms=plan.arms,
            loads=plan.loads,
            segments=tuple(self._segments),
            trials=trials,
            summaries=summarize(
                trials, self._segments, plan.arms, plan.loads, plan.settings, shows_acceptance=not is_random
            ),
            notes=(*_notes(plan, trials), *_overloads(plan, trials, self._segments)),
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
    drafted = {arm.name for arm in plan.arms if arm.num_draft_tokens not in (0, AUTO)}
    reasons = [t.speculation.off_reason for t in trials if t.arm in drafted and t.speculation]
    if off := [reason for reason in reasons if reason]:
        notes.append(f"{len(off)} of {len(reasons)} answers went on without a draft: {off[0]}")
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


def _overloads(plan: Plan, trials: Sequence[Trial], segments: Sequence[Segment]) -> Iterator[str]:
    """Yield where an open loop sent faster than was answered: what it measured is its own length."""
    for load in plan.loads:
        slow = []
        for arm in plan.arms:
            here = [one for one in segments if (one.arm, one.load) == (arm.name, load.name)]
            mine = [one for one in trials if (one.arm, one.load) == (arm.name, load.name)]
            last_due_s = [max(t.due_s for t in mine if t.block == one.block) for one in here]
            sending_s, wall_s = sum(last_due_s), sum(one.wall_s for one in here)
            if load.kind == "open" and wall_s > 2 * sending_s:
                slow.append(arm.name)
        if slow:
            yield (
                f"{load.name}: more than half of the time passed after the last request was sent "
                f"({', '.join(slow)}): either the server did not keep up, and times tell how many requests "
                "were sent, or these were too few; ask for a lower rate or more requests"
            )
