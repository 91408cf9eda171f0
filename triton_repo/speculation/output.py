"""The answer as it grows: which tokens end it, and what of it may be sent already."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .detokenizer import Detokenizer
from .request import GenerationRequest


@dataclass(frozen=True)
class Token:
    """A generated token with its scores, each None unless asked for."""

    id: int
    log_prob: float | None = None
    logits_V: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class Delta:
    """What one response adds. `finish_reason` is "" until the last."""

    text: str = ""
    tokens: tuple[Token, ...] = ()
    finish_reason: str = ""
    stop_reason: str = ""

    def __add__(self, later: Delta) -> Delta:
        return Delta(
            self.text + later.text,
            self.tokens + later.tokens,
            self.finish_reason or later.finish_reason,
            self.stop_reason or later.stop_reason,
        )


@dataclass
class Output:
    """Takes tokens one by one, gives deltas.

    Because a token is judged when it arrives and never by its neighbours in a round, the answer
    does not depend on how many tokens a round brings.

    The text ends before the earliest stop string, wherever token borders lie; a token belongs to the
    answer when its text begins before that. Text that could be the beginning of a stop string is
    held back, with its tokens. Stop strings count from `min_tokens` on.
    """

    detokenizer: Detokenizer
    max_tokens: int
    eos_ids: frozenset[int]
    stop_strings: tuple[str, ...] = ()
    min_tokens: int = 0
    finish_reason: str = ""
    stop_reason: str = ""
    _text: str = ""
    _tokens: list[Token] = field(default_factory=list)
    # Start and end in the text of each token whose text is out; tokens released together share one.
    _spans: list[tuple[int, int]] = field(default_factory=list)
    _sent_text: int = 0
    _sent_tokens: int = 0
    _search_from: int = 0

    @classmethod
    def of(cls, request: GenerationRequest, detokenizer: Detokenizer) -> Output:
        """Return the output of a request that has no tokens yet."""
        return cls(
            detokenizer,
            max_tokens=request.max_tokens,
            eos_ids=frozenset(request.eos_ids),
            stop_strings=request.stop_strings,
            min_tokens=request.min_tokens,
        )

    @property
    def num_tokens(self) -> int:
        return len(self._tokens)

    def push(self, token: Token) -> bool:
        """Add a token; True when the answer is complete and what follows must be dropped."""
        self._tokens.append(token)
        is_eos = token.id in self.eos_ids
        is_last = is_eos or len(self._tokens) == self.max_tokens
        if not is_eos:
            self._append(self.detokenizer.push(token.id))
        if is_last:
            self._flush()
        if not self._cut_at_stop_string() and is_last:
            self.finish_reason = "stop" if is_eos else "length"
        return bool(self.finish_reason)

    def finish(self, reason: str) -> None:
        """End the answer with the tokens it has: the engine gives no more."""
        self._flush()
        if not self._cut_at_stop_string():
            self.finish_reason = reason

    def take(self) -> Delta:
        """Return what has become certain since the last call."""
        certain = len(self._text) - (0 if self.finish_reason else self._possible_stop())
        until = self._sent_tokens
        while until < len(self._spans) and self._spans[until][1] <= certain:
            until += 1
        delta = Delta(
            text=self._text[self._sent_text : certain],
            tokens=tuple(self._tokens[self._sent_tokens : until]),
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )
        self._sent_text, self._sent_tokens = certain, until
        return delta

    def _append(self, text: str) -> None:
        if text:
            self._place(text)

    def _flush(self) -> None:
        self._place(self.detokenizer.flush())

    def _place(self, text: str) -> None:
        span = (len(self._text), len(self._text) + len(text))
        self._text += text
        self._spans += [span] * (len(self._tokens) - len(self._spans))

    def _cut_at_stop_string(self) -> bool:
        if len(self._tokens) <= self.min_tokens:
            self._search_from = len(self._text)
            return False
        found = [(at, s) for s in self.stop_strings if (at := self._text.find(s, self._search_from)) >= 0]
        if not found:
            return False
        cut, self.stop_reason = min(found)
        kept = sum(start < cut for start, _ in self._spans)
        self._text = self._text[:cut]
        self._spans = [(start, min(end, cut)) for start, end in self._spans[:kept]]
        del self._tokens[kept:]
        self.finish_reason = "stop"
        return True

    def _possible_stop(self) -> int:
        """Return the length of the longest end of the text that could begin a stop string."""
        tail = self._text[max(self._search_from, self._sent_text) :]
        longest = max((len(s) for s in self.stop_strings), default=1) - 1
        for length in range(min(longest, len(tail)), 0, -1):
            if any(s.startswith(tail[-length:]) for s in self.stop_strings):
                return length
        return 0
