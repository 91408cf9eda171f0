"""One request of the public model, from its engines' replies to its caller's responses."""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb

from .adaptive_length import SharedDraftLength
from .callers import Caller
from .dispatch import Asked
from .draft_gate import DraftGate
from .engine_tensors import EngineInputs
from .loop import Call, EngineCallError, Generation, Reply, Role
from .metrics import Metrics
from .output import Delta, Output
from .request import GenerationRequest
from .runtime import Runtime
from .tensors import delta_tensors, usage_tensors

# A call of the target alone ends after about that long, so that the caller sees words and engines see
# that a caller has gone. It does not stream, see `Engines`; to ask again costs about a millisecond.
STREAMED_CHUNK_S = 0.05
CHUNK_S = 0.25


class Answer:
    """Drives a generation for its caller."""

    def __init__(
        self,
        request: GenerationRequest,
        output: Output,
        caller: Caller,
        runtime: Runtime,
        gate: DraftGate,
        draft_length: SharedDraftLength,
        metrics: Metrics,
        *,
        draft_max_seq_len: int,
        arrival_s: float,
        streams: bool,
    ) -> None:
        self._request = request
        self._output = output
        self._caller = caller
        self._gate = gate
        self._draft_length = draft_length
        self._metrics = metrics
        self._off_reason = runtime.speculation_off_reason(request)
        self._generation = Generation(
            request,
            output,
            draft_max_seq_len=draft_max_seq_len,
            draft_is_off=self._why_draft_is_off,
            draft_length=draft_length,
            chunk_s=STREAMED_CHUNK_S if streams else CHUNK_S,
            arrival_s=arrival_s,
        )
        self._inputs = EngineInputs(request, runtime)
        self._streams = streams
        self._call: Call | None = None
        self._asked_before: set[Role] = set()
        self._over = False
        # Of the tokens that have gone out.
        self._cum_log_prob = 0.0
        # Of the draft; "" where there is none that still has to be told.
        self._failure = ""
        caller.add(Delta(text=request.echo) + output.take())

    def next(self) -> Asked | None:
        """Return the next call to make; None when the answer is over, the last response sent."""
        try:
            return None if self._over else self._next()
        except Exception as error:
            self._fail(error)
            return None

    def end(self, outcome: Reply | EngineCallError) -> None:
        """Take what came of the call in flight."""
        try:
            assert self._call is not None
            if isinstance(outcome, EngineCallError):
                self._go_on_without(self._call, outcome)
            else:
                self._take(self._call, outcome)
        except Exception as failure:
            self._fail(failure)

    def _next(self) -> Asked | None:
        self._call = call = None if self._caller.has_gone else self._generation.next_call()
        if call is None:
            self._tell_failure()
            self._leave()
            if not self._caller.has_gone:
                self._metrics.count_answer(self._generation.speculation, self._output.num_tokens)
            self._caller.end(self._last_response)
            return None
        # The first call brings the whole prompt to an engine; one without draft takes many steps.
        is_round = call.engine == "draft" or bool(call.draft_ids)
        alone = not is_round or call.engine not in self._asked_before
        self._asked_before.add(call.engine)
        return Asked(call.engine, self._inputs.of(call), alone)

    def _take(self, call: Call, reply: Reply) -> None:
        self._add(self._generation.take(call, reply))
        if call.engine == "draft":
            self._gate.worked()
        else:
            self._tell_failure()

    def _go_on_without(self, call: Call, error: EngineCallError) -> None:
        self._generation.fail(call, error)
        # A call that was refused says nothing about the next one.
        if not error.refused:
            self._failure = self._generation.speculation.off_reason

    def _tell_failure(self) -> None:
        """Close the gate behind a draft that failed.

        Not before the target has answered the same request: where it fails as well, the request is
        at fault, and must not take the draft from all others.
        """
        reason, self._failure = self._failure, ""
        if not reason:
            return
        self._metrics.count("trtspec_draft_failures_total")
        if self._gate.failed(reason):
            pb.Logger.log_warn(f"tensorrt_llm_bls: {reason}; answers go on without it")

    def _add(self, delta: Delta) -> None:
        """Send a delta, but leave what completes the answer to the last response."""
        is_worth_it = bool(delta.text or delta.tokens) and not delta.finish_reason
        self._caller.add(delta, self._response if self._streams and is_worth_it else None)

    def _response(self, delta: Delta) -> Any:
        return pb.InferenceResponse(self._delta_tensors(delta))

    def _last_response(self, delta: Delta) -> Any:
        made = self._generation
        usage = usage_tensors(self._request, self._output, made.speculation, made.times)
        return pb.InferenceResponse([*self._delta_tensors(delta), *usage])

    def _delta_tensors(self, delta: Delta) -> list[Any]:
        self._cum_log_prob += sum(token.log_prob or 0.0 for token in delta.tokens)
        return delta_tensors(delta, self._request, self._cum_log_prob)

    def _leave(self) -> None:
        self._over = True
        self._draft_length.close()

    def _fail(self, error: Exception) -> None:
        if self._over:
            return
        self._leave()
        if isinstance(error, EngineCallError):
            (self._caller.refuse if error.refused else self._caller.fail)(str(error))
        else:
            self._caller.fail_unexpectedly(error)

    def _why_draft_is_off(self) -> str:
        return self._off_reason or self._gate.closed_because()
