"""Many answers at once: makes the calls they want next, those of one kind together.

At any time one request of each kind is on its way. Calls that come up meanwhile wait for it and
travel together in the next, so that under load an engine is asked less often, for more. A thread
that has brought replies goes on with whatever is ready, so that an answer alone never waits for
another thread. Calls that may take long, which are the first to either engine and those without a
draft, travel alone.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol

from .engine_tensors import EngineRequest
from .loop import EngineCallError, Reply, Role

# How often engines that do not answer are looked for.
WATCH_S = 0.25


@dataclass(frozen=True)
class Asked:
    """A call that an answer wants to have made, and how it travels."""

    engine: Role
    request: EngineRequest
    travels_alone: bool


class Answer(Protocol):
    """What the dispatcher drives. No method raises."""

    def next(self) -> Asked | None:
        """Return the next call; None when there is nothing more to do for the answer."""

    def end(self, outcome: Reply | EngineCallError) -> None:
        """Take what came of the call."""


# Makes requests of one kind as one and returns the reply to each.
Ask = Callable[[Role, Sequence[EngineRequest]], Sequence[Reply]]


class _Batch:
    """Calls on their way as one request."""

    def __init__(self, kind: Hashable, rows: Sequence[tuple[Answer, Asked]], timeout_s: float) -> None:
        self.kind = kind
        self.rows = rows
        self.engine = rows[0][1].engine
        self.is_over = False
        self.given_up = False
        # Held while replies are handed on, so that nobody gives up in between.
        self.lock = threading.Lock()
        self._deadline = time.monotonic() + timeout_s

    def give_up_if_late(self) -> bool:
        """Whether it has become late since the last call; from then on its replies are not wanted."""
        with self.lock:
            if self.is_over or self.given_up:
                return False
            self.given_up = time.monotonic() > self._deadline
            return self.given_up


class Dispatcher:
    """Runs answers on `threads`.

    Args:
        timeouts_s: how long a call of each engine may take.
        max_rows: calls that travel as one request.
        most_stuck: an engine that has left so many calls without an answer is asked nothing until one
            comes, because each of them keeps a thread.
    """

    def __init__(
        self,
        ask: Ask,
        threads: Executor,
        *,
        timeouts_s: dict[Role, float],
        max_rows: int,
        most_stuck: int,
    ) -> None:
        self._ask = ask
        self._threads = threads
        self._timeouts_s = timeouts_s
        self._max_rows = max_rows
        self._most_stuck = most_stuck
        self._lock = threading.Lock()
        self._ready: dict[Hashable, list[tuple[Answer, Asked]]] = {}
        self._on_their_way: dict[Hashable, _Batch] = {}
        # Calls that were given up and may still get an answer.
        self._stuck: Counter[Role] = Counter()
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def run(self, answer: Answer) -> None:
        """Make the calls of an answer; returns when this thread has nothing more to do."""
        self._want([answer])
        self._work(None)

    def close(self) -> None:
        self._closed.set()

    def _want(self, answers: Sequence[Answer]) -> None:
        wanted = [(answer, asked) for answer in answers if (asked := answer.next()) is not None]
        with self._lock:
            for answer, asked in wanted:
                alone = asked.travels_alone or self._max_rows == 1
                kind = object() if alone else (asked.engine, asked.request.kind)
                self._ready.setdefault(kind, []).append((answer, asked))

    def _work(self, done: _Batch | None) -> None:
        while (batch := self._next(done)) is not None:
            self._make(batch)
            if batch.given_up:
                with self._lock:
                    self._stuck[batch.engine] -= 1
                return
            done = batch

    def _next(self, done: _Batch | None) -> _Batch | None:
        """Return what to ask next, and see to it that others ask what else is ready."""
        with self._lock:
            if done is not None:
                del self._on_their_way[done.kind]
            kinds = [kind for kind in self._ready if kind not in self._on_their_way]
            if not kinds:
                return None
            kind = kinds[0]
            rows = self._ready.pop(kind)
            if len(rows) > self._max_rows:
                self._ready[kind] = rows[self._max_rows :]
            batch = _Batch(kind, rows[: self._max_rows], self._timeouts_s[rows[0][1].engine])
            self._on_their_way[kind] = batch
        if len(kinds) > 1:
            self._threads.submit(self._work, None)
        return batch

    def _make(self, batch: _Batch) -> None:
        outcomes: Sequence[Reply | EngineCallError]
        try:
            if self._stuck[batch.engine] >= self._most_stuck:
                raise EngineCallError(
                    f"the {batch.engine} engine has not answered {self._most_stuck} earlier calls"
                )
            outcomes = self._ask(batch.engine, [asked.request for _, asked in batch.rows])
        except EngineCallError as error:
            outcomes = [error] * len(batch.rows)
        except Exception as error:
            outcomes = [EngineCallError(f"{type(error).__name__}: {error}")] * len(batch.rows)
        with batch.lock:
            if batch.given_up:
                return
            batch.is_over = True
            if len(batch.rows) > 1 and isinstance(outcomes[0], EngineCallError):
                self._ask_one_by_one(batch)
            else:
                self._end([answer for answer, _ in batch.rows], outcomes)

    def _end(self, answers: Sequence[Answer], outcomes: Sequence[Reply | EngineCallError]) -> None:
        for answer, outcome in zip(answers, outcomes, strict=True):
            answer.end(outcome)
        self._want(answers)

    def _ask_one_by_one(self, batch: _Batch) -> None:
        """So that a call that fails takes no other along."""
        with self._lock:
            for row in batch.rows:
                self._ready[object()] = [row]

    def _watch(self) -> None:
        while not self._closed.wait(WATCH_S):
            with self._lock:
                batches = list(self._on_their_way.values())
            for batch in batches:
                if batch.give_up_if_late():
                    self._threads.submit(self._give_up, batch)

    def _give_up(self, batch: _Batch) -> None:
        """Go on without an engine that does not answer, and with those who wait behind it.

        The thread that asked it is left to wait, and ends when it gets an answer after all.
        """
        timeout_s = self._timeouts_s[batch.engine]
        error = EngineCallError(f"the {batch.engine} engine gave no answer within {timeout_s:g} s")
        with self._lock:
            self._stuck[batch.engine] += 1
            waiting = self._ready.pop(batch.kind, [])
        answers = [answer for answer, _ in (*batch.rows, *waiting)]
        self._end(answers, [error] * len(answers))
        self._work(batch)
