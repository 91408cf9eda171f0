"""The engine as a Triton Python-backend model with the tensors of TensorRT-LLM's `tensorrt_llm` model.

`execute` only hands requests over. One thread owns the engine: it takes what has arrived, runs a
step over everything that is in flight, and sends what each request has to send, so that requests
join and leave a running batch as in TensorRT-LLM's in-flight batcher.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

# Before torch is imported: OpenMP threads that spin take the cores from the server and the other model.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("KMP_BLOCKTIME", "0")

import torch
import triton_python_backend_utils as pb_utils

from .engine import Engine
from .errors import RequestError
from .request import Chunk
from .sequence import Sequence
from .tensors import Array, Reply, flag, join_rows, read_request, split_rows

_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
_STOP_TIMEOUT_S = 10.0
# TensorRT-LLM's own default: asking costs a round trip to the server for each request in flight.
_CANCELLATION_CHECK_S = 0.1


class _Caller:
    """Whoever waits for the answers to the rows of one Triton request."""

    def __init__(self, request: Any, replies: list[Reply]) -> None:
        self.request_id: str = request.request_id()
        self._sender = request.get_response_sender()
        self._replies = replies
        self._chunks: dict[int, Chunk] = {}

    def send(self, row: int, chunk: Chunk) -> None:
        """Send a chunk, the last one with the final flag; several rows go out as one, when all are there."""
        self._chunks[row] = chunk
        if len(self._chunks) < len(self._replies):
            return
        arrays = join_rows([reply.tensors(self._chunks[i]) for i, reply in enumerate(self._replies)])
        tensors = [pb_utils.Tensor(name, array) for name, array in arrays.items()]
        self._sender.send(pb_utils.InferenceResponse(tensors), flags=_FINAL if chunk.finished else 0)

    def fail(self, message: str, code: int) -> None:
        """Send an error as the end of the answer."""
        _send_error(self._sender, message, code)

    def refuse(self, error: RequestError) -> None:
        """Send what is wrong with the request as the end of the answer."""
        _send_refusal(self._sender, error)

    def end(self) -> None:
        """End the answer without another response."""
        self._sender.send(flags=_FINAL)

    def gone(self) -> bool:
        """Whether the client no longer wants the answer."""
        return bool(self._sender.is_cancelled())


class TritonPythonModel:
    """Serves the engine folder beside it: `<model>/<version>/engine`."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the engine and start its thread."""
        torch.set_num_threads(1)
        parameters = json.loads(args["model_config"]).get("parameters", {})
        excluded = parameters.get("exclude_input_in_output", {}).get("string_value", "false")
        self._exclude_input = excluded.lower() in ("true", "1")
        self._engine = Engine(Path(args["model_repository"], args["model_version"], "engine"))
        # Who waits for each sequence, and for which row of his request.
        self._callers: dict[Sequence, tuple[_Caller, int]] = {}
        self._arrived: SimpleQueue[Any] = SimpleQueue()
        self._next_cancellation_check = 0.0
        self._thread = Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def execute(self, requests: list[Any]) -> None:
        """Hand the requests to the engine's thread; answers go out through their response senders."""
        for request in requests:
            self._arrived.put(request)

    def finalize(self) -> None:
        """Stop the engine's thread; what is in flight ends with an error."""
        self._arrived.put(None)
        self._thread.join(_STOP_TIMEOUT_S)

    def _run(self) -> None:
        while self._receive():
            try:
                self._step()
            except Exception as error:
                pb_utils.Logger.log_error(f"a step of the engine failed: {error!r}")
                self._fail_all(f"the engine failed: {error!r}")
        self._fail_all("the model is being unloaded")

    def _step(self) -> None:
        if time.monotonic() >= self._next_cancellation_check:
            self._drop_cancelled()
            self._next_cancellation_check = time.monotonic() + _CANCELLATION_CHECK_S
        for sequence, chunk in self._engine.step():
            if sequence not in self._callers:
                continue  # another row of its request has failed in this step
            caller, row = self._callers[sequence]
            if chunk.finished:
                del self._callers[sequence]
            if chunk.error is None:
                caller.send(row, chunk)
            else:
                self._drop(caller)
                caller.refuse(chunk.error)

    def _drop(self, caller: _Caller) -> None:
        """Cancel what is still running for a caller."""
        for sequence in [s for s, (waiting, _) in self._callers.items() if waiting is caller]:
            self._engine.cancel(sequence)
            del self._callers[sequence]

    def _receive(self) -> bool:
        """Take in every request that has arrived, waiting while there is nothing else to do."""
        idle = not self._callers
        while True:
            try:
                request = self._arrived.get(block=idle)
            except Empty:
                return True
            if request is None:
                return False
            self._accept(request)
            idle = idle and not self._callers

    def _accept(self, request: Any) -> None:
        try:
            tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            if flag(tensors, "stop"):
                self._stop(request)
                return
            self._submit(request, split_rows(tensors))
        except RequestError as error:
            _send_refusal(request.get_response_sender(), error)
        except Exception as error:
            pb_utils.Logger.log_error(f"a request could not be read: {error!r}")
            _send_error(request.get_response_sender(), repr(error), pb_utils.TritonError.INTERNAL)

    def _submit(self, request: Any, rows: list[Mapping[str, Array]]) -> None:
        asked = [read_request(row) for row in rows]
        if len(asked) > 1 and any(one.streaming for one in asked):
            raise RequestError(f"{len(asked)} rows and streaming; ask for each by itself")
        outputs = request.requested_output_names()
        replies = [
            Reply(one, outputs, exclude_input=flag(row, "exclude_input_in_output", self._exclude_input))
            for one, row in zip(asked, rows, strict=True)
        ]
        for one in asked:
            self._engine.check(one)
        caller = _Caller(request, replies)
        self._callers |= {self._engine.submit(one): (caller, i) for i, one in enumerate(asked)}

    def _stop(self, request: Any) -> None:
        """End the request in flight that has the same id, as TensorRT-LLM's backend does."""
        for caller in self._waiting():
            if caller.request_id == request.request_id() != "":
                self._drop(caller)
                caller.end()
        request.get_response_sender().send(flags=_FINAL)

    def _drop_cancelled(self) -> None:
        for caller in self._waiting():
            if caller.gone():
                self._drop(caller)
                caller.fail("cancelled by the client", pb_utils.TritonError.CANCELLED)

    def _fail_all(self, message: str) -> None:
        self._engine.reset()
        callers = self._waiting()
        self._callers = {}
        for caller in callers:
            try:
                caller.fail(message, pb_utils.TritonError.INTERNAL)
            except Exception as error:  # the others must be told, and the engine goes on
                pb_utils.Logger.log_error(f"a request could not be told that it failed: {error!r}")

    def _waiting(self) -> set[_Caller]:
        return {caller for caller, _ in self._callers.values()}


def _send_refusal(sender: Any, error: RequestError) -> None:
    # Triton hands the code on to clients, but not to a model that asked: that one sees only the text.
    _send_error(sender, f"refused: {error}", pb_utils.TritonError.INVALID_ARG)


def _send_error(sender: Any, message: str, code: int) -> None:
    error = pb_utils.TritonError(message, code)
    sender.send(pb_utils.InferenceResponse(error=error), flags=_FINAL)
