"""Which draft tokens the target keeps, and the token it adds. Pure functions; random draws are passed in.

K drafted tokens, V vocabulary. Leviathan et al. 2023, algorithm 1 (arXiv:2211.17192).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def matching_length(draft_K: Sequence[int], choices: Sequence[int]) -> int:
    """Return how many draft tokens precede the first that is not the target's own choice, 0..K.

    With greedy choices this is algorithm 1 itself; with choices drawn from position-keyed noise the
    answer is the one the target would have given alone.
    """
    for index, token in enumerate(draft_K):
        if token != choices[index]:
            return index
    return len(draft_K)


def accepted_length(p_KV: Floats, q_KV: Floats, draft_K: Sequence[int], u_K: Floats) -> int:
    """Return how many draft tokens rejection sampling keeps, 0..K.

    Token k is kept while u[k] < min(1, p[k, d] / q[k, d]) for d = draft[k]; the first refusal ends
    the run. A token the draft gave no probability cannot have been drawn from it and is refused.

    Args:
        p_KV: target probabilities at each draft position, rows sum to 1; rows beyond K are not read.
        q_KV: draft probabilities the tokens were drawn from.
        draft_K: drafted token ids.
        u_K: uniform draws in (0, 1).
    """
    for index, token in enumerate(draft_K):
        p, q = p_KV[index, token], q_KV[index, token]
        if not (q > 0 and u_K[index] * q < p):
            return index
    return len(draft_K)


def residual(p_V: Floats, q_V: Floats) -> Floats:
    """Return norm(max(0, p - q)), what the token at the first refusal is drawn from.

    Where p equals q a refusal has probability 0; if rounding brings one about, p itself is returned.
    """
    excess = np.maximum(p_V - q_V, 0.0)
    total = float(excess.sum())
    return excess / total if total > 0 else p_V


def speculative_tokens(
    p_K1V: Floats,
    q_KV: Floats,
    draft_K: Sequence[int],
    u_K: Floats,
    draw: Callable[[int, Floats | None], int],
) -> list[int]:
    """Return the kept draft tokens and one more, distributed as the target alone would draw them.

    Args:
        p_K1V: target probabilities at the K draft positions and the one after.
        draw: draw(k, residual) returns the token at position k; residual is None after K kept tokens.
    """
    kept = accepted_length(p_K1V, q_KV, draft_K, u_K)
    left_over = residual(p_K1V[kept], q_KV[kept]) if kept < len(draft_K) else None
    return [*draft_K[:kept], draw(kept, left_over)]
