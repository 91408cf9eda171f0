"""What speculation will give: speed-up by draft length and by requests in flight, and whether to use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trtspec.build.tune.agreement import pooled
from trtspec.build.tune.intervals import Estimate
from trtspec.build.tune.measurement import Measured
from trtspec.theory import Costs, break_even_acceptance, round_cost

# A γ within that share of the best one is as good: loads that have one in common share it.
NEAR_BEST = 0.95


@dataclass(frozen=True)
class Point:
    """What γ gives at a number of requests in flight."""

    num_draft_tokens: int
    concurrency: int
    tokens_per_target_call: Estimate  # E
    speed_up: Estimate  # over γ = 0 at the same concurrency


@dataclass(frozen=True)
class Load:
    """What pays at a number of requests in flight."""

    concurrency: int
    costs: Costs  # at the longest draft
    best: Point  # of γ ≥ 1
    break_even_acceptance: float | None  # α above which some γ gains; None: none does
    recommended: int  # the best γ where it surely gains, else 0
    fastest: float  # the speed-up of what is recommended


@dataclass(frozen=True)
class Advice:
    """What to set, and why."""

    # From so many requests in flight on: γ. The first row is for 1.
    table: tuple[tuple[int, int], ...]
    loads: tuple[Load, ...]
    reason: str

    @property
    def num_draft_tokens(self) -> int | str:
        """The table as a repository takes it; a number where it has one row."""
        if len(self.table) == 1:
            return self.table[0][1]
        return ",".join(f"{start}:{length}" for start, length in self.table)

    @property
    def speculate(self) -> bool:
        """Whether speculation pays at any load."""
        return any(load.recommended for load in self.loads)

    def as_dict(self) -> dict[str, Any]:
        """Return it in JSON's types, the verdict first."""
        return {
            "speculate": self.speculate,
            "num_draft_tokens": self.num_draft_tokens,
            **asdict(self),
        }


@dataclass(frozen=True)
class Prediction:
    """What a pair will give, from what its checkpoints showed."""

    points: tuple[Point, ...]
    advice: Advice
    acceptance: Estimate  # α over all data sets


def costs_at(
    measured: Measured, num_draft_tokens: int, concurrency: int, round_overhead_s: float = 0.0
) -> Costs:
    """Return c, v and o of rounds with γ when so many requests are in flight, which share each pass."""
    passes = measured.target[concurrency]
    plain_s = passes.at(1)
    more_s = passes.at(num_draft_tokens + 1) - plain_s
    return Costs(
        draft_step=measured.draft_step_s[concurrency] / plain_s,
        verified_token=more_s / num_draft_tokens / plain_s if num_draft_tokens else 0.0,
        round=round_overhead_s / plain_s,
    )


def predict(
    measured: Measured,
    max_draft_tokens: int,
    *,
    round_overhead_s: float = 0.0,
) -> Prediction:
    """Return the speed-up of every γ up to `max_draft_tokens` at each load that was timed.

    The intervals are those of the prompts: what passes take counts as known.

    Args:
        round_overhead_s: what serving adds to a round beside the two models.
    """
    agreement = pooled(measured.agreements)
    tokens = {length: agreement.tokens_per_target_call(length) for length in range(max_draft_tokens + 1)}
    points = []
    costs = {}
    for flying in measured.target:
        for length, expected in tokens.items():
            costs[length, flying] = costs_at(measured, length, flying, round_overhead_s)
            factor = 1 / round_cost(length, costs[length, flying]) if length else 1.0
            points.append(Point(length, flying, expected, expected.scaled(factor)))
    acceptance = agreement.acceptance
    return Prediction(tuple(points), advise(points, acceptance, costs), acceptance)


def advise(points: Sequence[Point], acceptance: Estimate, costs: Mapping[tuple[int, int], Costs]) -> Advice:
    """Return what to set, from points that cover every γ at each number of requests in flight.

    Args:
        costs: by γ and number of requests in flight.
    """
    loads = tuple(
        _load([point for point in points if point.concurrency == flying], costs)
        for flying in dict.fromkeys(point.concurrency for point in points)
    )
    speed_ups = {(point.num_draft_tokens, point.concurrency): point.speed_up.value for point in points}
    return Advice(_table(loads, speed_ups), loads, _reason(loads, acceptance))


