"""Doubles for benchmarks: an event loop with a clock of its own, and a target that answers by a script."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from trtspec.client._options import Prompt
from trtspec.client.bench.result import Arm
from trtspec.client.bench.targets import Ending, Piece, Pieces

T = TypeVar("T")


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop in which waiting takes no time: its clock jumps to when the next thing is due."""

    def __init__(self) -> None:
        self.now_s = 0.0
        super().__init__(_Jumping(self))

    def time(self) -> float:
        return self.now_s


class _Jumping(selectors.SelectSelector):
    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise AssertionError("nothing is due: the run hangs")
        self._loop.now_s += timeout
        return super().select(0)


def run_virtually(work: Coroutine[Any, Any, T]) -> T:
    """Run in a loop whose time is virtual, and return what comes of it."""
    loop = VirtualTimeLoop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


@dataclass(frozen=True)
class Scripted:
    """An answer: seconds before each response with the tokens it brings, then what is known at the end.

    `text` is that of each token.
    """

    responses: Sequence[tuple[float, int]]
    error: Exception | None = None
    ending: dict[str, Any] = field(default_factory=dict)
    text: str = "x"


@dataclass(frozen=True)
class Question:
    """A request as the target saw it."""

    at_s: float
    prompt: Prompt
    num_draft_tokens: int | None
    under_way: int


Script = Callable[[Prompt, int | None], Scripted]


class TargetDouble:
    """Answers by a script, in virtual time; refuses a draft length above its maximum, as servers do."""

    takes_draft_tokens = True

    def __init__(self, script: Script, *, name: str = "double") -> None:
        self.name = name
        self.asked: list[Question] = []
        self.closed = False
        self._script = script
        self.under_way = 0

    async def ask(self, prompt: Prompt, *, max_tokens: int, num_draft_tokens: int | None) -> Pieces:
        clock = asyncio.get_running_loop().time
        self.under_way += 1
        self.asked.append(Question(clock(), prompt, num_draft_tokens, self.under_way))
        try:
            answer = self._script(prompt, num_draft_tokens)
            for wait_s, tokens in answer.responses:
                await asyncio.sleep(wait_s)
                yield Piece(answer.text * tokens, tokens)
            if answer.error:
                raise answer.error
            yield Ending(sum(tokens for _, tokens in answer.responses), **answer.ending)
        finally:
            self.under_way -= 1

    async def describe(self) -> dict[str, str]:
        return {"model": "a script"}

    async def close(self) -> None:
        self.closed = True


def arms(*lengths: int, server: str = "double") -> tuple[Arm, ...]:
    return tuple(Arm("auto" if n < 0 else f"γ={n}", server, n) for n in lengths)
