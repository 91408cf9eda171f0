"""A double of a served pair in time: what rounds cost and which draft tokens are kept, by formula.

Every policy meets the same requests and the same luck: whether the draft token at a position of an
answer is kept is drawn once, so throughputs can be compared as they are.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from trtspec.triton_repo.speculation.adaptive_length import DraftLengths, SharedDraftLength
from trtspec.triton_repo.speculation.draft_length import DraftLength, FixedDraftLength, PlainCall, Round

MAX_DRAFT_LEN = 8
# Of a call of the target alone, until it is asked anew what else the target has to do.
CROWDED_TOKENS = 2


@dataclass(frozen=True)
class Costs:
    """Seconds, in steps of the target alone: one token of a streamed answer is 1."""

    draft: float = 0.1  # a token of the draft
    draft_call: float = 0.02  # a call of the draft, whatever its length
    verify: float = 0.02  # one more token for the target to check
    target_call: float = 0.1  # a call of the target, which a streamed answer needs once
    prefill: float = 0.01  # a token to read; the draft takes `draft` times that
    crowd: float = 0.0  # one more token to check in the same step, for another request
    pace: float = 1.0  # what all of that is multiplied by


def _constant(costs: Costs) -> Callable[[int, int], Costs]:
    return lambda lanes, done: costs


_USUAL = _constant(Costs())


@dataclass(frozen=True)
class Trace:
    """Requests to serve. `alpha(request, position)` is the chance that a draft token is kept."""

    name: str
    alpha: Callable[[int, NDArray[np.int64]], NDArray[np.float64]]
    # By the number of requests in flight and of tokens served so far.
    costs: Callable[[int, int], Costs] = _USUAL
    # Deeper positions of a round are kept less often.
    depth_factor: float = 1.0
    requests: int = 64
    tokens: int = 128
    prompt: int = 64
    # Requests at a time, phase after phase: the requests are split evenly between phases.
    lanes: tuple[int, ...] = (1,)
    noise: float = 0.1
    # The most tokens of a call of the target alone, as where callers want to see words.
    chunk: int = 10_000


Policy = Callable[[], DraftLength]


@dataclass
class _Lane:
    """A client that asks one thing after the other, and the step that its request is in."""

    requests: list[int]
    policy: DraftLength | None = None
    request: int = -1
    position: int = 0
    draft_reads: int = 0  # tokens the draft has not seen
    first: bool = True
    checks: int = 0  # tokens that a step of the target has of this request
    plain_tokens: int = 0  # of a call of the target alone: those asked for, and those still to come
    plain_left: int = 0
    plain_s: float = 0.0
    steady: bool = False
    round: Round | None = None


@dataclass
class Simulation:
    """One policy over one trace."""

    trace: Trace
    policy: Policy
    seed: int
    served: int = 0
    busy_s: float = 0.0
    chosen: list[int] = field(default_factory=list)

    def throughput(self) -> float:
        """Return tokens per second that a request is in flight, in steps of the target."""
        trace = self.trace
        luck = np.random.default_rng([self.seed, 0])
        positions = np.arange(trace.tokens)
        self._luck = luck.random((trace.requests, trace.tokens))
        self._alpha = np.stack([trace.alpha(r, positions) for r in range(trace.requests)])
        self._noise = iter(np.exp(np.random.default_rng([self.seed, 1]).normal(0, trace.noise, 2**18)))
        for requests, lanes in zip(
            np.array_split(np.arange(trace.requests), len(trace.lanes)), trace.lanes, strict=True
        ):
            self._phase([_Lane(list(map(int, requests[i::lanes]))[::-1]) for i in range(lanes)])
        return self.served / self.busy_s

    def _phase(self, lanes: list[_Lane]) -> None:
        lanes = [lane for lane in lanes if lane.requests]
        queue = [(0.0, i) for i in range(len(lanes))]
        for lane in lanes:
            self._begin(lane)
        while queue:
            now, i = heapq.heappop(queue)
            lane = lanes[i]
            if not lane.plain_left:
                self._tell(lane)
            if lane.position >= self.trace.tokens:
                if isinstance(lane.policy, SharedDraftLength):
                    lane.policy.close()
                lane.checks = 0
                if not lane.requests:
                    continue
                self._begin(lane)
            others = sum(other.checks for other in lanes if other is not lane)
            took = self._step(lane, len(queue) + 1, others)
            self.busy_s += took
            heapq.heappush(queue, (now + took, i))

    def _begin(self, lane: _Lane) -> None:
        lane.request, lane.position, lane.first = lane.requests.pop(), 0, True
        lane.draft_reads = self.trace.prompt
        lane.policy = self.policy()

    def _tell(self, lane: _Lane) -> None:
        """The step is over: tell what it did."""
        assert lane.policy is not None
        if lane.round:
            lane.policy.record_round(lane.round)
        elif lane.plain_tokens:
            lane.policy.record_plain(PlainCall(lane.plain_tokens, lane.plain_s, lane.steady))
        lane.round, lane.plain_tokens = None, 0

    def _step(self, lane: _Lane, in_flight: int, others: int) -> float:
        """Return how long a round takes, or a call of the target alone, or some tokens of that."""
        costs = self.trace.costs(in_flight, self.served)
        if lane.plain_left:
            return self._plain(lane, costs, others, 0.0)
        assert lane.policy is not None
        remaining = self.trace.tokens - lane.position
        step = lane.policy.choose(remaining)
        reading = costs.prefill * self.trace.prompt if lane.first else 0.0
        lane.steady, lane.first = not lane.first, False
        self.chosen.append(step.draft_tokens)
        lane.checks = step.draft_tokens + 1
        if not step.draft_tokens:
            lane.plain_tokens = lane.plain_left = min(step.plain_tokens, remaining, self.trace.chunk)
            lane.plain_s = 0.0
            return self._plain(lane, costs, others, costs.target_call + reading)
        count = step.draft_tokens
        assert 0 < count <= min(MAX_DRAFT_LEN, remaining - 1)
        draft_s = costs.draft_call + costs.draft * (count + costs.prefill * lane.draft_reads)
        target_s = 1.0 + costs.target_call + costs.verify * count + costs.crowd * others + reading
        draft_s *= costs.pace * next(self._noise)
        target_s *= costs.pace * next(self._noise)
        accepted = self._accepted(lane, count)
        draft_steady = lane.draft_reads <= MAX_DRAFT_LEN + 1
        lane.draft_reads = 1
        self._advance(lane, accepted + 1)
        lane.round = Round(count, accepted, accepted + 1, draft_s, target_s, draft_steady, lane.steady)
        return draft_s + target_s

    def _plain(self, lane: _Lane, costs: Costs, others: int, more_s: float) -> float:
        # Others come and go meanwhile; without them one event does for the whole call.
        tokens = min(lane.plain_left, CROWDED_TOKENS) if costs.crowd else lane.plain_left
        noise = 1.0 + (next(self._noise) - 1.0) / tokens**0.5
        took = (more_s + tokens * (1.0 + costs.crowd * others)) * costs.pace * noise
        self._advance(lane, tokens)
        lane.draft_reads += tokens
        lane.plain_left -= tokens
        lane.plain_s += took
        return took

    def _accepted(self, lane: _Lane, count: int) -> int:
        for i in range(count):
            at = lane.position + i
            chance = self._alpha[lane.request, at] * self.trace.depth_factor**i
            if self._luck[lane.request, at] >= chance:
                return i
        return count

    def _advance(self, lane: _Lane, tokens: int) -> None:
        lane.position += tokens
        self.served += tokens


@dataclass(frozen=True)
class Comparison:
    """Throughputs over one trace and one seed."""

    trace: str
    adaptive: float
    fixed: tuple[float, ...]  # by γ
    chosen: tuple[int, ...] = ()

    @property
    def best_fixed(self) -> int:
        return max(range(len(self.fixed)), key=self.fixed.__getitem__)

    @property
    def to_best(self) -> float:
        return self.adaptive / self.fixed[self.best_fixed]

    @property
    def to_plain(self) -> float:
        return self.adaptive / self.fixed[0]


def compare(trace: Trace, seed: int, lengths: Sequence[int] = range(MAX_DRAFT_LEN + 1)) -> Comparison:
    """Return what adapting gives over a trace, and what every fixed γ would have."""
    fixed = tuple(Simulation(trace, lambda g=g: FixedDraftLength(g), seed).throughput() for g in lengths)
    adapting = Simulation(trace, DraftLengths(MAX_DRAFT_LEN).request, seed)
    return Comparison(trace.name, adapting.throughput(), fixed, tuple(adapting.chosen))


def _always(value: float) -> Callable[[int, NDArray[np.int64]], NDArray[np.float64]]:
    return lambda request, positions: np.full(len(positions), value)


def _loaded(lanes: int, done: int) -> Costs:
    """A busy target pays for every token it checks; a busy draft shares its time."""
    return Costs(draft=0.1 + 0.02 * lanes, verify=0.02 + 0.03 * lanes)


def _shared(crowd: float) -> Callable[[int, int], Costs]:
    """A step of the target takes longer by all that it checks, for whomever."""
    return _constant(Costs(verify=crowd, crowd=crowd, draft_call=0.5, target_call=0.5))


def _drifting(costs: Costs, tokens: int) -> Callable[[int, int], Costs]:
    """The machine has less and less time, and then more again, every so many tokens."""
    return lambda lanes, done: replace(costs, pace=1.0 + 0.4 * math.sin(2 * math.pi * done / tokens))


def traces() -> list[Trace]:
    """Return the traces, each a kind of trouble."""
    constant = [
        Trace(
            f"constant α={alpha} c={c}",
            _always(alpha),
            _constant(Costs(draft=c, verify=verify)),
        )
        for alpha, c, verify in (
            (0.0, 0.05, 0.02),
            (0.0, 0.5, 0.2),
            (0.2, 0.2, 0.1),
            (0.4, 0.1, 0.05),
            (0.4, 0.4, 0.0),
            (0.6, 0.05, 0.02),
            (0.6, 0.3, 0.05),
            (0.8, 0.05, 0.02),
            (0.8, 0.2, 0.05),
            (0.9, 0.1, 0.0),
            (0.95, 0.02, 0.0),
            (0.99, 0.5, 0.05),
        )
    ]
    # Eight at a time, of which each slows the others: the less, the fewer tokens it has checked.
    waves = Trace("", _always(0.7), lanes=(8,) * 8, requests=128, tokens=96, chunk=24, noise=0.3)
    slow = Costs(draft=0.3, draft_call=0.5, target_call=0.5)
    crowded = [
        replace(waves, name=f"one target for eight, {name}", alpha=_always(alpha), costs=_shared(crowd))
        for name, alpha, crowd in (
            ("in waves", 0.7, 0.45),
            ("and a draft that pays", 0.9, 0.05),
            ("hardly worth a draft", 0.8, 0.2),
            ("without hope", 0.1, 0.3),
        )
    ]
    crowded += [
        replace(waves, name="one target for eight, in few words a call", costs=_shared(0.45), chunk=5),
        replace(waves, name="one target for one and for eight", alpha=_always(0.8), costs=_shared(0.35),
                lanes=(1, 8) * 4, requests=64, tokens=128),
        replace(waves, name="one target for eight, on a machine that drifts",
                costs=_drifting(replace(slow, draft=0.1, verify=0.45, crowd=0.45), 3000)),
        Trace("a machine that drifts", _always(0.7), _drifting(slow, 3000), chunk=24),
    ]  # fmt: skip
    return [
        *constant,
        Trace("a draft that costs as much as the target", _always(0.7), _constant(Costs(draft=1.0))),
        Trace("costly to read after a pause", _always(0.1), _constant(Costs(draft=0.3, prefill=0.1))),
        Trace("deeper positions are kept less", _always(0.9), depth_factor=0.85),
        Trace("drifting up", lambda r, p: np.full(len(p), 0.9 * r / 63)),
        Trace("drifting down", lambda r, p: np.full(len(p), 0.9 - 0.9 * r / 63)),
        Trace("good, then bad for good", lambda r, p: np.full(len(p), 0.9 if r < 32 else 0.0)),
        Trace("bad, then good for good", lambda r, p: np.full(len(p), 0.9 if r >= 32 else 0.0)),
        Trace("bursts within an answer", lambda r, p: np.where(p // 24 % 2, 0.95, 0.3)),
        Trace("short bursts", lambda r, p: np.where((p + 5 * r) // 7 % 2, 0.95, 0.2)),
        Trace("every other request is hopeless", lambda r, p: np.full(len(p), 0.9 if r % 2 else 0.05)),
        Trace("one request in eight is good", lambda r, p: np.full(len(p), 0.0 if r % 8 else 0.9)),
        Trace("one in four gains, at a price", lambda r, p: np.full(len(p), 0.1 if r % 4 else 0.95),
              _constant(Costs(draft=0.3, verify=0.1))),
        Trace("load goes up and down", _always(0.75), _loaded, lanes=(1, 16, 1, 16), requests=128),
        Trace("eight at once", _always(0.7), _loaded, lanes=(8,)),
        Trace("sixteen at once, without hope", _always(0.1), _loaded, lanes=(16,), requests=128),
        Trace("the draft becomes slow", _always(0.8),
              lambda lanes, done: Costs(draft=0.05 if done < 4096 else 0.9)),
        Trace("the draft becomes quick", _always(0.8),
              lambda lanes, done: Costs(draft=0.9 if done < 4096 else 0.05)),
        Trace("short answers", _always(0.7), requests=512, tokens=12),
        Trace("short answers without hope", _always(0.05), requests=512, tokens=12),
        Trace("noisy calls", _always(0.7), noise=0.5),
        *crowded,
    ]  # fmt: skip
