"""Load: when requests are sent, and what came of each.

All of it runs in one event loop, by whose clock everything is timed; a loop with a clock of its own
makes a run of any size exact and instant.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

import numpy as np

from trtspec.choices import MOST_CONCURRENT
from trtspec.client._errors import CallFailed, InvalidArgument, RequestRefused
from trtspec.client._options import Prompt
from trtspec.client.bench.result import Arm, Arrival, Load, Segment, Trial
from trtspec.client.bench.targets import Ending, Target

# More connections and tasks than that measure the client, not the server.


@dataclass(frozen=True)
class Batch:
    """The requests of one segment, in the order they are sent."""

    arm: Arm
    load: Load
    block: int
    # Which prompts are asked.
    numbers: tuple[int, ...]
    max_tokens: int


def check_load(load: Load) -> None:
    """Raise InvalidArgument for a load that cannot be made."""
    if load.kind == "closed" and not 1 <= (load.concurrency or 0) <= MOST_CONCURRENT:
        raise InvalidArgument(f"concurrency: found {load.concurrency}, expected 1 to {MOST_CONCURRENT}")
    if load.kind == "open" and not 0 < (load.rate_per_s or 0) < math.inf:
        raise InvalidArgument(f"rate: found {load.rate_per_s}, expected requests a second, more than 0")


def poisson_times(rate_per_s: float, count: int, seed: Sequence[int]) -> tuple[float, ...]:
    """Return when `count` requests are due: the first points of a Poisson process, in seconds."""
    gaps = np.random.default_rng(seed).exponential(1 / rate_per_s, count)
    return tuple(np.cumsum(gaps).tolist())


async def run_segment(
    target: Target, batch: Batch, prompts: Sequence[Prompt], seed: Sequence[int]
) -> tuple[Segment, tuple[Trial, ...]]:
    """Return how long the batch took, and its trials in the order they were sent.

    Args:
        seed: of the times of an open loop; equal seeds, equal times.

    Raises:
        InvalidArgument, RequestRefused: for what no request of the batch could get.
        CallFailed: the first one, when every request failed.
    """
    run = _SegmentRun(target, batch, prompts)
    load = batch.load
    if load.kind == "closed":
        await run.closed(load.concurrency or 1)
    else:
        await run.open(poisson_times(load.rate_per_s or 1, len(batch.numbers), seed))
    wall_s = run.now_s()
    if run.failures and len(run.failures) == len(batch.numbers):
        raise run.failures[0]
    trials = sorted(run.trials, key=lambda trial: trial.sent_s)
    return Segment(batch.arm.name, load.name, batch.block, wall_s), tuple(trials)


class _SegmentRun:
    """A batch on its way; times count from when it is made."""

    def __init__(self, target: Target, batch: Batch, prompts: Sequence[Prompt]) -> None:
        self.trials: list[Trial] = []
        self.failures: list[CallFailed] = []
        self._target = target
        self._batch = batch
        self._prompts = prompts
        self._clock = asyncio.get_running_loop().time
        self._began = self._clock()

    def now_s(self) -> float:
        return self._clock() - self._began

    async def closed(self, concurrency: int) -> None:
        """Ask so many at a time; each is due when the one before it is over."""
        left = iter(self._batch.numbers)

        async def work() -> None:
            for number in left:
                await self._ask(number, self.now_s())

        await _all([work() for _ in range(min(concurrency, len(self._batch.numbers)))])

    async def open(self, due: Sequence[float]) -> None:
        """Ask at the times they are due, whatever has become of those before."""

        async def at(number: int, due_s: float) -> None:
            await asyncio.sleep(due_s - self.now_s())
            await self._ask(number, due_s)

        await _all([at(number, due_s) for number, due_s in zip(self._batch.numbers, due, strict=True)])

    async def _ask(self, number: int, due_s: float) -> None:
        batch, sent_s = self._batch, self.now_s()
        trial = Trial(batch.arm.name, batch.load.name, batch.block, number, due_s, sent_s, ended_s=sent_s)
        try:
            self.trials.append(await self._answered(trial))
        except RequestRefused:
            raise
        except CallFailed as error:
            self.failures.append(error)
            self.trials.append(replace(trial, ended_s=self.now_s(), error=str(error) or type(error).__name__))

    async def _answered(self, trial: Trial) -> Trial:
        """Return the trial with what the target has answered."""
        arrivals: list[Arrival] = []
        text = hashlib.sha256()
        ending = Ending(0)
        arm, prompt = self._batch.arm, self._prompts[trial.prompt]
        pieces = self._target.ask(
            prompt, max_tokens=self._batch.max_tokens, num_draft_tokens=arm.num_draft_tokens
        )
        async with aclosing(pieces):
            async for piece in pieces:
                if isinstance(piece, Ending):
                    ending = piece
                else:
                    arrivals.append(Arrival(self.now_s(), piece.tokens))
                    text.update(piece.text.encode(errors="replace"))
        return replace(
            trial,
            ended_s=self.now_s(),
            arrivals=tuple(arrivals),
            answer=text.hexdigest()[:16],
            **vars(ending),
        )


async def _all(work: Sequence[Coroutine[None, None, None]]) -> None:
    """Wait for all of them; when one fails, or the run is stopped, the others are cancelled."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
