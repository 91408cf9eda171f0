"""What a draft length γ brings and costs, learnt from calls that were made.

Nothing here has a clock: seconds come from the caller. Everything forgets, so that it follows drift.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy

# Calls, and draft tokens, after which an observation has lost most of its weight.
COST_MEMORY = 96.0
ACCEPTANCE_MEMORY = 200.0
REQUEST_MEMORY = 16.0
# Draft tokens that a guess is worth: the one for an unseen position, and the one for a new request.
POSITION_PRIOR = 4.0
REQUEST_PRIOR = 24.0
# Until something is known; high, for trying costs little and not trying teaches nothing.
FIRST_ACCEPTANCE = 0.7
# A call that took longer than this many times what was expected says less about calls than about a pause.
LONGEST = 4.0
# Calls of the target alone are taken to be at least that long, in tokens.
PLAIN_TOKENS = 32.0
# What costs at another load are worth, in calls.
INHERITED_WEIGHT = 4.0
# Calls of the target alone are long, each worth several rounds.
PLAIN_MEMORY = 24.0
# What calls are worth that were made long ago, in calls.
FADED_WEIGHT = 12.0
# No call takes less, whatever a clock says.
SHORTEST_S = 1e-7


class Mean:
    """A running mean that forgets."""

    __slots__ = ("_memory", "value", "weight")

    def __init__(self, value: float = 0.0, weight: float = 0.0, memory: float = COST_MEMORY) -> None:
        self.value = value
        self.weight = weight
        self._memory = memory

    def observe(self, value: float) -> None:
        self.weight = min(self.weight + 1.0, self._memory)
        self.value += (value - self.value) / self.weight


class Line:
    """Seconds of a call as a straight line over its number of draft tokens.

    While all calls had about the same number, the slope is open. Then a call of the draft is taken
    to be `proportional`, for it takes one step a token, and one of the target to be flat.
    """

    __slots__ = (
        "_memory",
        "_proportional",
        "_provisional",
        "_xx",
        "_xy",
        "intercept",
        "slope",
        "weight",
        "x",
        "y",
    )

    def __init__(self, *, proportional: bool, memory: float = COST_MEMORY) -> None:
        self._proportional = proportional
        self._memory = memory
        self._forget()

    def _forget(self) -> None:
        self.intercept = self.slope = 0.0
        self.weight = self.x = self.y = self._xx = self._xy = 0.0
        self._provisional = False

    def at(self, tokens: float) -> float:
        return self.intercept + self.slope * tokens

    def inherited(self) -> Line:
        """Return the same line, of which less is certain."""
        line = copy(self)
        line.weight = min(line.weight, INHERITED_WEIGHT)
        return line

    def fade(self) -> None:
        """Let the next calls say more: this kind has not been made for a while."""
        self.weight = min(self.weight, max(FADED_WEIGHT, self.weight * (1.0 - 1.0 / COST_MEMORY)))

    def scale(self, factor: float) -> None:
        self.intercept *= factor
        self.slope *= factor
        self.y *= factor
        self._xy *= factor

    def observe(self, tokens: float, seconds: float, *, steady: bool = True) -> None:
        """Learn from a call; one that is not `steady` had more to do, so it only bounds the cost."""
        seconds = max(seconds, SHORTEST_S)
        if not steady and self.weight and seconds >= self.at(tokens):
            return
        if steady and self._provisional:
            self._forget()
        if not self.weight:
            self._provisional = not steady
        if self.weight >= 4.0:
            seconds = min(seconds, LONGEST * self.at(tokens))
        self.weight = min(self.weight + 1.0, self._memory)
        share = 1.0 / self.weight
        dx, dy = tokens - self.x, seconds - self.y
        self.x += share * dx
        self.y += share * dy
        self._xx += share * ((1.0 - share) * dx * dx - self._xx)
        self._xy += share * ((1.0 - share) * dx * dy - self._xy)
        # The prior counts like one call two tokens away, and no line may fall or start below zero.
        steepest = self.y / self.x if self.x else 0.0
        prior = 4.0 * share
        slope = (self._xy + prior * (steepest if self._proportional else 0.0)) / (self._xx + prior)
        self.slope = min(max(slope, 0.0), steepest)
        self.intercept = self.y - self.slope * self.x


class Costs:
    """Seconds of the calls at one load."""

    __slots__ = ("_guessed", "draft", "plain", "target")

    def __init__(self) -> None:
        # Over the draft tokens of a round; those of the target over what all requests have on average.
        self.draft = Line(proportional=True)
        self.target = Line(proportional=False)
        # Over the tokens of a call of the target alone.
        self.plain = Line(proportional=True, memory=PLAIN_MEMORY)
        self._guessed = False

    @property
    def complete(self) -> bool:
        return bool(self.draft.weight and self.target.weight and self.plain.weight)

    @property
    def plain_s(self) -> float:
        """Seconds a token of the target alone, in calls of usual length."""
        if not self.plain.weight:
            return max(self.target.at(0), SHORTEST_S)
        tokens = max(self.plain.x, PLAIN_TOKENS)
        return self.plain.at(tokens) / tokens

    def inherited(self) -> Costs:
        """Return these costs as a first guess for another load, where all may take longer or shorter."""
        costs = Costs()
        costs.draft, costs.target, costs.plain = (
            line.inherited() for line in (self.draft, self.target, self.plain)
        )
        costs._guessed = True
        return costs

    def observe_target(self, drafted: float, seconds: float, *, steady: bool) -> None:
        """Learn from the call of the target in a round, when requests had so many draft tokens on average."""
        if steady:
            self._adopt(seconds, self.target.at(drafted))
            self.plain.fade()
        self.target.observe(drafted, seconds, steady=steady)

    def observe_plain(self, tokens: int, seconds: float, *, steady: bool) -> None:
        """Learn from a call of the target alone."""
        if steady:
            self._adopt(seconds, self.plain.at(tokens))
            self.target.fade()
        self.plain.observe(tokens, seconds, steady=steady)

    def _adopt(self, seconds: float, expected_s: float) -> None:
        """Scale a guess by the first call: so far, one kind of call is as much slower as another."""
        if self._guessed and expected_s > 0.0:
            self._scale(max(seconds, SHORTEST_S) / expected_s)
            self._guessed = False

    def _scale(self, factor: float) -> None:
        for line in (self.draft, self.target, self.plain):
            line.scale(factor)


class Acceptance:
    """How often the draft token at each position of a round is kept, when all before it were."""

    def __init__(self, max_draft_len: int) -> None:
        self._overall = Mean(FIRST_ACCEPTANCE, 2.0, ACCEPTANCE_MEMORY)
        self._positions = [Mean(memory=ACCEPTANCE_MEMORY) for _ in range(max_draft_len)]
        self.rates = [FIRST_ACCEPTANCE] * max_draft_len

    @property
    def overall(self) -> float:
        return self._overall.value

    def observe(self, proposed: int, accepted: int) -> None:
        for position, kept in _judged(proposed, accepted):
            self._positions[position].observe(kept)
            self._overall.observe(kept)
        prior = POSITION_PRIOR * self._overall.value
        self.rates = [
            (mean.weight * mean.value + prior) / (mean.weight + POSITION_PRIOR) for mean in self._positions
        ]


class OwnAcceptance:
    """How a request differs from the others: the factor by which its draft tokens are refused more often.

    Its acceptance is shrunk towards what the same positions have for all requests.
    """

    __slots__ = ("_expected", "_kept", "_trials", "factor")

    def __init__(self) -> None:
        self._trials = self._kept = self._expected = 0.0
        self.factor = 1.0

    def observe(self, shared: Acceptance, proposed: int, accepted: int) -> None:
        for position, kept in _judged(proposed, accepted):
            self._trials += 1.0
            self._kept += kept
            self._expected += shared.rates[position]
        if self._trials > REQUEST_MEMORY:
            shrink = REQUEST_MEMORY / self._trials
            self._trials, self._kept, self._expected = (
                REQUEST_MEMORY,
                shrink * self._kept,
                shrink * self._expected,
            )
        prior = REQUEST_PRIOR * shared.overall
        refused = self._trials + REQUEST_PRIOR - self._kept - prior
        expected = self._trials + REQUEST_PRIOR - self._expected - prior
        self.factor = refused / max(expected, 1e-6)


def _judged(proposed: int, accepted: int) -> Iterator[tuple[int, float]]:
    """Yield the positions that the target came to judge, with 1.0 for kept and 0.0 for refused."""
    for position in range(accepted):
        yield position, 1.0
    if accepted < proposed:
        yield accepted, 0.0


def best_draft_length(costs: Costs, rates: list[float], factor: float, limit: int) -> tuple[int, float]:
    """Return the γ from 1 to `limit` with the most expected tokens a second, and that number.

    The tokens of a round are E(γ) = 1 + Σ_k Π_{i≤k} a_i with the acceptance a_i at each position,
    which for one α is (1 − α^(γ+1)) / (1 − α) (Leviathan et al. 2023, arXiv:2211.17192).
    """
    seconds = costs.draft.intercept + costs.target.intercept
    slope = costs.draft.slope + costs.target.slope
    tokens = survival = 1.0
    best, most = 0, 0.0
    for length in range(1, limit + 1):
        refusal = (1.0 - rates[length - 1]) * factor
        survival *= 1.0 - refusal if refusal < 1.0 else 0.0
        tokens += survival
        seconds += slope
        rate = tokens / seconds
        if rate > most:
            best, most = length, rate
    return best, most
