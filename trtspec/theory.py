"""What speculation can give, as formulas; every part of trtspec counts by these definitions.

    γ   draft tokens a round, `num_draft_tokens`
    r   accepted / proposed draft tokens; what most tools print as "acceptance rate"
    α   probability that a draft token is accepted, given that all before it in its round were
    E   tokens a target call, the target's own included: 1 + accepted / rounds
    c   time of a draft step / time of a target step
    v   time of verifying one more draft token / time of a target step
    o   what a round costs beside the two models / time of a target step
    S   speed-up over γ = 0

r is not α: with α = 0.80 and γ = 4, r is 0.59, because what stands after a rejected token counts as
proposed. E = 1 + γ r always; E = (1 - α^(γ+1)) / (1 - α) where α is the same at every position
(Leviathan et al. 2023, equation 1, arXiv:2211.17192).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MAX_DRAFT_TOKENS = 32


@dataclass(frozen=True)
class Costs:
    """What a round costs, in target steps."""

    draft_step: float  # c
    verified_token: float = 0.0  # v
    round: float = 0.0  # o


@dataclass(frozen=True)
class Best:
    """The draft length with the largest speed-up; γ = 0, speed-up 1 where none gains."""

    num_draft_tokens: int
    speed_up: float


def definitions(*symbols: str) -> dict[str, str]:
    """Return what symbols stand for, in the words of this module."""
    words = dict(line.split(maxsplit=1) for line in (__doc__ or "").splitlines() if line.startswith("    "))
    return {symbol: words[symbol] for symbol in symbols}


def tokens_per_target_call(acceptance: float, num_draft_tokens: int) -> float:
    """Return E for an acceptance α in 0..1 that is the same at every position."""
    _check(acceptance)
    # A sum, not the closed form: that is 0/0 at α = 1 and loses digits near it.
    return sum(acceptance**k for k in range(num_draft_tokens + 1))


def tokens_by_position(acceptance_by_position: Sequence[float]) -> float:
    """Return E where α differs by position: 1 + Σ of the products of the first k."""
    tokens = kept = 1.0
    for acceptance in acceptance_by_position:
        _check(acceptance)
        kept *= acceptance
        tokens += kept
    return tokens


def acceptance_from_tokens(tokens: float, num_draft_tokens: int) -> float:
    """Return the α at which `num_draft_tokens` give E tokens a target call; E lies in 1..γ + 1."""
    if num_draft_tokens < 1 or not 1 <= tokens <= num_draft_tokens + 1:
        raise ValueError(
            f"E is {tokens} at γ = {num_draft_tokens}; it lies between 1 and γ + 1, γ at least 1"
        )
    low, high = 0.0, 1.0
    # E grows with α: 60 halvings find it to the last bit of a float.
    for _ in range(60):
        middle = (low + high) / 2
        if tokens_per_target_call(middle, num_draft_tokens) < tokens:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def acceptance_rate(acceptance: float, num_draft_tokens: int) -> float:
    """Return r = (E - 1) / γ for an α."""
    return (tokens_per_target_call(acceptance, num_draft_tokens) - 1) / num_draft_tokens


def speed_up(acceptance: float, num_draft_tokens: int, costs: Costs) -> float:
    """Return S = E / (1 + γ (c + v) + o); 1 at γ = 0, where there are no rounds.

    Leviathan et al. 2023, theorem 3.8, with what verifying (v) and serving (o) add.
    """
    return speed_up_of_tokens(tokens_per_target_call(acceptance, num_draft_tokens), num_draft_tokens, costs)


def speed_up_of_tokens(tokens: float, num_draft_tokens: int, costs: Costs) -> float:
    """Return S where E is known, whatever α is at each position; 1 at γ = 0."""
    return tokens / round_cost(num_draft_tokens, costs) if num_draft_tokens else 1.0


def round_cost(num_draft_tokens: int, costs: Costs) -> float:
    """Return 1 + γ (c + v) + o, in target steps; a round pays when it brings more tokens than that."""
    return 1 + num_draft_tokens * (costs.draft_step + costs.verified_token) + costs.round


def break_even_acceptance(num_draft_tokens: int, costs: Costs) -> float | None:
    """Return the α above which γ ≥ 1 gains, None where none does: c + v + o at γ = 1."""
    # Measured costs may come out below zero.
    needed = max(round_cost(num_draft_tokens, costs), 1.0)
    if num_draft_tokens < 1 or needed > num_draft_tokens + 1:
        return None
    return acceptance_from_tokens(needed, num_draft_tokens)


def best(acceptance: float, costs: Costs, max_draft_tokens: int = MAX_DRAFT_TOKENS) -> Best:
    """Return the draft length with the largest speed-up, the shortest of equal ones."""
    found = [Best(g, speed_up(acceptance, g, costs)) for g in range(max_draft_tokens + 1)]
    return max(found, key=lambda one: one.speed_up)


def _check(acceptance: float) -> None:
    if not 0 <= acceptance <= 1:
        raise ValueError(f"an acceptance is {acceptance}; it is a probability, 0 to 1")
