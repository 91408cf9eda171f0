"""Greedy answers: is every served token the one that the reference would have chosen?

The reference does not generate. It reads prompt + served tokens in one forward pass and says, for
every position, which token it would have chosen after *the served tokens before it*. For greedy
decoding that is the same question: if every served token is the reference's choice after the served
prefix, then, by induction over positions, the served answer is the reference's own greedy answer;
and the first token that is not, is where its answer would have parted. One pass in place of one for
each token, and no second cache, sampler or stopping rule that could be wrong in the same way.

Where served and reference part, the gap decides: by how much the reference prefers its choice to the
served token. Within the noise of the served dtype (`noise`) it is a tie, either is right, and the
comparison goes on from the served prefix; beyond it, a defect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Literal

import numpy as np

from trtspec.client._client import Client
from trtspec.client._options import Options
from trtspec.client._results import Generation, Speculation
from trtspec.client.verify.asking import Question, ask
from trtspec.client.verify.reference import Reference, Rows
from trtspec.client.verify.text_only import INCOMPLETE, ids_of_text
from trtspec.dtype_noise import Noise, Row

CONTEXT_CHARACTERS = 80


@dataclass(frozen=True)
class Token:
    """A token and how it reads."""

    id: int
    text: str


@dataclass(frozen=True)
class Difference:
    """A position where served and reference part. Logits are the reference's."""

    position: int
    # None: the answer ended here.
    served: Token | None
    expected: Token | None
    # Between its choice and its runner-up.
    margin: float
    # Between its choice and the served token; infinite where that cannot be right at all.
    gap: float
    # The noise of the served dtype: a gap within it is a tie.
    bound: float
    # The end of the text before it.
    before: str

    @property
    def verdict(self) -> Literal["tie", "defect"]:
        return "tie" if self.gap <= self.bound else "defect"


@dataclass(frozen=True)
class Case:
    """One prompt with one draft length."""

    prompt: str
    num_draft_tokens: int
    alone: bool
    token_ids: tuple[int, ...]
    # Ties, and at the end the first defect, if there is one.
    differences: tuple[Difference, ...]
    # None where the server does not report it.
    prompt_tokens: int | None
    expected_prompt_tokens: int
    speculation: Speculation | None
    # The server sent no token ids: these are the reference's, for the text that it sent.
    from_text: bool = False

    @property
    def defect(self) -> Difference | None:
        return next((found for found in self.differences if found.verdict == "defect"), None)

    @property
    def ties(self) -> int:
        return sum(found.verdict == "tie" for found in self.differences)

    @property
    def ok(self) -> bool:
        return self.defect is None and self.prompt_tokens in (None, self.expected_prompt_tokens)


@dataclass(frozen=True)
class Rule:
    """What ends an answer, and what is done to the reference's logits before it chooses."""

    max_tokens: int
    end_ids: frozenset[int]
    # (raw logits of a row, all ids before it, how many of them are new) -> logits to choose by
    process: Callable[[Row, Sequence[int], int], Row] | None = None


def compare_greedy(
    client: Client,
    judge: Judge,
    prompts: Sequence[str],
    num_draft_tokens: Sequence[int] = (0,),
    *,
    max_tokens: int = 64,
    concurrency: int = 4,
) -> Iterator[Case]:
    """Yield how the served greedy answers compare with the reference, by draft length and prompt.

    Prompts go out as text, so the server's tokenizer is compared too. A `concurrency` of 1 asks each
    alone.

    Raises:
        CallFailed: when an answer did not come; what is under way is cancelled.
    """
    wanted = [(prompt, drafts) for drafts in num_draft_tokens for prompt in prompts]
    questions = [
        Question(prompt, Options(max_tokens=max_tokens, num_draft_tokens=drafts)) for prompt, drafts in wanted
    ]
    rule = Rule(max_tokens, judge.reference.end_ids)
    for (prompt, drafts), answer in zip(wanted, ask(client, questions, concurrency), strict=True):
        yield judge.case(prompt, drafts, answer, rule, alone=concurrency == 1)


