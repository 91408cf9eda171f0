"""The two KV caches: how many tokens fit beside the models, and which fractions ask for that.

TensorRT-LLM gives a KV cache `fraction` of the memory that is free once its own model is loaded, so a
fraction depends on what was loaded before. A limit in tokens does not; where both are set the smaller
counts, and over several ranks the smallest ("Memory Usage" page, "KV cache tensor").
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from trtspec.choices import Placement, PlannedRuntime
from trtspec.engines.memory.gpus import Gpu
from trtspec.engines.memory.ranks import Engine, Limits, RankMemory, rank_memories
from trtspec.engines.memory.result import Concurrency, GpuUse, ModelPlan
from trtspec.errors import PlanError

BLOCK_TOKENS = 32  # tokens_per_block
HEADROOM = 0.05  # of what is left beside the models, for what the estimates miss
STEP = 10_000  # fractions are given with four digits, rounded up: max_tokens is the sharper limit

Ranks = tuple[RankMemory, ...]


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """Two models and the GPUs they are to share."""

    target: Engine
    draft: Engine
    gpu: Gpu
    limits: Limits
    placement: Placement = "together"
    runtime: PlannedRuntime = "tensorrt"


@dataclass(frozen=True)
class Layout:
    """Which rank of which model lies on which GPU."""

    target: Ranks
    draft: Ranks
    target_gpus: tuple[int, ...]
    draft_gpus: tuple[int, ...]

    def on(self) -> dict[int, list[RankMemory]]:
        """Return the ranks on each GPU."""
        found: dict[int, list[RankMemory]] = defaultdict(list)
        for gpu, rank in zip(self.target_gpus + self.draft_gpus, self.target + self.draft, strict=True):
            found[gpu].append(rank)
        return dict(found)

    @property
    def shares(self) -> bool:
        """Whether a GPU holds both models."""
        return bool(set(self.target_gpus) & set(self.draft_gpus))


def lay_out(deployment: Deployment) -> Layout:
    """Place the ranks: both models from GPU 0 on, or the draft behind the target.

    Raises:
        PlanError: a model cannot be split like this, or the runtime cannot place them so.
    """
    target = rank_memories(deployment.target, deployment.limits, is_target=True)
    draft = rank_memories(deployment.draft, deployment.limits, is_target=False)
    if deployment.runtime == "pytorch":
        if len(target) != len(draft) or deployment.placement == "apart":
            raise PlanError(
                "runtime pytorch: one process holds both models, so the draft lies on the target's GPUs and "
                "is split like it; leave --placement and --draft-tp out"
            )
        draft = tuple(rank.model_copy(update={"runtime": 0}) for rank in draft)
    first = len(target) if deployment.placement == "apart" else 0
    return Layout(target, draft, tuple(range(len(target))), tuple(range(first, first + len(draft))))


def pool_tokens(layout: Layout, usable_bytes: int) -> tuple[int, int]:
    """Return the tokens that the target's and the draft's KV cache can hold, whole blocks; negative: none.

    A sequence has as many tokens in one cache as in the other, so models that share a GPU get the same.
    """

    def tokens(gpus: Sequence[int]) -> int:
        room = []
        for gpu in gpus:
            ranks = layout.on()[gpu]
            free = usable_bytes - sum(rank.fixed for rank in ranks)
            room.append(free * (1 - HEADROOM) / sum(rank.kv_per_token for rank in ranks))
        return math.floor(min(room) / BLOCK_TOKENS) * BLOCK_TOKENS

    if layout.shares:
        both = tokens([*layout.on()])
        return both, both
    return tokens(layout.target_gpus), tokens(layout.draft_gpus)


def model_plans(layout: Layout, tokens: tuple[int, int], usable_bytes: int) -> tuple[ModelPlan, ModelPlan]:
    """Return what to set for the target and the draft."""
    target = (layout.target, layout.target_gpus, tokens[0])
    draft = (layout.draft, layout.draft_gpus, tokens[1])
    return _model_plan(target, draft, usable_bytes), _model_plan(draft, target, usable_bytes)


Placed = tuple[Ranks, tuple[int, ...], int]


def _model_plan(model: Placed, other: Placed, usable_bytes: int) -> ModelPlan:
    ranks, gpus, tokens = model
    other_use = {gpu: rank.fixed + other[2] * rank.kv_per_token for rank, gpu in zip(*other[:2], strict=True)}
    first, second = [], []
    for rank, gpu in zip(ranks, gpus, strict=True):
        pool, free = tokens * rank.kv_per_token, usable_bytes - rank.fixed
        first.append(_fraction(pool, free))
        second.append(_fraction(pool, free - other_use.get(gpu, 0)))
    return ModelPlan(
        gpus=gpus,
        ranks=ranks,
        max_tokens=tokens,
        fraction_loaded_first=max(first),
        fraction_loaded_second=max(second),
    )


def shared_fraction(layout: Layout, tokens: int, usable_bytes: int) -> float:
    """Return the one fraction of a process that holds both models."""
    return max(
        _fraction(
            tokens * sum(rank.kv_per_token for rank in ranks),
            usable_bytes - sum(rank.fixed for rank in ranks),
        )
        for ranks in layout.on().values()
    )


def _fraction(pool: float, free: float) -> float:
    return min(1.0, math.ceil(pool / free * STEP) / STEP)


def gpu_uses(plans: tuple[ModelPlan, ModelPlan], usable_bytes: int) -> tuple[GpuUse, ...]:
    """Return what lies on each GPU."""
    fixed: dict[int, int] = defaultdict(int)
    kv_cache: dict[int, int] = defaultdict(int)
    for plan in plans:
        for i, gpu in enumerate(plan.gpus):
            fixed[gpu] += plan.ranks[i].fixed
            kv_cache[gpu] += plan.kv_bytes(i)
    return tuple(
        GpuUse(
            gpu=gpu, fixed=fixed[gpu], kv_cache=kv_cache[gpu], left=usable_bytes - fixed[gpu] - kv_cache[gpu]
        )
        for gpu in sorted(fixed)
    )


def sequence_tokens(length: int, limits: Limits) -> int:
    """Return the cache tokens of a sequence: its own and those drafted in a round, in whole blocks."""
    return math.ceil((length + limits.max_draft_len) / BLOCK_TOKENS) * BLOCK_TOKENS


def concurrency(tokens: tuple[int, int], length: int, limits: Limits) -> Concurrency:
    """Return how many sequences of a length run at once.

    Each keeps room for its whole length from the start, as the scheduler's guaranteed_no_evict does; common
    prompts, which both caches hold once, come on top.
    """
    by_memory = min(tokens) // sequence_tokens(length, limits)
    return Concurrency(length=length, by_memory=by_memory, served=min(by_memory, limits.max_batch_size))
