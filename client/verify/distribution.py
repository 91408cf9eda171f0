"""The exact distribution a sampled token has to have, and what is done to logits before it.

Written out again from the definitions, with numpy, in the order of Hugging Face's generate: it shares
no line with the engine that it is compared with.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trtspec.dtype_noise import Row

Probabilities = NDArray[np.float64]


@dataclass(frozen=True)
class Warp:
    """Temperature, then top-k, then top-p; what a request is sent and what its draws have to follow."""

    temperature: float = 1.0
    # 0: all tokens.
    top_k: int = 0
    top_p: float = 1.0

    def probabilities(self, logits_V: Row, *, slack: float = 0.0) -> tuple[Probabilities, NDArray[np.bool_]]:
        """Return the probabilities, and which tokens may be drawn at all.

        Args:
            slack: by how much two logits may be off from each other. A token that such noise can lift
                over the edge of top-k or top-p may be drawn too; its probability stays 0.
        """
        scores_V = logits_V.astype(np.float64) / self.temperature
        order = np.argsort(-scores_V, kind="stable")
        kept = len(order)
        if self.top_k:
            smallest = scores_V[order[min(self.top_k, kept) - 1]]
            kept = int((scores_V >= smallest).sum())
        exponents = np.exp(scores_V[order[:kept]] - scores_V[order[0]])
        edge = kept
        if self.top_p < 1:
            before = np.concatenate([[0.0], np.cumsum(exponents / exponents.sum())[:-1]])
            kept = max(1, int((before < self.top_p).sum()))
            # Such noise lowers the odds of all that lies before a token by exp(slack) at most.
            least = before * math.exp(-slack / self.temperature)
            edge = max(kept, int((least < self.top_p * (least + 1 - before)).sum()))
        p_V = np.zeros(len(scores_V))
        p_V[order[:kept]] = exponents[:kept] / exponents[:kept].sum()
        # Logits that differ in their last bit may be the same score, and so in any order.
        allowed_V = logits_V >= float(logits_V[order[:edge]].min()) - slack
        return p_V, allowed_V


@dataclass(frozen=True)
class Shaping:
    """Options that change which token is best: bias, penalties, bad words, minimum length."""

    bias: Mapping[int, float] = field(default_factory=dict)
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bad_words: Sequence[Sequence[int]] = ()
    min_tokens: int = 0
    end_ids: frozenset[int] = frozenset()

    def apply(self, logits_V: Row, history: Sequence[int], new: int) -> Row:
        """Return the logits that the next token is chosen by.

        Repetition counts prompt and answer, presence and frequency the answer only.
        """
        scores_V = logits_V.astype(np.float64)
        for token, weight in self.bias.items():
            scores_V[token] += weight
        if self.repetition_penalty != 1:
            seen = sorted(set(history))
            values = scores_V[seen]
            scores_V[seen] = np.where(
                values < 0, values * self.repetition_penalty, values / self.repetition_penalty
            )
        for token, count in Counter(history[len(history) - new :]).items():
            scores_V[token] -= self.presence_penalty + self.frequency_penalty * count
        for *start, last in self.bad_words:
            if not start or list(history[-len(start) :]) == start:
                scores_V[last] = -np.inf
        if new < self.min_tokens:
            scores_V[sorted(self.end_ids)] = -np.inf
        return scores_V


def log_probs(logits_V: Row) -> Probabilities:
    """Return log-softmax of raw logits."""
    shifted = logits_V.astype(np.float64) - float(logits_V.max())
    result: Probabilities = shifted - np.log(np.exp(shifted).sum())
    return result


def top_kl(reference_V: Row, served_V: Row, top: int) -> float:
    """Return the KL divergence, in nats, of the reference's `top` likeliest tokens and the rest as one.

    Infinite where the served distribution has none of what the reference has, nan for logits that are
    no numbers.
    """
    if not np.isfinite(served_V.max()):
        return float("nan")
    log_p, log_q = (
        _cells(log_probs(row_V), np.argsort(-reference_V, kind="stable"), top)
        for row_V in (reference_V, served_V)
    )
    possible = log_p > -np.inf
    off = log_q[possible] - log_p[possible]
    # Σ p log(p / q) with Σ q - Σ p = 0 added: no term is negative, and small ones do not cancel.
    return float(np.sum(np.exp(log_p[possible]) * (np.expm1(off) - off)))


def _cells(log_probs_V: Probabilities, order: NDArray[np.intp], top: int) -> Probabilities:
    rest = np.logaddexp.reduce(log_probs_V[order[top:]], initial=-np.inf)
    return np.append(log_probs_V[order[:top]], rest)
