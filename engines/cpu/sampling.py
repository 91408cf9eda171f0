"""From raw logits to the token that is chosen.

The steps and their order are those of Hugging Face's generate: embedding bias, repetition penalty,
presence and frequency penalty (which Hugging Face has not; they stand beside the other penalty), bad
words, minimum length, temperature, top-k, top-p. Each row is processed with the history it would
have if it were decoded alone, draft tokens before it included.

R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .acceptance import matching_length, speculative_tokens
from .errors import RequestError
from .noise import Floats, Purpose, gumbel, uniforms

_MASKED = float("-inf")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a token is chosen. With none of temperature, top_k and top_p given, greedily.

    Where one of them is given the others default to 1, 0 (all tokens) and 1; temperature 0 and
    top_k 1 are greedy. `prompt_ignore_length` leading ids are not counted by the presence and
    frequency penalties; `min_tokens` counts the new tokens of this request.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    prompt_ignore_length: int = 0
    min_tokens: int = 0
    bad_words: tuple[tuple[int, ...], ...] = ()
    embedding_bias: NDArray[np.float32] | None = None

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is taken."""
        given = (self.temperature, self.top_k, self.top_p)
        return all(value is None for value in given) or self.temperature == 0 or self.top_k == 1

    @property
    def plain(self) -> bool:
        """Whether the choice is the argmax of the raw logits."""
        return self.greedy and not (self._needs_history or self.min_tokens or self.embedding_bias is not None)

    @property
    def _needs_history(self) -> bool:
        return bool(
            self.repetition_penalty != 1 or self.presence_penalty or self.frequency_penalty or self.bad_words
        )


class Sampler:
    """Chooses tokens for one request. `held_back` ids are masked until `min_tokens` new tokens exist."""

    def __init__(self, params: SamplingParams, held_back: Sequence[int]) -> None:
        self._params = params
        self._held_back = list(held_back)
        bias = params.embedding_bias
        self._bias = None if bias is None else torch.from_numpy(bias.astype(np.float32))

    def extend(
        self,
        logits_RV: Tensor,
        history: Sequence[int],
        new: int,
        draft: Sequence[int],
        draft_logits: Tensor | None,
    ) -> list[int]:
        """Return the accepted draft tokens and one more; R is len(draft) + 1.

        Args:
            logits_RV: raw target logits of the token after `history`, and after each draft token.
            history: prompt and generated ids.
            new: how many of them this request has generated.
            draft_logits: raw logits the draft tokens were drawn from, for rejection sampling; None
                (or a greedy request) accepts a token that equals the target's own choice.
        """
        if self._params.plain:
            choices: list[int] = logits_RV.numpy().argmax(-1).tolist()
            return choices[: matching_length(draft, choices) + 1]
        scores = self.scores(logits_RV, history, new, draft)
        if draft_logits is None or self._params.greedy:
            choices = self._choices(scores, len(history))
            kept = matching_length(draft, choices)
            _refuse_masked(scores[: kept + 1], choices)
            return choices[: kept + 1]
        _refuse_masked(scores, scores.argmax(-1).tolist())
        draft_scores = self.scores(draft_logits, history, new, draft)
        position, seed = len(history), self._params.seed

        def draw(index: int, left_over: Floats | None) -> int:
            if left_over is None:
                return self._choices(scores[index:], position + index)[0]
            noise = gumbel(seed, position + index, Purpose.RESIDUAL, len(left_over))
            with np.errstate(divide="ignore"):
                return int(np.argmax(np.log(left_over) + noise))

        accept = [uniforms(seed, position + k, Purpose.ACCEPT, 1)[0] for k in range(len(draft))]
        return speculative_tokens(
            _probabilities(scores), _probabilities(draft_scores), draft, np.array(accept), draw
        )

    def _choices(self, scores_RV: Tensor, position: int) -> list[int]:
        if self._params.greedy:
            return scores_RV.argmax(-1).tolist()
        rows, vocab = scores_RV.shape
        noise = [gumbel(self._params.seed, position + row, Purpose.SAMPLE, vocab) for row in range(rows)]
        choices: list[int] = (scores_RV.double().numpy() + np.stack(noise)).argmax(-1).tolist()
        return choices

    def scores(self, logits_RV: Tensor, history: Sequence[int], new: int, draft: Sequence[int]) -> Tensor:
        """Return the processed logits; a draw from their softmax is a draw of the request."""
        params = self._params
        scores = logits_RV.clone()
        if self._bias is not None:
            scores += self._bias
        if params._needs_history:
            for row in range(len(scores)):
                self._apply_history(scores[row], [*history, *draft[:row]])
        if self._held_back and new < params.min_tokens:
            scores[: params.min_tokens - new, self._held_back] = _MASKED
        return scores if params.greedy else _warp(scores, params)

    def _apply_history(self, scores_V: Tensor, history: list[int]) -> None:
        params = self._params
        if params.repetition_penalty != 1:
            seen = torch.tensor(history)
            values = scores_V[seen]
            penalty = params.repetition_penalty
            scores_V[seen] = torch.where(values < 0, values * penalty, values / penalty)
        if params.presence_penalty or params.frequency_penalty:
            counted = torch.tensor(history[params.prompt_ignore_length :], dtype=torch.long)
            ids, counts = torch.unique(counted, return_counts=True)
            scores_V[ids] -= params.presence_penalty + params.frequency_penalty * counts
        for *start, last in params.bad_words:
            if not start or history[-len(start) :] == start:
                scores_V[last] = _MASKED


def _refuse_masked(scores_RV: Tensor, choices: Sequence[int]) -> None:
    if any(scores_RV[row, choices[row]] == _MASKED for row in range(len(scores_RV))):
        raise RequestError("bad words, bias and minimum length leave no token to choose; loosen one of them")


def _warp(scores_RV: Tensor, params: SamplingParams) -> Tensor:
    """Apply temperature, top-k and top-p; ties at the k-th value are kept, as Hugging Face keeps them."""
    if params.temperature is not None:
        scores_RV = scores_RV / params.temperature
    if params.top_k:
        smallest = scores_RV.topk(min(params.top_k, scores_RV.shape[-1])).values[:, -1:]
        scores_RV = scores_RV.masked_fill(scores_RV < smallest, _MASKED)
    if params.top_p is not None and params.top_p < 1:
        ascending, order = scores_RV.sort(dim=-1)
        outside = ascending.softmax(-1).cumsum(-1) <= 1 - params.top_p
        outside[:, -1] = False
        scores_RV = scores_RV.masked_fill(outside.scatter(-1, order, outside), _MASKED)
    return scores_RV


def _probabilities(scores_RV: Tensor) -> Floats:
    probabilities: Floats = scores_RV.double().softmax(-1).numpy()
    return probabilities
