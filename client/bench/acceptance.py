"""What became of draft tokens, summed over answers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trtspec.client._results import Speculation
from trtspec.client.bench.result import Acceptance
from trtspec.client.bench.statistics import Array, Bootstrap


def acceptance_of(answers: Sequence[tuple[Speculation, int]], bootstrap: Bootstrap) -> Acceptance:
    """Return the acceptance of answers, each with its unit; at least one token must have been proposed."""
    positions = max(len(speculation.proposed_per_position) for speculation, _ in answers)
    # Rounds, proposed, accepted; then proposed and accepted by position.
    sums_UK = np.zeros((1 + max(unit for _, unit in answers), 3 + 2 * positions))
    for speculation, unit in answers:
        sums_UK[unit] += _counts(speculation, positions)
    rounds, proposed, _, *places = sums_UK.sum(axis=0).tolist()
    by_position = zip(places[positions:], places[:positions], strict=True)
    rate = bootstrap.of_sums(sums_UK, lambda sums: sums[:, 2] / sums[:, 1])
    assert rate is not None
    return Acceptance(
        rate=rate,
        alpha=bootstrap.of_sums(sums_UK, lambda sums: same_alpha(sums[:, 2], sums[:, 3 : 3 + positions])),
        tokens_per_target_call=bootstrap.of_sums(sums_UK, lambda sums: np.add(1.0, sums[:, 2] / sums[:, 0])),
        mean_draft_tokens=proposed / rounds if rounds else None,
        by_position=tuple(kept / tried for kept, tried in by_position if tried),
    )


def _counts(found: Speculation, positions: int) -> Array:
    by_position = np.zeros((2, positions))
    for row, counts in zip(
        by_position, (found.proposed_per_position, found.accepted_per_position), strict=True
    ):
        row[: len(counts)] = counts
    return np.array([found.rounds, found.proposed, found.accepted, *by_position.ravel()], np.float64)


def same_alpha(accepted: Array, proposed_NK: Array) -> Array:
    """Return the α that, equal at every position, gives so many accepted tokens: Σ n(k) α^k for k from 1.

    n(k) is in how many rounds position k was proposed, so draft lengths may differ between rounds.

    Args:
        accepted: [n].
        proposed_NK: [n, positions].

    Returns:
        [n]; nan where nothing was proposed.
    """
    powers = np.arange(1, proposed_NK.shape[1] + 1)
    low, high = np.zeros(len(accepted)), np.ones(len(accepted))
    # The sum grows with α: 50 halvings find it to the last bits of a float.
    for _ in range(50):
        middle = (low + high) / 2
        is_low = (proposed_NK * middle[:, None] ** powers).sum(axis=1) < accepted
        low, high = np.where(is_low, middle, low), np.where(is_low, high, middle)
    found: Array = np.where(proposed_NK.sum(axis=1) > 0, (low + high) / 2, np.nan)
    return found
