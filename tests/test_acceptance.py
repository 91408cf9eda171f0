"""The acceptance rule against the distribution it promises, and as an invariant."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chisquare

from trtspec.engines.cpu.acceptance import accepted_length, matching_length, residual, speculative_tokens

VOCAB, DRAFTED, ROUNDS = 5, 2, 20_000

# A correct implementation fails a test of this file with this probability, once for each fixed seed.
FALSE_ALARM = 1e-6

Floats = NDArray[np.float64]
weights = st.lists(st.floats(0, 1), min_size=VOCAB, max_size=VOCAB).filter(lambda row: sum(row) > 0.1)


def normal(row: list[float]) -> Floats:
    return np.array(row) / sum(row)


def rows(random: np.random.Generator, count: int) -> Floats:
    return random.dirichlet(np.full(VOCAB, 0.7), size=count)


def simulate(seed: int, p: Floats, q: Floats) -> list[list[int]]:
    random = np.random.default_rng(seed)
    drafts = np.stack([random.choice(VOCAB, p=row, size=ROUNDS) for row in q], axis=1).tolist()
    accepts, inverses = random.random((ROUNDS, DRAFTED)), random.random(ROUNDS)
    outcomes = []
    for draft, accept, inverse in zip(drafts, accepts, inverses, strict=True):

        def draw(index: int, left_over: Floats | None, inverse: float = inverse) -> int:
            distribution = p[index] if left_over is None else left_over
            return min(int(distribution.cumsum().searchsorted(inverse, side="right")), VOCAB - 1)

        outcomes.append(speculative_tokens(p, q, draft, accept, draw))
    return outcomes


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_position_has_exactly_the_targets_distribution(seed: int) -> None:
    random = np.random.default_rng(100 + seed)
    p, q = rows(random, DRAFTED + 1), rows(random, DRAFTED)
    outcomes = simulate(seed, p, q)
    for position in range(DRAFTED + 1):
        drawn = [tokens[position] for tokens in outcomes if len(tokens) > position]
        counts = np.bincount(drawn, minlength=VOCAB)
        assert chisquare(counts, p[position] * len(drawn)).pvalue > FALSE_ALARM


def test_the_first_draft_token_is_kept_with_probability_sum_of_minima() -> None:
    random = np.random.default_rng(7)
    p, q = rows(random, DRAFTED + 1), rows(random, DRAFTED)
    kept = sum(len(tokens) > 1 for tokens in simulate(7, p, q))
    expected = float(np.minimum(p[0], q[0]).sum())
    counts = [kept, ROUNDS - kept]
    assert chisquare(counts, [ROUNDS * expected, ROUNDS * (1 - expected)]).pvalue > FALSE_ALARM


@given(weights, weights, st.integers(0, VOCAB - 1), st.floats(0, 1, exclude_max=True))
def test_a_token_is_kept_exactly_while_its_draw_is_below_the_ratio(
    p: list[float], q: list[float], token: int, u: float
) -> None:
    p_V, q_V = normal(p), normal(q)
    kept = accepted_length(p_V[None], q_V[None], [token], np.array([u]))
    assert kept == int(q_V[token] > 0 and u * q_V[token] < p_V[token])


@given(weights, weights)
def test_the_residual_is_a_distribution_without_tokens_the_draft_favours(
    p: list[float], q: list[float]
) -> None:
    p_V, q_V = normal(p), normal(q)
    left_over = residual(p_V, q_V)
    assert left_over.sum() == pytest.approx(1)
    if not np.array_equal(left_over, p_V):
        assert not left_over[q_V >= p_V].any()


def test_the_residual_of_equal_distributions_is_the_target() -> None:
    p_V = normal([1, 2, 3, 4, 5])
    assert np.array_equal(residual(p_V, p_V), p_V)


def test_a_token_outside_the_targets_support_is_never_kept() -> None:
    p, q = np.array([[0.0, 1.0]]), np.array([[1.0, 0.0]])
    assert accepted_length(p, q, [0], np.array([0.0])) == 0


@given(st.lists(st.integers(0, 3), max_size=6), st.lists(st.integers(0, 3), min_size=7, max_size=7))
def test_matching_keeps_the_common_prefix_with_the_targets_choices(
    draft: list[int], choices: list[int]
) -> None:
    kept = matching_length(draft, choices)
    assert draft[:kept] == choices[:kept]
    assert kept == len(draft) or draft[kept] != choices[kept]
