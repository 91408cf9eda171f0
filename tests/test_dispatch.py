"""Many answers over engines that are asked together: each is what it would be alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from engine_doubles import TargetDouble, deltas, hashed_rule, mostly
from hypothesis import given, settings
from hypothesis import strategies as st

from trtspec.engines.cpu import tensors as engine_side
from trtspec.triton_repo.speculation.detokenizer import Detokenizer
from trtspec.triton_repo.speculation.dispatch import Asked, Dispatcher
from trtspec.triton_repo.speculation.draft_length import FixedDraftLength
from trtspec.triton_repo.speculation.engine_tensors import EngineInputs, EngineRequest, read_replies, stack
from trtspec.triton_repo.speculation.loop import Call, EngineCallError, Generation, Reply, Role
from trtspec.triton_repo.speculation.output import Delta, Output
from trtspec.triton_repo.speculation.request import GenerationRequest
from trtspec.triton_repo.speculation.runtime import RUNTIMES

RULE = hashed_rule(50)
REQUEST = GenerationRequest(prompt_ids=(1, 2, 3), max_tokens=24, num_draft_tokens=4, eos_ids=())
LONG_S = 60.0


def generation(request: GenerationRequest) -> Generation:
    output = Output(Detokenizer(lambda ids: "x" * len(ids)), request.max_tokens, frozenset(request.eos_ids))
    length = FixedDraftLength(request.num_draft_tokens)
    return Generation(request, output, draft_max_seq_len=1000, draft_length=length, chunk_s=0.05)


def alone(request: GenerationRequest) -> list[int]:
    ends = frozenset(request.eos_ids)
    target, draft = TargetDouble(RULE, ends), TargetDouble(mostly(RULE, 4), ends)
    whole = sum(deltas(generation(request), target=target, draft=draft), Delta())
    return [token.id for token in whole.tokens]


@dataclass
class AnswerDouble:
    """An answer without a caller: keeps what it gets."""

    request: GenerationRequest
    whole: Delta = field(default_factory=Delta)
    error: EngineCallError | None = None
    over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.generation = generation(self.request)
        self._inputs = EngineInputs(self.request, RUNTIMES["cpu"])
        self._call: Call | None = None
        self._first: set[Role] = {"target", "draft"}

    def next(self) -> Asked | None:
        self._call = call = None if self.error else self.generation.next_call()
        if call is None:
            self.over.set()
            return None
        is_round = call.engine == "draft" or bool(call.draft_ids)
        travels_alone = not is_round or call.engine in self._first
        self._first.discard(call.engine)
        return Asked(call.engine, self._inputs.of(call), travels_alone)

    def end(self, outcome: Reply | EngineCallError) -> None:
        assert self._call
        try:
            if isinstance(outcome, EngineCallError):
                self.generation.fail(self._call, outcome)
            else:
                self.whole += self.generation.take(self._call, outcome)
        except EngineCallError as failure:
            self.error = failure

    @property
    def ids(self) -> list[int]:
        return [token.id for token in self.whole.tokens]


@dataclass
class EnginesDouble:
    """Two scripted engines behind the cpu engine's own reading and writing of tensors."""

    end_ids: frozenset[int] = frozenset()
    rows: list[tuple[Role, int]] = field(default_factory=list)
    # Called with each request; may block or raise.
    on_request: Callable[[Role, int], None] = lambda engine, rows: None

    def ask(self, engine: Role, requests: Sequence[EngineRequest]) -> list[Reply]:
        self.rows.append((engine, len(requests)))
        self.on_request(engine, len(requests))
        rows = engine_side.split_rows(stack(requests))
        outputs = [_outputs(self._answer(engine, row)) for row in rows]
        return read_replies(engine_side.join_rows(outputs))

    def _answer(self, engine: Role, row: dict[str, np.ndarray]) -> list[int]:
        asked = engine_side.read_request(row)
        call = Call(
            engine=engine,
            input_ids=np.array(asked.input_ids, np.int32),
            max_new_tokens=asked.max_new_tokens,
            draft_ids=asked.draft_ids,
        )
        rule = RULE if engine == "target" else mostly(RULE, 4)
        return list(TargetDouble(rule, self.end_ids)(call).ids)


def _outputs(ids: list[int]) -> dict[str, np.ndarray]:
    return {
        "output_ids": np.array([[ids]], np.int32),
        "sequence_length": np.array([[len(ids)]], np.int32),
    }


@contextmanager
def dispatcher(
    engines: EnginesDouble,
    *,
    max_rows: int = 8,
    threads: int = 32,
    most_stuck: int = 8,
    **timeouts_s: float,
) -> Iterator[tuple[Dispatcher, ThreadPoolExecutor]]:
    with ThreadPoolExecutor(threads) as pool:
        timeouts: dict[Any, float] = {"target": LONG_S, "draft": LONG_S, **timeouts_s}
        made = Dispatcher(engines.ask, pool, timeouts_s=timeouts, max_rows=max_rows, most_stuck=most_stuck)
        try:
            yield made, pool
        finally:
            made.close()


def answers(engines: EnginesDouble, requests: Sequence[GenerationRequest], **options) -> list[AnswerDouble]:
    made = [AnswerDouble(request) for request in requests]
    with dispatcher(engines, **options) as (running, threads):
        for answer in made:
            threads.submit(running.run, answer)
        for answer in made:
            assert answer.over.wait(LONG_S)
    return made


