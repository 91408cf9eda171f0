"""The draft length γ that pays best, for each round of each answer; 0 leaves the target alone.

`DraftLengths`, one object for a model, gives each of its requests a `SharedDraftLength`. Where the
request fixes no γ, that takes the one with the most expected tokens a second (`throughput`), given what
calls cost at the number of requests now in flight and how often draft tokens are kept, by this request
and by all.

Requests share engines, so that what one does slows the others. A target alone looks slow while others
have it check draft tokens, and a round looks quick while others go without: what counts is what a call
takes when all do the same. So what looks best is compared in trials that all requests of the moment
take part in, what is learnt in other company counts only where it cannot mislead, and what the target
takes is learnt over the draft tokens that all have on average.

What is not done is not measured, so now and then there is a trial of something else than what looks
best. Trials are paid from a budget of `TRIAL_SHARE` of all time at a load: each is charged what it lost
against the best, so that trials that win cost nothing and follow each other at once, and speculation
that was given up comes back when it pays again. With γ = 0 an answer runs in chunks, each as long
as the next trial takes to earn; the end of a chunk costs one call.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from threading import Lock
from typing import Literal, get_args

from .draft_length import FixedDraftLength, PlainCall, Round, Step
from .throughput import Acceptance, Costs, Mean, OwnAcceptance, best_draft_length

# The share of time that may be lost to trials.
TRIAL_SHARE = 0.008
# γ while nothing is known, and the rounds at a load before what they took is believed.
FIRST_DRAFT_LENGTH = 3
FIRST_ROUNDS = 4
# Tokens of a call of the target alone: to see what it costs, and at least between two trials.
GLANCE_TOKENS = 8
SHORTEST_CHUNK_TOKENS = 16
# How much better a draft must look before a request that goes without takes it up: changing over costs.
MARGIN = 1.02
# Others do the same as a request when that share of them does.
ALIKE = 0.75
# Debts are forgotten beyond that many trials: one pause of the machine must not end them.
LARGEST_DEBT_TRIALS = 4.0

_Kind = Literal["on", "off", "vary"]


class _Level:
    """What is known at one load, and what may be spent there on learning more."""

    def __init__(self, nearest: _Level | None) -> None:
        self.costs: Costs = nearest.costs.inherited() if nearest else Costs()
        self.price_s: dict[_Kind, Mean] = {
            kind: Mean(nearest.price_s[kind].value if nearest else 0.0) for kind in get_args(_Kind)
        }
        self.budget_s = 0.0
        self.plain_unseen = True

    def pay(self, trial: _Trial) -> None:
        """A trial is over: learn its price."""
        self.price_s[trial.kind].observe(max(trial.lost_s, 0.0))
        self.budget_s = max(self.budget_s, -LARGEST_DEBT_TRIALS * self.price_s[trial.kind].value)


@dataclass
class _Trial:
    """Something that all requests do for a while, to see what it brings when all do it."""

    kind: _Kind
    at: _Level
    # Steps still to be seen, of requests whose company does alike; and choices until it is over anyway.
    unseen: int
    left: int
    number: int
    # The first look at the target alone: what rounds bring is hardly known yet, so nor is what it costs.
    free: bool = False
    lost_s: float = 0.0


class DraftLengths:
    """What the requests of one model know together. Safe to use from several threads."""

    def __init__(self, max_draft_len: int) -> None:
        self._max_draft_len = max_draft_len
        self._lock = Lock()
        self._acceptance = Acceptance(max_draft_len)
        # By the number of requests in flight, about in powers of two: what calls cost depends on it.
        self._levels: dict[int, _Level] = {}
        self._in_flight = 0
        # How many of them are in a round, and the draft tokens of these rounds.
        self._drafting = self._drafted = 0
        # Steps that have begun so far: calls of the target alone, and rounds.
        self._begun = [0, 0]
        self._trial: _Trial | None = None
        self._trials = 0
        # The γ chosen last that was no trial.
        self.current = min(FIRST_DRAFT_LENGTH, max_draft_len)

    @property
    def in_flight(self) -> int:
        return self._in_flight

    def request(self, fixed: FixedDraftLength | None = None) -> SharedDraftLength:
        """Return the chooser of a new request, `fixed` or adapting; close it at the end of the answer."""
        with self._lock:
            self._in_flight += 1
            return SharedDraftLength(self, self._level(), fixed)

    def choose(self, own: SharedDraftLength, remaining: int) -> Step:
        with self._lock:
            self._leave(own)
            step = own.fixed.choose(remaining) if own.fixed else self._choose(own, remaining)
            self._begin(own, step)
            return step

    def record_round(self, own: SharedDraftLength, done: Round) -> None:
        with self._lock:
            self._record_round(own, done)

    def record_plain(self, own: SharedDraftLength, done: PlainCall) -> None:
        with self._lock:
            self._record_plain(own, done)

    def close(self, own: SharedDraftLength) -> None:
        with self._lock:
            self._leave(own)
            self._in_flight -= 1

    def _level(self) -> _Level:
        # 1, 2, 3 to 5, 6 to 11, ...: an answer more or less changes little where there are many.
        load = (4 * self._in_flight // 3).bit_length()
        if load not in self._levels:
            known = [other for other, level in self._levels.items() if level.costs.complete]
            nearest = min(known, key=lambda other: abs(other - load), default=None)
            self._levels[load] = _Level(None if nearest is None else self._levels[nearest])
        return self._levels[load]

    def _alike(self, own: SharedDraftLength) -> bool:
        """Whether nearly all others have done the same as `own` during its step."""
        began = self._begun[not own.draft_tokens] - own.others_begun
        return own.unlike + began <= (1.0 - ALIKE) * (self._in_flight - 1)

    def _begin(self, own: SharedDraftLength, step: Step) -> None:
        drafts = step.draft_tokens > 0
        own.unlike = self._in_flight - 1 - self._drafting if drafts else self._drafting
        own.others_begun = self._begun[not drafts]
        self._begun[drafts] += 1
        own.draft_tokens = step.draft_tokens
        self._drafting += drafts
        self._drafted += step.draft_tokens
        own.level = self._level()
        own.mean_drafted = self._drafted / self._in_flight

    def _leave(self, own: SharedDraftLength) -> None:
        self._drafting -= own.draft_tokens > 0
        self._drafted -= own.draft_tokens
        own.draft_tokens = 0

    def _choose(self, own: SharedDraftLength, remaining: int) -> Step:
        own.trial = None
        limit = min(self._max_draft_len, remaining - 1)
        if limit < 1:
            return Step(plain_tokens=remaining)
        level = self._level()
        costs = level.costs
        if min(costs.draft.weight, costs.target.weight) < FIRST_ROUNDS:
            return Step(draft_tokens=min(max(self.current, 1), limit))
        best, rate = best_draft_length(costs, self._acceptance.rates, own.acceptance.factor, limit)
        plain_s = costs.plain_s
        own.best_s = min(1 / rate, plain_s)
        own.speculates = rate * plain_s >= (1.0 if own.speculates else MARGIN)
        trial = self._trial_at(level, own.speculates, remaining)
        if trial is not None:
            trial.left -= 1
            step = self._step_of(trial, own.speculates, best, limit, remaining)
            if step is not None:
                own.trial = trial
                return step
        self.current = best if own.speculates else 0
        return Step(draft_tokens=best) if own.speculates else self._without(level, plain_s, remaining)

    def _without(self, level: _Level, plain_s: float, remaining: int) -> Step:
        # Every request in flight adds to the budget.
        earned_s = TRIAL_SHARE * plain_s * self._in_flight
        missing_s = level.price_s["on"].value - level.budget_s
        tokens = max(SHORTEST_CHUNK_TOKENS, math.ceil(missing_s / earned_s))
        return Step(plain_tokens=tokens if remaining - tokens >= SHORTEST_CHUNK_TOKENS else remaining)

    def _trial_at(self, level: _Level, speculates: bool, remaining: int) -> _Trial | None:
        """Return the trial that is on, or that can be paid now."""
        trial = self._trial
        if trial is not None and trial.unseen > 0 and trial.left > 0 and trial.at is level:
            return trial
        if trial is not None:
            self._trial = None
            if not trial.free:
                trial.at.pay(trial)
        kind: _Kind = "on"
        if speculates:
            kind = "vary" if self._trials % 3 else "off"
            if level.plain_unseen and remaining > 2 * GLANCE_TOKENS:
                level.plain_unseen = False
                return self._start("off", level, free=True)
            if not level.budget_s > 0.0:
                return None
        return self._start(kind, level) if level.budget_s >= level.price_s[kind].value else None

    def _start(self, kind: _Kind, level: _Level, *, free: bool = False) -> _Trial:
        self._trials += 1
        few, most = (self._in_flight + 1) // 2, 2 * self._in_flight
        self._trial = _Trial(kind, level, few, most, self._trials, free)
        return self._trial

    def _step_of(self, trial: _Trial, speculates: bool, best: int, limit: int, remaining: int) -> Step | None:
        """Return a request's part in a trial; None where that is what it does anyway, or too much for it."""
        if trial.kind == "on":
            return Step(draft_tokens=best)
        if not speculates:
            return None
        if trial.kind == "off":
            tokens = GLANCE_TOKENS * (2 - trial.number % 2)
            return Step(plain_tokens=tokens) if remaining > 2 * tokens else None
        other = best // 2 if trial.number % 3 == 2 else best + 1 + best // 2
        return Step(draft_tokens=min(max(other, 1), limit))

    def _record_round(self, own: SharedDraftLength, done: Round) -> None:
        costs = own.level.costs
        own.acceptance.observe(self._acceptance, done.proposed, done.accepted)
        self._acceptance.observe(done.proposed, done.accepted)
        if own.level is self._level():
            drafted = (own.mean_drafted + self._drafted / self._in_flight) / 2
            costs.draft.observe(done.proposed, done.draft_s, steady=done.draft_steady)
            costs.observe_target(drafted, done.target_s, steady=done.target_steady)
        # What the target reads of a prompt it would have read anyway. And a round among calls that check
        # less is quick, at the expense of those.
        target_s = costs.target.at(done.proposed)
        changeover_s = 0.0 if done.draft_steady else costs.plain.intercept
        self._account(own, done.draft_s + target_s, done.tokens, changeover_s)

    def _record_plain(self, own: SharedDraftLength, done: PlainCall) -> None:
        costs = own.level.costs
        alike = self._alike(own)
        if own.level is self._level() and (alike or not costs.plain.weight):
            costs.observe_plain(done.tokens, done.seconds, steady=done.steady and alike)
        # What others did meanwhile may have held it up, which it would not have if all had gone without.
        self._account(own, costs.plain_s * done.tokens, done.tokens, 0.0)

    def _account(self, own: SharedDraftLength, seconds: float, tokens: int, changeover_s: float) -> None:
        if own.fixed is None:
            own.level.budget_s += TRIAL_SHARE * seconds
        if own.trial is None:
            return
        own.trial.unseen -= self._alike(own)
        if own.trial.free:
            return
        lost_s = seconds + changeover_s - tokens * own.best_s
        own.trial.lost_s += lost_s
        own.trial.at.budget_s -= lost_s


class SharedDraftLength:
    """The γ that pays best for one request, round by round; or one that is set, from which others learn."""

    def __init__(self, shared: DraftLengths, level: _Level, fixed: FixedDraftLength | None) -> None:
        self._shared = shared
        self.fixed = fixed
        self.acceptance = OwnAcceptance()
        self.speculates = True
        # Of the step that is under way: its γ, the trial it belongs to, and the load.
        self.draft_tokens = 0
        self.trial: _Trial | None = None
        self.level = level
        # When it began: others that did not do alike, such steps so far, and mean γ of all requests.
        self.unlike = self.others_begun = 0
        self.mean_drafted = 0.0
        # Seconds a token of what looked best.
        self.best_s = 0.0

    @property
    def off_reason(self) -> str:
        if self.fixed:
            return self.fixed.off_reason
        return "" if self.speculates else "tokens come faster without a draft at present"

    def choose(self, remaining: int) -> Step:
        return self._shared.choose(self, remaining)

    def record_round(self, done: Round) -> None:
        self._shared.record_round(self, done)

    def record_plain(self, done: PlainCall) -> None:
        self._shared.record_plain(self, done)

    def close(self) -> None:
        """The answer is over: it no longer counts as in flight."""
        self._shared.close(self)
