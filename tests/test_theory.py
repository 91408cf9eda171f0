"""The formulas of speculation against published figures, simulation and each other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtspec.theory import (
    Best,
    Costs,
    acceptance_from_tokens,
    acceptance_rate,
    best,
    speed_up,
    tokens_by_position,
    tokens_per_target_call,
)

ACCEPTANCE = st.floats(0, 1)
LENGTH = st.integers(1, 20)

# E by α and γ, from the closed form, two decimals.
TABLE = {
    0.5: {1: 1.50, 2: 1.75, 3: 1.88, 4: 1.94, 5: 1.97, 7: 1.99, 10: 2.00},
    0.6: {1: 1.60, 2: 1.96, 3: 2.18, 4: 2.31, 5: 2.38, 7: 2.46, 10: 2.49},
    0.7: {1: 1.70, 2: 2.19, 3: 2.53, 4: 2.77, 5: 2.94, 7: 3.14, 10: 3.27},
    0.8: {1: 1.80, 2: 2.44, 3: 2.95, 4: 3.36, 5: 3.69, 7: 4.16, 10: 4.57},
    0.9: {1: 1.90, 2: 2.71, 3: 3.44, 4: 4.10, 5: 4.69, 7: 5.70, 10: 6.86},
}
# (γ, S) of the best draft length by c and α: free verification, then v = 0.03 and o = 0.3.
BEST = {
    (0.02, 0.4): ((3, 1.53), (3, 1.12)),
    (0.02, 0.9): ((19, 6.37), (15, 3.97)),
    (0.05, 0.6): ((4, 1.92), (4, 1.42)),
    (0.10, 0.4): ((2, 1.30), (0, 1.00)),
    (0.10, 0.8): ((6, 2.47), (6, 1.90)),
    (0.20, 0.4): ((1, 1.17), (0, 1.00)),
    (0.50, 0.5): ((0, 1.00), (0, 1.00)),
    (0.60, 0.3): ((0, 1.00), (0, 1.00)),
    (0.20, 0.9): ((7, 2.37), (7, 1.96)),
}


def test_tokens_a_target_call_are_the_tables() -> None:
    for acceptance, row in TABLE.items():
        for length, tokens in row.items():
            assert tokens_per_target_call(acceptance, length) == pytest.approx(tokens, abs=0.005)


def test_the_best_draft_lengths_are_the_tables() -> None:
    for (cost, acceptance), (ideal, served) in BEST.items():
        for costs, (length, gain) in ((Costs(cost), ideal), (Costs(cost, 0.03, 0.3), served)):
            found = best(acceptance, costs)
            assert found.num_draft_tokens == length
            assert found.speed_up == pytest.approx(gain, abs=0.005)


def test_simulated_rounds_agree() -> None:
    random = np.random.default_rng(0)
    accepted = (random.random((200_000, 6)) < 0.7).cumprod(axis=1).sum(axis=1)
    assert 1 + accepted.mean() == pytest.approx(tokens_per_target_call(0.7, 6), abs=0.01)
    assert accepted.sum() / (200_000 * 6) == pytest.approx(acceptance_rate(0.7, 6), abs=0.002)


def test_the_rate_that_tools_print_is_not_the_acceptance() -> None:
    assert acceptance_rate(0.80, 4) == pytest.approx(0.590, abs=0.001)
    assert acceptance_rate(0.88, 8) == pytest.approx(0.587, abs=0.005)


@given(ACCEPTANCE, LENGTH)
def test_acceptance_is_found_back_from_tokens(acceptance: float, length: int) -> None:
    tokens = tokens_per_target_call(acceptance, length)
    found = acceptance_from_tokens(min(tokens, length + 1), length)
    assert tokens_per_target_call(found, length) == pytest.approx(tokens, rel=1e-12)


@given(ACCEPTANCE, LENGTH)
def test_one_acceptance_at_every_position_is_the_sum_of_its_powers(acceptance: float, length: int) -> None:
    assert tokens_by_position([acceptance] * length) == pytest.approx(
        tokens_per_target_call(acceptance, length)
    )


@given(ACCEPTANCE, st.floats(0, 2))
def test_one_draft_token_gains_exactly_when_acceptance_exceeds_its_cost(
    acceptance: float, cost: float
) -> None:
    if abs(acceptance - cost) > 1e-9:
        assert (speed_up(acceptance, 1, Costs(cost)) > 1) == (acceptance > cost)


@given(ACCEPTANCE, st.floats(0, 2), st.floats(0, 1), st.floats(0, 3))
def test_the_best_is_never_slower_than_no_speculation(
    acceptance: float, cost: float, verified: float, overhead: float
) -> None:
    found = best(acceptance, Costs(cost, verified, overhead))
    assert found.speed_up >= 1
    assert found == Best(0, 1.0) or found.speed_up > 1


@pytest.mark.parametrize(("tokens", "length"), [(0.9, 3), (4.1, 3), (1.0, 0)])
def test_impossible_tokens_are_refused(tokens: float, length: int) -> None:
    with pytest.raises(ValueError, match="between 1 and γ"):
        acceptance_from_tokens(tokens, length)


def test_what_is_no_probability_is_refused() -> None:
    with pytest.raises(ValueError, match=r"acceptance is 1\.2"):
        tokens_per_target_call(1.2, 3)
