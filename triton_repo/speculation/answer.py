"""One request of the public model, from its engines' replies to its caller's responses."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import triton_python_backend_utils as pb

from .draft_gate import DraftGate
from .engine_tensors import EngineInputs, EngineRequest
from .engines import Engines
from .loop import Call, EngineCallError, Generation, Reply, Role
from .output import Delta, Output
from .request import GenerationRequest
from .runtime import Runtime
from .tensors import delta_tensors, usage_tensors

FINAL = pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL

# Asking costs a round trip to the server, so with short rounds not every one does.
CANCELLATION_CHECK_S = 0.025


@dataclass(frozen=True)
class Asked:
    """A call and how it travels."""

    engine: Role
    request: EngineRequest
    travels_alone: bool


class Caller:
    """Whoever waits for an answer."""

    def __init__(self, sender: Any, on_end: Callable[[], None]) -> None:
        self.sender = sender
        self._on_end = on_end

    def send(self, tensors: list[Any]) -> None:
        self.sender.send(pb.InferenceResponse(tensors))

    def end(self, tensors: list[Any] | None = None) -> None:
        """End the answer, with a last response or, for a caller who has gone, without."""
        self._on_end()
        if tensors is None:
            self.sender.send(flags=FINAL)
        else:
            self.sender.send(pb.InferenceResponse(tensors), flags=FINAL)

    # The first word tells a gRPC client whose fault it is: of an error in a stream it sees only the text.
    def refuse(self, message: str) -> None:
        self._end_with_error(f"refused: {message}", pb.TritonError.INVALID_ARG)

    def fail(self, message: str) -> None:
        self._end_with_error(f"failed: {message}", pb.TritonError.INTERNAL)

    def fail_unexpectedly(self, error: Exception) -> None:
        pb.Logger.log_error(f"tensorrt_llm_bls: {type(error).__name__}: {error}")
        self.fail(f"{type(error).__name__} in tensorrt_llm_bls; see the server's log")

    def _end_with_error(self, message: str, code: int) -> None:
        self._on_end()
        self.sender.send(pb.InferenceResponse(error=pb.TritonError(message, code)), flags=FINAL)


class Answer:
    """Drives a generation for its caller."""

    def __init__(
        self,
        request: GenerationRequest,
        output: Output,
        caller: Caller,
        engines: Engines,
        runtime: Runtime,
        gate: DraftGate,
        *,
        draft_max_seq_len: int,
        streams: bool,
    ) -> None:
        self._request = request
        self._output = output
        self._caller = caller
        self._engines = engines
        self._gate = gate
        self._off_reason = runtime.speculation_off_reason(request)
        self._generation = Generation(
            request, output, draft_max_seq_len=draft_max_seq_len, draft_is_off=self._why_draft_is_off
        )
        self._inputs = EngineInputs(request, runtime)
        self._streams = streams
        self._call: Call | None = None
        self._asked_before: set[Role] = set()
        self._unsent = Delta(text=request.echo)
        self._next_check = 0.0
        self._cancelled = False
        self._over = False

    def next(self) -> Asked | None:
        """Return the next call to make; None when the answer is over, the last response sent."""
        try:
            return None if self._over else self._next()
        except Exception as error:
            self._fail(error)
            return None

    def take(self, reply: Reply) -> bool:
        """Take a reply of the call in flight; False when the rest is not wanted."""
        try:
            self._add(self._generation.take(self._call_in_flight, reply))
            return not (self._output.finish_reason or self._has_gone())
        except Exception as error:
            self._fail(error)
            return False

    def end(self, error: EngineCallError | None) -> None:
        """Note that the call in flight is over."""
        try:
            if not self._over:
                self._end(self._call_in_flight, error)
        except Exception as failure:
            self._fail(failure)

    def _next(self) -> Asked | None:
        if self._has_gone():
            self._finish(None)
            return None
        self._call = call = self._generation.next_call()
        if call is None:
            usage = usage_tensors(self._request, self._output, self._generation.speculation)
            self._finish([*delta_tensors(self._unsent, self._request), *usage])
            return None
        # The first call brings the whole prompt to an engine.
        alone = call.streaming or call.engine not in self._asked_before
        self._asked_before.add(call.engine)
        return Asked(call.engine, self._inputs.of(call), alone)

    def _end(self, call: Call, error: EngineCallError | None) -> None:
        if error is None:
            self._add(self._generation.end(call))
            if call.engine == "draft":
                self._gate.worked()
            return
        self._generation.fail(call, error)
        reason = self._generation.speculation.off_reason
        # A call that was refused says nothing about the next one.
        if not error.refused and self._gate.failed(reason):
            pb.Logger.log_warn(f"tensorrt_llm_bls: {reason}; answers go on without it")

    def _add(self, delta: Delta) -> None:
        self._unsent += delta
        if self._streams and not self._output.finish_reason and (self._unsent.text or self._unsent.tokens):
            self._caller.send(delta_tensors(self._unsent, self._request))
            self._unsent = Delta()

    def _finish(self, tensors: list[Any] | None) -> None:
        self._over = True
        # Lets go of what the engines' responses hold.
        self._engines.is_cancelled(self._caller.sender)
        self._caller.end(tensors)

    def _fail(self, error: Exception) -> None:
        if self._over:
            return
        self._over = True
        self._engines.is_cancelled(self._caller.sender)
        if isinstance(error, EngineCallError):
            (self._caller.refuse if error.refused else self._caller.fail)(str(error))
        else:
            self._caller.fail_unexpectedly(error)

    def _has_gone(self) -> bool:
        now = time.monotonic()
        if not self._cancelled and now >= self._next_check:
            self._cancelled = self._engines.is_cancelled(self._caller.sender)
            self._next_check = now + CANCELLATION_CHECK_S
        return self._cancelled

    def _why_draft_is_off(self) -> str:
        return self._off_reason or self._gate.closed_because()

    @property
    def _call_in_flight(self) -> Call:
        assert self._call is not None
        return self._call
