"""Scripted engines: doubles of a target and a draft, with the rules of the real ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from trtspec.triton_repo.speculation.loop import Call, EngineCallError, Generation, Reply
from trtspec.triton_repo.speculation.output import Delta

# The next token of a sequence.
Rule = Callable[[Sequence[int]], int]
Engine = Callable[[Call], Reply]


def deltas(generation: Generation, *, target: Engine, draft: Engine) -> Iterator[Delta]:
    """Drive a generation to its end, one blocking call after the other."""
    engines = {"target": target, "draft": draft}
    while call := generation.next_call():
        try:
            yield generation.take(call, engines[call.engine](call))
        except EngineCallError as error:
            generation.fail(call, error)


def hashed_rule(vocab_size: int, salt: int = 0) -> Rule:
    """A "model": the next token is a fixed pseudo-random function of the last three."""

    def rule(ids: Sequence[int]) -> int:
        state = salt
        for token_id in ids[-3:]:
            state = (state * 6364136223846793005 + token_id + 1442695040888963407) % 2**64
        return (state >> 33) % vocab_size

    return rule


def mostly(rule: Rule, period: int) -> Rule:
    """A draft that is wrong whenever the length of the sequence is a multiple of `period`."""
    return lambda ids: (rule(ids) + (len(ids) % period == 0)) % 50


@dataclass
class TargetDouble:
    """Keeps draft tokens while they are its own choice, then adds one."""

    rule: Rule
    end_ids: frozenset[int] = frozenset()
    calls: list[Call] = field(default_factory=list)

    def __call__(self, call: Call) -> Reply:
        self.calls.append(call)
        new: list[int] = []
        for position in range(call.max_new_tokens):
            token_id = self._choose(
                [*call.input_ids.tolist(), *new], masks_ends=position < call.min_new_tokens
            )
            new.append(token_id)
            drafted = call.draft_ids[position] if position < len(call.draft_ids) else None
            if token_id in self.end_ids or (call.draft_ids and token_id != drafted):
                break
        return Reply(new, [-1.0] * len(new) if call.return_log_probs else None)

    def _choose(self, ids: Sequence[int], masks_ends: bool) -> int:
        token_id = self.rule(ids)
        while masks_ends and token_id in self.end_ids:
            token_id += 1
        return token_id


@dataclass
class FailingDouble:
    """Works `good_calls` times, then fails each call."""

    engine: Engine
    good_calls: int

    def __call__(self, call: Call) -> Reply:
        self.good_calls -= 1
        if self.good_calls < 0:
            raise EngineCallError("draft: gone")
        return self.engine(call)


def silent_double(call: Call) -> Reply:
    """An engine that answers without tokens."""
    return Reply(())
