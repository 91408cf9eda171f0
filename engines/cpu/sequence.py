"""One request while it runs: its tokens, what of them is computed, and what of its answer is not yet sent."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .model import Segment
from .request import Chunk, FinishReason, Request
from .sampling import Sampler


class Sequence:
    """The state of a request in the engine; a handle for whoever submitted it."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.tokens = list(request.input_ids)
        self.slot = -1
        self.computed = 0
        self.finish_reason: FinishReason | None = None
        self._draft = list(request.draft_ids)
        self._draft_logits = None
        if request.draft_logits is not None:
            self._draft_logits = torch.from_numpy(request.draft_logits.astype(np.float32))
        held_back = [word[0] for word in request.stop_words if len(word) == 1]
        if request.end_id is not None:
            held_back.append(request.end_id)
        self._sampler = Sampler(request.sampling, held_back)
        self._unsent: list[int] = []
        self._unsent_logits: list[Tensor] = []
        self._unsent_log_probs: list[float] = []

    @property
    def new_tokens(self) -> int:
        """How many tokens have been generated."""
        return len(self.tokens) - len(self.request.input_ids)

    @property
    def greedy_tokens(self) -> int:
        """How many tokens are left to choose of which none needs more than the most probable one."""
        request = self.request
        each_matters = (
            self._draft or request.streaming or request.return_log_probs or request.return_generation_logits
        )
        return request.max_new_tokens - self.new_tokens if request.sampling.plain and not each_matters else 0

    def next_segment(self, max_rows: int) -> Segment:
        """Return the rows of the next pass: a part of a long prompt, or all that is left and the draft."""
        end = self.computed + max_rows
        if end < len(self.tokens):
            return Segment(self.slot, self.computed, self.tokens[self.computed : end], 0)
        ids = [*self.tokens[self.computed :], *self._draft]
        return Segment(self.slot, self.computed, ids, 1 + len(self._draft))

    def advance(self, segment: Segment, logits_RV: Tensor) -> None:
        """Take in the logits of a segment: accept draft tokens, add one of the target's, note the end."""
        if not segment.logit_rows:
            self.computed += len(segment.ids)
            return
        draft, self._draft = self._draft, []
        before = len(self.tokens)
        self.extend(self._sampler.extend(logits_RV, self.tokens, self.new_tokens, draft, self._draft_logits))
        if draft and self.finish_reason is None:
            self.finish_reason = "verified"
        self._draft_logits = None
        self._keep_scores(self.tokens[before:], logits_RV)

    def extend(self, tokens: list[int]) -> None:
        """Add tokens up to the first that ends the answer; all but the last have been computed."""
        before = len(self.tokens)
        for token in tokens:
            self.tokens.append(token)
            self.finish_reason = self._reason_to_finish()
            if self.finish_reason:
                break
        self.computed = min(before + len(tokens) - 1, len(self.tokens))
        self._unsent += self.tokens[before:]

    def collect(self) -> Chunk | None:
        """Return what is due to be sent: every step while streaming, else once finished."""
        if not (self.finish_reason or (self.request.streaming and self._unsent)):
            return None
        request = self.request
        chunk = Chunk(
            ids=self._unsent,
            log_probs=self._unsent_log_probs if request.return_log_probs else None,
            logits=torch.cat(self._unsent_logits).numpy() if request.return_generation_logits else None,
            finish_reason=self.finish_reason,
        )
        self._unsent, self._unsent_logits, self._unsent_log_probs = [], [], []
        return chunk

    def _reason_to_finish(self) -> FinishReason | None:
        request, new = self.request, self.new_tokens
        if self.tokens[-1] == request.end_id:
            return "end_id"
        for word in request.stop_words:
            if len(word) <= new and tuple(self.tokens[-len(word) :]) == word:
                return "stop_words"
        return "length" if new >= request.max_new_tokens else None

    def _keep_scores(self, ids: list[int], logits_RV: Tensor) -> None:
        rows = logits_RV[: len(ids)]
        if self.request.return_generation_logits:
            self._unsent_logits.append(rows)
        if self.request.return_log_probs:
            self._unsent_log_probs += rows.log_softmax(-1)[range(len(ids)), ids].tolist()