@settings(max_examples=40)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 8), st.integers(1, 30)), min_size=1, max_size=12),
    end_ids=st.lists(st.integers(0, 49), max_size=2, unique=True),
    max_rows=st.integers(1, 8),
)
def test_answers_at_once_are_those_that_come_alone(lengths, end_ids, max_rows) -> None:
    requests = [
        GenerationRequest(
            prompt_ids=(i, 7),
            max_tokens=max_tokens,
            num_draft_tokens=num_draft_tokens,
            eos_ids=tuple(end_ids[:1]),
        )
        for i, (num_draft_tokens, max_tokens) in enumerate(lengths)
    ]
    engines = EnginesDouble(frozenset(end_ids[:1]))
    made = answers(engines, requests, max_rows=max_rows)
    assert [answer.ids for answer in made] == [alone(request) for request in requests]
    assert max(rows for _, rows in engines.rows) <= max_rows


def test_an_answer_alone_needs_one_thread() -> None:
    threads = set()
    engines = EnginesDouble(on_request=lambda engine, rows: threads.add(threading.get_ident()))
    answer = AnswerDouble(REQUEST)
    with dispatcher(engines) as (running, _):
        running.run(answer)
    assert answer.ids == alone(REQUEST)
    assert threads == {threading.get_ident()}


def test_calls_that_come_up_meanwhile_travel_together() -> None:
    engines = EnginesDouble(on_request=lambda engine, rows: time.sleep(0.002))
    answers(engines, [replace(REQUEST, prompt_ids=(i,)) for i in range(8)])
    assert max(rows for _, rows in engines.rows) > 1
    assert {rows for _, rows in engines.rows[:2]} == {1}


def test_a_call_that_is_refused_takes_no_other_along() -> None:
    def refuse_many(engine: Role, rows: int) -> None:
        time.sleep(0.002)
        if rows > 1:
            raise EngineCallError("one of them is wrong", refused=True)

    requests = [replace(REQUEST, prompt_ids=(i,)) for i in range(6)]
    engines = EnginesDouble(on_request=refuse_many)
    made = answers(engines, requests)
    assert any(rows > 1 for _, rows in engines.rows)
    assert [answer.ids for answer in made] == [alone(request) for request in requests]
    assert not any(answer.generation.speculation.off_reason for answer in made)


def test_a_bug_in_the_transport_ends_the_answers_it_meets() -> None:
    def break_down(engine: Role, rows: int) -> None:
        raise LookupError("no such thing")

    (answer,) = answers(EnginesDouble(on_request=break_down), [REQUEST])
    assert str(answer.error) == "LookupError: no such thing"


@pytest.mark.parametrize("wedged", ["draft", "target"])
def test_an_engine_that_does_not_answer_is_given_up(wedged: Role) -> None:
    released = threading.Event()
    calls: list[Role] = []

    def wedge(engine: Role, rows: int) -> None:
        calls.append(engine)
        if engine == wedged and len(calls) > 20:
            released.wait(LONG_S)

    requests = [replace(REQUEST, prompt_ids=(i,)) for i in range(6)]
    made = [AnswerDouble(request) for request in requests]
    with dispatcher(EnginesDouble(on_request=wedge), **{wedged: 0.3}) as (running, threads):
        for answer in made:
            threads.submit(running.run, answer)
        for answer in made:
            assert answer.over.wait(LONG_S)
        released.set()
    if wedged == "target":
        assert "the target engine gave no answer within 0.3 s" in {str(answer.error) for answer in made}
        return
    assert [answer.ids for answer in made] == [alone(request) for request in requests]
    reasons = {answer.generation.speculation.off_reason for answer in made}
    assert "the draft failed: the draft engine gave no answer within 0.3 s" in reasons


def test_what_a_late_engine_says_is_dropped() -> None:
    released = threading.Event()
    answer = AnswerDouble(replace(REQUEST, max_tokens=6))
    made_calls: list[Role] = []

    def wedge(engine: Role, rows: int) -> None:
        made_calls.append(engine)
        if len(made_calls) == 1:
            released.wait(LONG_S)

    with dispatcher(EnginesDouble(on_request=wedge), draft=0.3) as (running, threads):
        late = threads.submit(running.run, answer)
        assert answer.over.wait(LONG_S)
        before = answer.ids
        released.set()
        late.result(LONG_S)
    assert answer.ids == before == alone(answer.request)


@pytest.mark.parametrize("wedged", ["draft", "target"])
def test_an_engine_that_never_answers_does_not_use_up_the_threads(wedged: Role) -> None:
    released = threading.Event()

    def wedge(engine: Role, rows: int) -> None:
        if engine == wedged:
            released.wait(LONG_S)

    at_once, most_stuck = 4, 2
    engines = EnginesDouble(on_request=wedge)
    threads = 2 * (at_once + most_stuck)
    limits = {wedged: 0.05}
    with dispatcher(engines, threads=threads, most_stuck=most_stuck, **limits) as (running, pool):
        for wave in range(5):
            made = [AnswerDouble(replace(REQUEST, prompt_ids=(wave, i))) for i in range(at_once)]
            for answer in made:
                pool.submit(running.run, answer)
            for answer in made:
                assert answer.over.wait(LONG_S)
        last = [
            answer.error if wedged == "target" else answer.generation.speculation.off_reason
            for answer in made
        ]
        assert all(f"the {wedged} engine has not answered 2 earlier calls" in str(word) for word in last)
        released.set()
        # Its threads come back one by one, and then it is asked again; on a busy machine some are late.
        until = time.monotonic() + LONG_S
        while True:
            healed = AnswerDouble(REQUEST)
            pool.submit(running.run, healed)
            assert healed.over.wait(LONG_S)
            if healed.ids == alone(REQUEST) and healed.generation.speculation.rounds:
                break
            assert time.monotonic() < until
