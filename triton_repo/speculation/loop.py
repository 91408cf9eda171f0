"""Draft-target speculation over two engines that are called, not known.

Each round the draft engine proposes up to γ tokens, the target engine checks them in one call and
returns those it accepts and one more of its own. The whole sequence is sent every round; engines
recognise what they have in their KV cache. The answer is the target's, whatever γ is: every option
travels with every call, in terms of the whole answer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from .output import Delta, Output, Token
from .request import GenerationRequest


class EngineCallError(Exception):
    """An engine that did not answer a call; the message says which and why.

    `refused`: it could not be asked like this; else it failed.
    """

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


@dataclass(frozen=True)
class Call:
    """One call of an engine."""

    # The whole sequence so far, shape [n], int32.
    input_ids: NDArray[np.int32]
    max_new_tokens: int
    # New tokens of this call before an end token may come.
    min_new_tokens: int = 0
    draft_ids: Sequence[int] = ()
    # What the draft tokens were drawn from, shape [len(draft_ids), vocab_size]; None: match the choice.
    draft_logits_KV: NDArray[np.float32] | None = None
    streaming: bool = False
    return_log_probs: bool = False
    return_logits: bool = False


@dataclass(frozen=True)
class Reply:
    """Tokens an engine adds, in order, with their scores where asked for."""

    ids: Sequence[int]
    log_probs: Sequence[float] | None = None
    logits_TV: NDArray[np.float32] | None = None

    def tokens(self) -> Iterator[Token]:
        for i, token_id in enumerate(self.ids):
            yield Token(
                id=token_id,
                log_prob=None if self.log_probs is None else self.log_probs[i],
                logits_V=None if self.logits_TV is None else self.logits_TV[i],
            )


# An engine answers a call with one reply, or several when the call streams. Closing the generator
# before its end tells the engine to stop. Failures are EngineCallError.
Engine = Callable[[Call], Generator[Reply, None, None]]


@dataclass
class Speculation:
    """What speculation did for one answer.

    A round is one target call that checked draft tokens. `off_reason` says why the answer, or the
    rest of it, was generated without a draft although one was asked for.
    """

    rounds: int = 0
    proposed: int = 0
    accepted: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    off_reason: str = ""

    def record(self, proposed: Sequence[int], returned: Sequence[int]) -> None:
        """Count a round: the target accepted the draft tokens that it returned."""
        accepted = common_length(proposed, returned)
        self.rounds += 1
        self.proposed += len(proposed)
        self.accepted += accepted
        missing = accepted - len(self.accepted_per_position)
        self.accepted_per_position += [0] * missing
        for position in range(accepted):
            self.accepted_per_position[position] += 1


def common_length(proposed: Sequence[int], returned: Sequence[int]) -> int:
    """Return how many draft tokens the target accepted: those that it returned."""
    length = 0
    while length < min(len(proposed), len(returned)) and proposed[length] == returned[length]:
        length += 1
    return length


class Generation:
    """One answer in the making: take its deltas, then read `speculation`."""

    def __init__(
        self,
        request: GenerationRequest,
        output: Output,
        target: Engine,
        draft: Engine,
        *,
        draft_max_seq_len: int,
    ) -> None:
        self.speculation = Speculation()
        self._request = request
        self._output = output
        self._target = target
        self._draft = draft
        self._draft_max_seq_len = draft_max_seq_len
        # Written once from left to right, so that calls can share it.
        self._ids = np.empty(len(request.prompt_ids) + request.max_tokens, np.int32)
        self._ids[: len(request.prompt_ids)] = request.prompt_ids

    def deltas(self) -> Generator[Delta, None, None]:
        """Yield what becomes certain, round by round; closing the generator ends a call in flight."""
        if self._request.echo:
            yield Delta(text=self._request.echo)
        while not self._output.finish_reason:
            proposal = self._propose()
            if proposal is None:
                yield from self._generate_rest()
            else:
                yield self._verify(proposal)

    @property
    def _length(self) -> int:
        return len(self._request.prompt_ids) + self._output.num_tokens

    @property
    def _remaining(self) -> int:
        return self._request.max_tokens - self._output.num_tokens

    def _propose(self) -> Reply | None:
        """Return the draft's tokens, or None when the target shall go on alone."""
        count = min(self._request.num_draft_tokens, self._remaining - 1)
        if count < 1 or self.speculation.off_reason:
            return None
        if self._length + count > self._draft_max_seq_len:
            self.speculation.off_reason = f"the draft engine holds {self._draft_max_seq_len} tokens"
            return None
        try:
            reply = _single(self._draft(self._call(count, return_logits=self._rejection_sampling)))
        except EngineCallError as error:
            self.speculation.off_reason = f"the draft failed: {error}"
            return None
        if not reply.ids:
            self.speculation.off_reason = "the draft returned no tokens"
            return None
        return reply

    def _verify(self, proposal: Reply) -> Delta:
        """One round: the target checks the proposal."""
        call = replace(
            self._target_call(len(proposal.ids) + 1),
            draft_ids=proposal.ids,
            draft_logits_KV=proposal.logits_TV if self._rejection_sampling else None,
        )
        reply = _single(self._target(call))
        self.speculation.record(proposal.ids, reply.ids)
        self._take(reply)
        if not reply.ids:
            self._output.finish("stop")
        return self._output.take()

    def _generate_rest(self) -> Iterator[Delta]:
        """One call for all that is missing, without a draft."""
        call = replace(self._target_call(self._remaining), streaming=True)
        with closing(self._target(call)) as replies:
            for reply in replies:
                complete = self._take(reply)
                yield self._output.take()
                if complete:
                    return
        # The engine stopped by itself, at an end token it does not return.
        self._output.finish("stop")
        yield self._output.take()

    def _take(self, reply: Reply) -> bool:
        """Add a reply's tokens to the answer; True when that completes it."""
        for token in reply.tokens():
            self._ids[self._length] = token.id
            if self._output.push(token):
                return True
        return False

    def _target_call(self, max_new_tokens: int) -> Call:
        call = self._call(max_new_tokens, return_logits=self._request.return_logits)
        return replace(call, return_log_probs=self._request.return_log_probs)

    def _call(self, max_new_tokens: int, *, return_logits: bool) -> Call:
        return Call(
            input_ids=self._ids[: self._length],
            max_new_tokens=max_new_tokens,
            min_new_tokens=max(0, self._request.min_tokens - self._output.num_tokens),
            return_logits=return_logits,
        )

    @property
    def _rejection_sampling(self) -> bool:
        """Greedy choices need no draft probabilities: accepting the match is the same rule."""
        return self._request.use_draft_logits and not self._request.sampling.greedy


def _single(replies: Generator[Reply, None, None]) -> Reply:
    """Return the one reply of a call that does not stream; an empty one when there is none."""
    every = list(replies)
    if len(every) > 1:
        raise EngineCallError(f"{len(every)} replies to a call that does not stream, expected one")
    return every[0] if every else Reply(())