class Judge:
    """Compares answers; equal answers to a prompt cost one pass of the reference together."""

    def __init__(self, reference: Reference, noise: Noise) -> None:
        self.reference = reference
        self.noise = noise
        self._prompt_ids: dict[str, list[int]] = {}
        self._known: dict[tuple[object, ...], tuple[Difference, ...]] = {}
        self._recovered: dict[tuple[str, str], list[int]] = {}

    def prompt_ids(self, prompt: str) -> list[int]:
        if prompt not in self._prompt_ids:
            self._prompt_ids[prompt] = self.reference.encode(prompt)
        return self._prompt_ids[prompt]

    def case(
        self, prompt: str, num_draft_tokens: int, answer: Generation, rule: Rule, *, alone: bool = False
    ) -> Case:
        prompt_ids = self.prompt_ids(prompt)
        from_text = bool(answer.text) and not answer.token_ids
        served = self._ids_of(prompt, answer.text) if from_text else answer.token_ids
        if from_text and answer.text.endswith(INCOMPLETE):
            rule = replace(rule, max_tokens=len(served))  # what followed cannot be seen
        # A server that does not say why it ended may have met the end token.
        stopped = answer.finish_reason in ("stop", None)
        key = (prompt, tuple(served), stopped, rule.max_tokens, rule.end_ids)
        if rule.process:
            differences = self.differences(prompt_ids, served, stopped, rule)
        else:
            if key not in self._known:
                self._known[key] = self.differences(prompt_ids, served, stopped, rule)
            differences = self._known[key]
        return Case(
            prompt=prompt,
            num_draft_tokens=num_draft_tokens,
            alone=alone,
            token_ids=tuple(served),
            differences=differences,
            prompt_tokens=answer.usage.prompt_tokens if answer.usage else None,
            expected_prompt_tokens=len(prompt_ids),
            speculation=answer.speculation,
            from_text=from_text,
        )

    def differences(
        self, prompt_ids: Sequence[int], served: Sequence[int], stopped: bool, rule: Rule
    ) -> tuple[Difference, ...]:
        """Return the ties up to the first defect, and that one."""
        legal = list(takewhile(lambda i: 0 <= i < self.reference.vocab_size, served))
        rows = self.reference.logits(prompt_ids, legal)
        found = []
        for position, token, raw_V in _positions(served, rows, rule):
            history = [*prompt_ids, *served[:position]]
            row_V = rule.process(raw_V, history, position) if rule.process else raw_V
            difference = self._difference(history, position, token, row_V, stopped, rule, raw_V)
            if difference:
                found.append(difference)
                if difference.verdict == "defect":
                    break
        return tuple(found)

    def _difference(
        self,
        history: Sequence[int],
        position: int,
        token: int | None,
        row_V: Row,
        stopped: bool,
        rule: Rule,
        raw_V: Row,
    ) -> Difference | None:
        over = position == rule.max_tokens or (position > 0 and history[-1] in rule.end_ids)
        if over and token is None:
            return None
        second, best = np.argsort(row_V)[-2:].tolist()
        meant = token
        if token is None and stopped and rule.end_ids:
            meant = max(rule.end_ids, key=lambda i: float(row_V[i]))  # the server keeps the end to itself
        if not over and meant == best:
            return None
        known = meant is not None and 0 <= meant < len(row_V) and not over
        gap = float(row_V[best]) - float(row_V[meant]) if known and meant is not None else math.inf
        return Difference(
            position=position,
            served=self._token(token),
            expected=None if over else self._token(best),
            margin=float(row_V[best]) - float(row_V[second]),
            gap=gap,
            bound=self.noise.bound(raw_V),
            before=self.reference.decode(history)[-CONTEXT_CHARACTERS:],
        )

    def _ids_of(self, prompt: str, text: str) -> list[int]:
        if (prompt, text) not in self._recovered:
            self._recovered[prompt, text] = ids_of_text(
                self.reference, self.noise, prompt, self.prompt_ids(prompt), text
            )
        return self._recovered[prompt, text]

    def _token(self, token_id: int | None) -> Token | None:
        if token_id is None:
            return None
        legal = 0 <= token_id < self.reference.vocab_size
        return Token(token_id, self.reference.decode([token_id]) if legal else "<not in the vocabulary>")


def _positions(served: Sequence[int], rows: Rows, rule: Rule) -> Iterator[tuple[int, int | None, Row]]:
    """Yield position, served token and row; where tokens equal the argmax there is nothing to see."""
    best = rows.argmax(-1).tolist()
    for position, (token, row_V) in enumerate(zip([*served, None], rows, strict=False)):
        ended = position == rule.max_tokens or (position > 0 and served[position - 1] in rule.end_ids)
        if rule.process or token is None or ended or token != best[position]:
            yield position, token, row_V
