"""Which draft length γ the next round of an answer has; 0 leaves the target alone.

`FixedDraftLength` is what a request asked for. `DraftLengths` adapts: one object for a model, shared
by its requests, gives each a `SharedDraftLength`. Where the request fixes no γ, that takes the one
with the most expected tokens a second (`throughput`), given what calls cost at the number of requests
now in flight and how often draft tokens are kept, by this request and by all.

What is not done is not measured, so now and then a request does something else than what looks
best. Such probes are paid from a budget of `PROBE_SHARE` of all time: each is charged what it lost
against the best, so that probes that win cost nothing and follow each other at once, and speculation
that was given up comes back when it pays again. With γ = 0 an answer runs in chunks, each as long
as the next probe takes to earn; the end of a chunk costs one call.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from threading import Lock
from typing import Protocol

from .throughput import SHORTEST_S, Acceptance, Costs, Mean, OwnAcceptance, best_draft_length

# The share of time that may be lost to probes.
PROBE_SHARE = 0.008
# γ while nothing is known, and the rounds at a load before what they took is believed.
FIRST_DRAFT_LENGTH = 3
FIRST_ROUNDS = 4
# Tokens of a call of the target alone: to see what it costs, and at least between two probes.
GLANCE_TOKENS = 8
SHORTEST_CHUNK_TOKENS = 16
# How much better a draft must look before a request that goes without takes it up: changing over costs.
MARGIN = 1.02
# Debts are forgotten beyond that many probes: one pause of the machine must not end probing.
LARGEST_DEBT_PROBES = 4.0


@dataclass(frozen=True)
class Step:
    """What to do next: a round with draft tokens, or the target alone for some tokens."""

    draft_tokens: int = 0
    plain_tokens: int = 0


@dataclass(frozen=True)
class Round:
    """What a round did. Not steady: the call had tokens to read that it had not written itself."""

    proposed: int
    accepted: int
    tokens: int
    draft_s: float
    target_s: float
    draft_steady: bool = True
    target_steady: bool = True


@dataclass(frozen=True)
class PlainCall:
    """What a call of the target alone did: up to its first reply, and after it."""

    first_tokens: int
    first_s: float
    rest_tokens: int
    rest_s: float
    steady: bool = True


class DraftLength(Protocol):
    """Chooses γ for one answer, and hears what came of it."""

    @property
    def off_reason(self) -> str:
        """Why the draft is not asked at present; "" if it is, or was never to be."""

    def choose(self, remaining: int) -> Step: ...

    def record_round(self, done: Round) -> None: ...

    def record_plain(self, done: PlainCall) -> None: ...


class FixedDraftLength:
    """The γ that a request asked for."""

    off_reason = ""

    def __init__(self, num_draft_tokens: int) -> None:
        self._num_draft_tokens = num_draft_tokens

    def choose(self, remaining: int) -> Step:
        # The target adds a token of its own to those it keeps.
        count = min(self._num_draft_tokens, remaining - 1)
        return Step(draft_tokens=count) if count > 0 else Step(plain_tokens=remaining)

    def record_round(self, done: Round) -> None: ...

    def record_plain(self, done: PlainCall) -> None: ...


class DraftLengths:
    """What the requests of one model know together. Safe to use from several threads."""

    def __init__(self, max_draft_len: int) -> None:
        self._max_draft_len = max_draft_len
        self._lock = Lock()
        self._acceptance = Acceptance(max_draft_len)
        # By the number of requests in flight, in powers of two: what calls cost depends on it.
        self._costs: dict[int, Costs] = {}
        self._in_flight = 0
        self._budget_s = 0.0
        self._probe_s = {kind: Mean() for kind in ("on", "off", "vary")}
        self._probes = 0
        # The γ chosen last that was no probe.
        self.current = min(FIRST_DRAFT_LENGTH, max_draft_len)

    @property
    def in_flight(self) -> int:
        return self._in_flight

    def request(self, fixed: FixedDraftLength | None = None) -> SharedDraftLength:
        """Return the chooser of a new request, `fixed` or adapting; close it at the end of the answer."""
        with self._lock:
            self._in_flight += 1
        return SharedDraftLength(self, fixed)

    def _costs_now(self) -> Costs:
        load = self._in_flight.bit_length()
        if load not in self._costs:
            self._costs[load] = Costs()
        return self._costs[load]

    def _choose(self, own: SharedDraftLength, remaining: int) -> Step:
        own.probe = ""
        limit = min(self._max_draft_len, remaining - 1)
        if limit < 1:
            return Step(plain_tokens=remaining)
        costs = self._costs_now()
        if min(costs.draft.weight, costs.target.weight) < FIRST_ROUNDS:
            return Step(draft_tokens=min(max(self.current, 1), limit))
        if not costs.plain.weight and not costs.plain_asked and remaining > 2 * GLANCE_TOKENS:
            costs.plain_asked = True
            return self._probe(own, "off", Step(plain_tokens=GLANCE_TOKENS))
        best, rate = best_draft_length(costs, self._acceptance.rates, own.acceptance.factor, limit)
        plain_s = costs.plain.value or costs.target.intercept
        own.best_s = min(1 / rate, plain_s)
        if rate * plain_s < (1.0 if own.speculates else MARGIN):
            own.speculates = False
            return self._step_without(own, best, plain_s, remaining)
        own.speculates = True
        return self._step_with(own, best, limit, remaining)

    def _step_without(
        self, own: SharedDraftLength, draft_tokens: int, plain_s: float, remaining: int
    ) -> Step:
        price_s = self._probe_s["on"].value
        if self._budget_s >= price_s:
            return self._probe(own, "on", Step(draft_tokens=draft_tokens))
        self.current = 0
        # Every request in flight adds to the budget.
        earned_s = PROBE_SHARE * plain_s * self._in_flight
        tokens = max(SHORTEST_CHUNK_TOKENS, math.ceil((price_s - self._budget_s) / earned_s))
        return Step(plain_tokens=tokens if remaining - tokens >= SHORTEST_CHUNK_TOKENS else remaining)

    def _step_with(self, own: SharedDraftLength, best: int, limit: int, remaining: int) -> Step:
        kind = ("off", "vary", "vary")[self._probes % 3]
        if self._budget_s > 0.0 and self._budget_s >= self._probe_s[kind].value:
            if kind == "off" and remaining > 2 * GLANCE_TOKENS:
                return self._probe(own, kind, Step(plain_tokens=GLANCE_TOKENS))
            other = best // 2 if self._probes % 3 == 1 else best + 1 + best // 2
            return self._probe(own, "vary", Step(draft_tokens=min(max(other, 1), limit)))
        self.current = best
        return Step(draft_tokens=best)

    def _probe(self, own: SharedDraftLength, kind: str, step: Step) -> Step:
        own.probe = kind
        self._probes += 1
        return step

    def _record_round(self, own: SharedDraftLength, done: Round) -> None:
        costs = self._costs_now()
        costs.draft.observe(done.proposed, done.draft_s, steady=done.draft_steady)
        costs.target.observe(done.proposed, done.target_s, steady=done.target_steady)
        own.acceptance.observe(self._acceptance, done.proposed, done.accepted)
        self._acceptance.observe(done.proposed, done.accepted)
        # What the target reads of a prompt it would have read anyway.
        target_s = done.target_s if done.target_steady else min(done.target_s, costs.target.at(done.proposed))
        changeover_s = costs.call.value if own.probe == "on" else 0.0
        self._account(own, done.draft_s + target_s, done.tokens, changeover_s)

    def _record_plain(self, own: SharedDraftLength, done: PlainCall) -> None:
        costs = self._costs_now()
        if done.rest_tokens:
            costs.plain.observe(max(done.rest_s / done.rest_tokens, SHORTEST_S))
        elif done.steady and done.first_tokens > 1:
            # All came at once: what the call itself costs is spread over them.
            costs.plain.observe(max(done.first_s / done.first_tokens, SHORTEST_S))
        first_s = costs.plain.value * done.first_tokens
        if done.steady:
            costs.call.observe(max(done.first_s - first_s, 0.0))
            first_s = done.first_s
        self._account(own, first_s + done.rest_s, done.first_tokens + done.rest_tokens, 0.0)

    def _account(self, own: SharedDraftLength, seconds: float, tokens: int, changeover_s: float) -> None:
        if own.adapts:
            self._budget_s += PROBE_SHARE * seconds
        if not own.probe:
            return
        lost_s = seconds + changeover_s - tokens * own.best_s if own.best_s else 0.0
        price = self._probe_s[own.probe]
        price.observe(max(lost_s, 0.0))
        self._budget_s = max(self._budget_s - lost_s, -LARGEST_DEBT_PROBES * price.value)


class SharedDraftLength:
    """The γ that pays best for one request, round by round; or one that is set, from which others learn."""

    def __init__(self, shared: DraftLengths, fixed: FixedDraftLength | None = None) -> None:
        self._shared = shared
        self._fixed = fixed
        self.adapts = fixed is None
        self.acceptance = OwnAcceptance()
        self.speculates = True
        # What the last step tried out: "on", "off", "vary", or nothing; and seconds a token of the best.
        self.probe = ""
        self.best_s = 0.0

    @property
    def off_reason(self) -> str:
        if self._fixed:
            return self._fixed.off_reason
        return "" if self.speculates else "tokens come faster without a draft at present"

    def choose(self, remaining: int) -> Step:
        if self._fixed:
            return self._fixed.choose(remaining)
        with self._shared._lock:
            return self._shared._choose(self, remaining)

    def record_round(self, done: Round) -> None:
        with self._shared._lock:
            self._shared._record_round(self, done)

    def record_plain(self, done: PlainCall) -> None:
        with self._shared._lock:
            self._shared._record_plain(self, done)

    def close(self) -> None:
        """The answer is over: it no longer counts as in flight."""
        with self._shared._lock:
            self._shared._in_flight -= 1