def _load(points: Sequence[Point], costs: Mapping[tuple[int, int], Costs]) -> Load:
    flying = points[0].concurrency
    best = max((p for p in points if p.num_draft_tokens), key=lambda p: p.speed_up.value)
    gains = best.speed_up.low > 1
    needed = [
        found
        for p in points
        if (found := break_even_acceptance(p.num_draft_tokens, costs[p.num_draft_tokens, flying])) is not None
    ]
    return Load(
        concurrency=flying,
        costs=costs[max(p.num_draft_tokens for p in points), flying],
        best=best,
        break_even_acceptance=min(needed, default=None),
        recommended=best.num_draft_tokens if gains else 0,
        fastest=best.speed_up.value if gains else 1.0,
    )


def _table(loads: Sequence[Load], speed_ups: Mapping[tuple[int, int], float]) -> tuple[tuple[int, int], ...]:
    """Return γ from so many requests in flight on; neighbours that can share one make one row."""
    rows: list[tuple[list[Load], int]] = []
    for load in sorted(loads, key=lambda load: load.concurrency):
        before = rows[-1][0] if rows else []
        shared = _shared_length([*before, load], speed_ups)
        if before and shared is not None:
            rows[-1] = ([*before, load], shared)
        else:
            rows.append(([load], load.recommended))
    return tuple((row[0].concurrency if n else 1, length) for n, (row, length) in enumerate(rows))


def _shared_length(loads: Sequence[Load], speed_ups: Mapping[tuple[int, int], float]) -> int | None:
    """Return the γ that is near the best at each of the loads; None where there is none.

    Where nothing surely gains, nothing but 0 will do.
    """
    lengths = {load.recommended for load in loads}
    if 0 in lengths:
        return 0 if len(lengths) == 1 else None
    shares = {
        length: min(speed_ups[length, load.concurrency] / load.fastest for load in loads)
        for length in sorted(lengths)
    }
    found = max(shares, key=shares.__getitem__)
    return found if shares[found] >= NEAR_BEST else None


def _reason(loads: Sequence[Load], acceptance: Estimate) -> str:
    """Return the verdict with the number that decides it."""
    gaining = [load for load in loads if load.recommended]
    if gaining:
        top = max(gaining, key=lambda load: load.fastest)
        gain = f"γ = {top.recommended} gives {_times(top.best.speed_up)}"
        said = f"speculate: {gain} at {top.concurrency} in flight"
        lost = [str(load.concurrency) for load in loads if not load.recommended]
        return f"{said}; not at {', '.join(lost)} in flight, where it does not surely gain" if lost else said
    top = max(loads, key=lambda load: load.best.speed_up.value)
    best = top.best
    said = (
        f"do not speculate: the best draft length, γ = {best.num_draft_tokens} at {top.concurrency} in "
        f"flight, gives {_times(best.speed_up)}; α is {_range(acceptance)}"
    )
    if top.break_even_acceptance is None:
        return f"{said}, and none would be enough: a draft step costs {top.costs.draft_step:.2f} target steps"
    if best.speed_up.value > 1:
        near = "too near to tell, give more prompts"
        return f"{said}, break-even is {top.break_even_acceptance:.2f}: {near}"
    return f"{said}, it would have to be above {top.break_even_acceptance:.2f}"


def _times(found: Estimate) -> str:
    return f"{_range(found)} times the speed"


def _range(found: Estimate) -> str:
    interval = f" ({found.low:.2f} to {found.high:.2f})" if found.low < found.high else ""
    return f"{found.value:.2f}{interval}"


def prediction_as_json(measured: Measured, found: Prediction) -> dict[str, Any]:
    """Return all that was measured and follows, in JSON's types."""
    return {
        "advice": found.advice.as_dict(),
        "points": [asdict(point) for point in found.points],
        "acceptance": asdict(found.acceptance),
        "datasets": {
            agreement.dataset: {
                "acceptance": asdict(agreement.acceptance),
                "prompts": len(agreement.matches),
                "tokens": sum(map(len, agreement.matches)),
            }
            for agreement in measured.agreements
        },
        "target_pass_s": {
            flying: dict(zip(curve.rows, curve.seconds, strict=True))
            for flying, curve in measured.target.items()
        },
        "draft_step_s": dict(measured.draft_step_s),
        "unrest": measured.unrest,
    }
