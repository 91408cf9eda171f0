"""Is what is served the model it was made from? Greedy answers against a reference.

The reference does not generate. It reads prompt + served tokens in one forward pass and says, for
every position, which token it would have chosen after *the served tokens before it*. For greedy
decoding that is the same question: if every served token is the reference's choice after the served
prefix, then, by induction over positions, the served answer is the reference's own greedy answer;
and the first token that is not, is where its answer would have parted. One pass in place of one for
each token, and no second cache, sampler or stopping rule that could be wrong in the same way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

from trtspec.client._client import Client
from trtspec.client._errors import StreamBroken
from trtspec.client._results import Generation, Speculation
from trtspec.client._stream import Stream


@dataclass(frozen=True)
class Choice:
    """What the reference would say next, and how far its logit is above the runner-up's."""

    token_id: int
    runner_up_id: int
    margin: float
    # Its own arithmetic cannot tell the two apart: either is right.
    tie: bool = False


class Reference(Protocol):
    """A model that is trusted, with its tokenizer."""

    @property
    def name(self) -> str: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def end_ids(self) -> frozenset[int]:
        """The tokens after which it stops."""
        ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, token_ids: Sequence[int]) -> str: ...

    def choices(self, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> list[Choice]:
        """Return its choice at each position of the answer, and the one after it: n + 1."""
        ...


@dataclass(frozen=True)
class Token:
    """A token and how it reads."""

    id: int
    text: str


@dataclass(frozen=True)
class Difference:
    """The first position where served and reference part."""

    position: int
    # None: the answer ended here.
    served: Token | None
    expected: Token | None
    # By how much the reference prefers its choice to its second, in logits; near 0 is a tie.
    margin: float
    # The end of the text before it.
    before: str


@dataclass(frozen=True)
class Case:
    """One prompt with one draft length."""

    prompt: str
    num_draft_tokens: int
    token_ids: tuple[int, ...]
    difference: Difference | None
    # None where the server does not report it.
    prompt_tokens: int | None
    expected_prompt_tokens: int
    speculation: Speculation | None

    @property
    def ok(self) -> bool:
        return self.difference is None and self.prompt_tokens in (None, self.expected_prompt_tokens)


@dataclass(frozen=True)
class VerifyReport:
    """All cases, by draft length and then by prompt."""

    reference: str
    cases: tuple[Case, ...]

    @property
    def ok(self) -> bool:
        return not self.mismatches

    @property
    def mismatches(self) -> tuple[Case, ...]:
        return tuple(case for case in self.cases if not case.ok)


def verify(
    client: Client,
    reference: Reference,
    prompts: Sequence[str],
    num_draft_tokens: Iterable[int] = (0,),
    *,
    max_tokens: int = 64,
    concurrency: int = 4,
    on_case: Callable[[Case], None] = lambda case: None,
) -> VerifyReport:
    """Return how the served greedy answers compare with the reference.

    Prompts go out as text, so the server's tokenizer is compared too.

    Args:
        num_draft_tokens: each prompt is asked once with each of these.
        concurrency: how many answers are under way at a time.
        on_case: called with each case when it is done, in the report's order.

    Raises:
        CallFailed: when an answer did not come; what is under way is cancelled.
    """
    judge = _Judge(reference, max_tokens)
    wanted = [(prompt, drafts) for drafts in num_draft_tokens for prompt in prompts]
    stopping = threading.Event()
    under_way: set[Stream] = set()
    cases: list[Case] = []

    def serve(prompt: str, drafts: int) -> Generation:
        with client.stream(prompt, max_tokens=max_tokens, num_draft_tokens=drafts) as stream:
            under_way.add(stream)
            if stopping.is_set():
                stream.close()
            try:
                return stream.result
            finally:
                under_way.discard(stream)

    with ThreadPoolExecutor(concurrency, thread_name_prefix="verify") as pool:
        answers: list[Future[Generation]] = [pool.submit(serve, *question) for question in wanted]
        try:
            for (prompt, drafts), answer in zip(wanted, answers, strict=True):
                cases.append(judge.case(prompt, drafts, answer.result()))
                on_case(cases[-1])
        finally:
            stopping.set()
            pool.shutdown(wait=False, cancel_futures=True)
            for stream in list(under_way):
                stream.close()
    return VerifyReport(reference.name, tuple(cases))


class _Judge:
    """Compares answers; equal answers to a prompt cost one pass of the reference together."""

    def __init__(self, reference: Reference, max_tokens: int) -> None:
        self._reference = reference
        self._max_tokens = max_tokens
        self._prompt_ids: dict[str, list[int]] = {}
        self._known: dict[tuple[str, tuple[int, ...], bool], Difference | None] = {}

    def case(self, prompt: str, num_draft_tokens: int, answer: Generation) -> Case:
        if answer.text and not answer.token_ids:
            raise StreamBroken(
                f"request {answer.request_id}: found an answer without token ids (output_ids), "
                "which cannot be verified; serve a repository made by trtspec",
                request_id=answer.request_id,
            )
        if prompt not in self._prompt_ids:
            self._prompt_ids[prompt] = self._reference.encode(prompt)
        prompt_ids = self._prompt_ids[prompt]
        stopped = answer.finish_reason == "stop"
        key = (prompt, answer.token_ids, stopped)
        if key not in self._known:
            self._known[key] = self._difference(prompt_ids, answer.token_ids, stopped)
        return Case(
            prompt=prompt,
            num_draft_tokens=num_draft_tokens,
            token_ids=answer.token_ids,
            difference=self._known[key],
            prompt_tokens=answer.usage.prompt_tokens if answer.usage else None,
            expected_prompt_tokens=len(prompt_ids),
            speculation=answer.speculation,
        )

    def _difference(self, prompt_ids: list[int], served: Sequence[int], stopped: bool) -> Difference | None:
        """Return where `served` and the reference's greedy answer part, None when they do not."""
        legal = list(takewhile(lambda i: 0 <= i < self._reference.vocab_size, served))
        choices = self._reference.choices(prompt_ids, legal)
        ended = False
        for position, (token, choice) in enumerate(zip([*served, None], choices, strict=False)):
            over = ended or position == self._max_tokens
            expected = None if over else self._expected(token, choice, stopped)
            if token is None and stopped and expected in self._reference.end_ids:
                expected = None  # the server keeps the end token to itself
            if token != expected:
                return self._describe(prompt_ids, served, position, expected, choice.margin)
            ended = token in self._reference.end_ids
        return None

    def _expected(self, token: int | None, choice: Choice, stopped: bool) -> int:
        """Return the reference's token; of two that tie, the one that was served."""
        served_end = token is None and stopped and choice.runner_up_id in self._reference.end_ids
        if choice.tie and (token == choice.runner_up_id or served_end):
            return choice.runner_up_id
        return choice.token_id

    def _describe(
        self, prompt_ids: list[int], served: Sequence[int], position: int, expected: int | None, margin: float
    ) -> Difference:
        found = served[position] if position < len(served) else None
        before = self._reference.decode([*prompt_ids, *served[:position]])
        return Difference(position, self._token(found), self._token(expected), margin, before[-80:])

    def _token(self, token_id: int | None) -> Token | None:
        if token_id is None:
            return None
        legal = 0 <= token_id < self._reference.vocab_size
        return Token(token_id, self._reference.decode([token_id]) if legal else "<not in the vocabulary>")
