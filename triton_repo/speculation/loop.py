"""Draft-target speculation over two engines that this module does not call itself.

A `Generation` says which engine to ask for what, and takes the reply: whoever drives it decides how
calls travel, waits for them, and may move on to another answer meanwhile. Each round the draft
engine proposes up to γ tokens, the target engine checks them in one call and returns those it
accepts and one more of its own. The whole sequence is sent every round; engines recognise what they
have in their KV cache. The answer is the target's, whatever γ is: every option travels with every
call, in terms of the whole answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .call_times import CallTimes
from .draft_length import DraftLength, Step
from .output import Delta, Output, Token
from .request import GenerationRequest

Role = Literal["target", "draft"]

# Tokens of a call of the target alone before it is known how long they take.
FIRST_CHUNK_TOKENS = 8


class EngineCallError(Exception):
    """An engine that did not answer a call; the message says which and why.

    `refused`: it could not be asked like this; else it failed.
    """

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


@dataclass(frozen=True)
class Call:
    """One call of an engine, which has one reply."""

    engine: Role
    # The whole sequence so far, shape [n], int32.
    input_ids: NDArray[np.int32]
    max_new_tokens: int
    # New tokens of this call before an end token may come.
    min_new_tokens: int = 0
    draft_ids: Sequence[int] = ()
    # What the draft tokens were drawn from, shape [len(draft_ids), vocab_size]; None: match the choice.
    draft_logits_KV: NDArray[np.float32] | None = None
    return_log_probs: bool = False
    return_logits: bool = False


@dataclass(frozen=True)
class Reply:
    """Tokens an engine adds, in order, with their scores where asked for."""

    ids: Sequence[int]
    log_probs: Sequence[float] | None = None
    logits_TV: NDArray[np.float32] | None = None

    def first(self, count: int) -> Reply:
        return Reply(
            self.ids[:count],
            None if self.log_probs is None else self.log_probs[:count],
            None if self.logits_TV is None else self.logits_TV[:count],
        )

    def tokens(self) -> Iterator[Token]:
        for i, token_id in enumerate(self.ids):
            yield Token(
                id=token_id,
                log_prob=None if self.log_probs is None else self.log_probs[i],
                logits_V=None if self.logits_TV is None else self.logits_TV[i],
            )


@dataclass
class Speculation:
    """What speculation did for one answer.

    A round is one target call that checked draft tokens. `off_reason` says why the answer, or the
    rest of it, was generated without a draft although one was asked for.
    """

    rounds: int = 0
    proposed: int = 0
    accepted: int = 0
    # By position in a round: how many tokens were drafted there, and how many of them kept.
    proposed_per_position: list[int] = field(default_factory=list)
    accepted_per_position: list[int] = field(default_factory=list)
    off_reason: str = ""

    def record(self, proposed: Sequence[int], returned: Sequence[int]) -> int:
        """Count a round and return how many draft tokens the target accepted: those that it returned."""
        accepted = common_length(proposed, returned)
        self.rounds += 1
        self.proposed += len(proposed)
        self.accepted += accepted
        missing = [0] * (len(proposed) - len(self.proposed_per_position))
        self.proposed_per_position += missing
        self.accepted_per_position += missing
        for position in range(len(proposed)):
            self.proposed_per_position[position] += 1
            self.accepted_per_position[position] += position < accepted
        return accepted


def common_length(proposed: Sequence[int], returned: Sequence[int]) -> int:
    """Return how many draft tokens the target accepted: those that it returned."""
    length = 0
    while length < min(len(proposed), len(returned)) and proposed[length] == returned[length]:
        length += 1
    return length


class Generation:
    """One answer in the making.

    While there is a `next_call`: make it, `take` its replies, and `end` it, or `fail` it.

    Args:
        draft_max_seq_len: tokens the draft engine holds.
        draft_length: chooses γ for every round.
        draft_is_off: says, each time before the draft is asked, why it must not be; "" if it may.
        chunk_s: about how long a call of the target alone may take until its reply; one token comes in
            any case.
        arrival_s: when the request came, by `time.monotonic`; None for now.
    """

    def __init__(
        self,
        request: GenerationRequest,
        output: Output,
        *,
        draft_max_seq_len: int,
        draft_length: DraftLength,
        chunk_s: float,
        draft_is_off: Callable[[], str] = str,
        arrival_s: float | None = None,
    ) -> None:
        self.speculation = Speculation()
        self._request = request
        self._output = output
        self._draft_max_seq_len = draft_max_seq_len
        self._draft_is_off = draft_is_off
        self._draft_length = draft_length
        self.times = CallTimes(self._draft_length, arrival_s=arrival_s)
        self._chunk_s = chunk_s
        self._proposal: Reply | None = None
        if not request.max_tokens:
            output.finish("length")
        # Written once from left to right, so that calls can share it.
        self._ids = np.empty(len(request.prompt_ids) + request.max_tokens, np.int32)
        self._ids[: len(request.prompt_ids)] = request.prompt_ids

    def next_call(self) -> Call | None:
        """Return what to ask next; None when the answer is complete."""
        if self._output.finish_reason:
            self.times.finish()
            self.speculation.off_reason = self.speculation.off_reason or self._draft_length.off_reason
            return None
        if self._proposal is not None:
            self.times.verify(len(self._proposal.ids))
            return self._target_call(len(self._proposal.ids) + 1, proposal=self._proposal)
        self.times.begin()
        step = self._choose()
        if step.draft_tokens:
            return self._call("draft", step.draft_tokens, return_logits=self._rejection_sampling)
        return self._target_call(min(step.plain_tokens, self._chunk_tokens()))

    def take(self, call: Call, reply: Reply) -> Delta:
        """Return what the reply to a call makes certain."""
        if call.engine == "draft":
            # No more than were asked for: the target was built for so many.
            self._proposal = reply.first(call.max_new_tokens) if reply.ids else None
            if self._proposal is None:
                self.speculation.off_reason = "the draft returned no tokens"
            return Delta()
        accepted = 0
        if call.draft_ids:
            self._proposal = None
            accepted = self.speculation.record(call.draft_ids, reply.ids)
        self.times.take(len(reply.ids), accepted)
        for token in reply.tokens():
            self._ids[self._length] = token.id
            if self._output.push(token):
                break
        # A round may bring less than it could, but never nothing: then, and where a call without
        # draft brings less, the engine has stopped at an end token that it does not return.
        expected = 1 if call.draft_ids else call.max_new_tokens
        if len(reply.ids) < expected and not self._output.finish_reason:
            self._output.finish("stop")
        return self._output.take()

    def fail(self, call: Call, error: EngineCallError) -> None:
        """Go on without a draft that failed; a target's failure is raised."""
        if call.engine == "target":
            raise error
        self.speculation.off_reason = f"the draft failed: {error}"

    @property
    def _length(self) -> int:
        return len(self._request.prompt_ids) + self._output.num_tokens

    @property
    def _remaining(self) -> int:
        return self._request.max_tokens - self._output.num_tokens

    def _choose(self) -> Step:
        """Return what to do next, which is the target alone where the draft cannot be asked."""
        alone = Step(plain_tokens=self._remaining)
        if self.speculation.off_reason:
            return alone
        step = self._draft_length.choose(self._remaining)
        if not step.draft_tokens:
            return step
        if self._length + step.draft_tokens > self._draft_max_seq_len:
            self.speculation.off_reason = f"the draft engine holds {self._draft_max_seq_len} tokens"
        else:
            self.speculation.off_reason = self._draft_is_off()
        return alone if self.speculation.off_reason else step

    def _chunk_tokens(self) -> int:
        """Return how many tokens the target brings alone in that time; the first comes by itself."""
        token_s = self.times.plain_token_s
        if token_s is None:
            return FIRST_CHUNK_TOKENS if self._output.num_tokens else 1
        return max(1, int(self._chunk_s / token_s))

    def _target_call(self, max_new_tokens: int, *, proposal: Reply | None = None) -> Call:
        return self._call(
            "target",
            max_new_tokens,
            draft_ids=proposal.ids if proposal else (),
            draft_logits_KV=proposal.logits_TV if proposal and self._rejection_sampling else None,
            return_log_probs=self._request.return_log_probs,
            return_logits=self._request.return_logits,
        )

    def _call(
        self,
        engine: Role,
        max_new_tokens: int,
        *,
        draft_ids: Sequence[int] = (),
        draft_logits_KV: NDArray[np.float32] | None = None,
        return_log_probs: bool = False,
        return_logits: bool = False,
    ) -> Call:
        return Call(
            engine=engine,
            input_ids=self._ids[: self._length],
            max_new_tokens=max_new_tokens,
            min_new_tokens=max(0, self._request.min_tokens - self._output.num_tokens),
            draft_ids=draft_ids,
            draft_logits_KV=draft_logits_KV,
            return_log_probs=return_log_probs,
            return_logits=return_logits,
        )

    @property
    def _rejection_sampling(self) -> bool:
        """Greedy choices need no draft probabilities: accepting the match is the same rule."""
        return self._request.use_draft_logits and not self._request.sampling.greedy
