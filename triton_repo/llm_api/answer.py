"""One request of the public model, from TensorRT-LLM's steps to its caller's responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import triton_python_backend_utils as pb

from ..speculation.call_times import CallTimes
from ..speculation.callers import Caller
from ..speculation.draft_length import FixedDraftLength
from ..speculation.loop import Speculation
from ..speculation.metrics import Metrics
from ..speculation.output import Delta, Output, Token
from ..speculation.request import GenerationRequest
from ..speculation.tensors import delta_tensors, usage_tensors
from .acceptance import Drafted, speculation_of
from .llm import EngineFailure, Llm, Step
from .sampling import sampling_keywords

# How soon a caller who has gone is noticed while TensorRT-LLM says nothing.
LOOK_S = 0.1


class Answer:
    """Runs a request for its caller."""

    def __init__(
        self,
        request: GenerationRequest,
        output: Output,
        caller: Caller,
        llm: Llm,
        metrics: Metrics,
        *,
        max_draft_len: int,
        fixed_length: bool,
        timeout_s: float,
        arrival_s: float,
        streams: bool,
    ) -> None:
        self._request = request
        self._output = output
        self._caller = caller
        self._llm = llm
        self._metrics = metrics
        self._max_draft_len = max_draft_len
        self._fixed_length = fixed_length
        self._timeout_s = timeout_s
        self._streams = streams
        self._times = CallTimes(FixedDraftLength(max_draft_len), arrival_s=arrival_s)
        # Of the tokens that have gone out.
        self._cum_log_prob = 0.0
        # Tokens that each response has brought.
        self._steps: list[int] = []
        self._drafted: Drafted | None = None

    async def run(self) -> None:
        """Send the answer, or why there is none. Never raises."""
        try:
            self._caller.add(Delta(text=self._request.echo) + self._output.take())
            if self._request.max_tokens:
                await self._generate()
            else:
                self._output.finish("length")
                self._caller.add(self._output.take())
        except EngineFailure as error:
            self._caller.fail(str(error))
        except Exception as error:
            self._caller.fail_unexpectedly(error)
        else:
            self._end()

    async def _generate(self) -> None:
        self._times.begin()
        generation = self._llm.generate(self._request.prompt_ids, sampling_keywords(self._request))
        reason = ""
        try:
            steps = generation.steps()
            while (step := await self._next(steps)) is not None:
                self._take(step)
                reason = step.finish_reason
                if self._output.finish_reason or self._caller.has_gone:
                    break
        finally:
            if not reason:
                generation.stop()
        if not self._output.finish_reason and not self._caller.has_gone:
            # It has stopped at an end token that it does not return.
            self._output.finish(reason if reason == "length" else "stop")
            self._caller.add(self._output.take())

    async def _next(self, steps: AsyncIterator[Step]) -> Step | None:
        """Return the next step; None when there is none, or nobody waits for it."""
        waiting = asyncio.ensure_future(anext(steps, None))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        while not waiting.done():
            await asyncio.wait({waiting}, timeout=LOOK_S)
            if self._caller.has_gone and not waiting.done():
                waiting.cancel()
                return None
            if loop.time() > deadline and not waiting.done():
                waiting.cancel()
                raise EngineFailure(f"TensorRT-LLM gave no answer within {self._timeout_s:g} s")
        return waiting.result()

    def _take(self, step: Step) -> None:
        self._drafted = step.drafted or self._drafted
        if step.ids:
            self._steps.append(len(step.ids))
            self._times.take(len(step.ids))
        for position, token_id in enumerate(step.ids):
            score = None if step.log_probs is None else step.log_probs[position]
            if self._output.push(Token(token_id, score)):
                break
        delta = self._output.take()
        is_worth_it = bool(delta.text or delta.tokens) and not delta.finish_reason
        self._caller.add(delta, self._response if self._streams and is_worth_it else None)

    def _end(self) -> None:
        self._times.finish()
        speculation = self._speculation()
        if not self._caller.has_gone:
            self._metrics.count_answer(speculation, self._output.num_tokens)

        def last(delta: Delta) -> Any:
            usage = usage_tensors(self._request, self._output, speculation, self._times)
            return pb.InferenceResponse([*self._delta_tensors(delta), *usage])

        self._caller.end(last)

    def _response(self, delta: Delta) -> Any:
        return pb.InferenceResponse(self._delta_tensors(delta))

    def _delta_tensors(self, delta: Delta) -> list[Any]:
        self._cum_log_prob += sum(token.log_prob or 0.0 for token in delta.tokens)
        return delta_tensors(delta, self._request, self._cum_log_prob)

    def _speculation(self) -> Speculation:
        return speculation_of(
            self._steps, self._drafted, self._max_draft_len, fixed_length=self._fixed_length
        )
