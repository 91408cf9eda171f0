"""The public model inside Triton's Python backend.

A thread per request runs the loop and calls the engines with blocking calls; the engines batch the
calls of all requests in flight.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb

from .loop import Call, Engine, EngineCallError, Generation, Reply
from .output import Delta, Output
from .request import GenerationRequest, Limits, RequestError
from .tensors import (
    Inputs,
    call_outputs,
    call_tensors,
    delta_tensors,
    read_reply,
    read_request,
    shared_tensors,
    stop_tensors,
    usage_tensors,
)
from .tokenizer import Tokenizer

FINAL = pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    """What Triton's Python backend loads."""

    def initialize(self, args: dict[str, str]) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        settings = {key: value["string_value"] for key, value in parameters.items()}
        self._limits = Limits(
            vocab_size=int(settings["vocab_size"]),
            max_seq_len=int(settings["max_seq_len"]),
            draft_max_seq_len=int(settings["draft_max_seq_len"]),
            max_draft_len=int(settings["max_draft_len"]),
            default_draft_len=int(settings["num_draft_tokens"]),
        )
        self._eos_ids = tuple(int(i) for i in settings["eos_token_ids"].split(",") if i)
        self._excludes_input = settings["exclude_input_in_output"] == "true"
        self._tokenizer = Tokenizer(Path(__file__).parent.parent / "tokenizer" / "tokenizer.json")
        self._target = settings["tensorrt_llm_model_name"]
        self._draft = settings["tensorrt_llm_draft_model_name"]
        self._capacity = int(settings["max_inflight_requests"])
        self._free = threading.Semaphore(self._capacity)
        self._threads = ThreadPoolExecutor(self._capacity)

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            if self._free.acquire(blocking=False):
                self._threads.submit(self._serve, request)
            else:
                message = f"busy: {self._capacity} requests are in flight; try again later"
                _send_error(request.get_response_sender(), message, pb.TritonError.UNAVAILABLE)

    def finalize(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _serve(self, request: Any) -> None:
        sender = request.get_response_sender()
        try:
            self._answer(Inputs(request), sender)
        except RequestError as error:
            _refuse(sender, str(error))
        except EngineCallError as error:
            _refuse(sender, str(error)) if error.refused else _fail(sender, str(error))
        except Exception as error:
            pb.Logger.log_error(f"tensorrt_llm_bls: {type(error).__name__}: {error}")
            _fail(sender, f"{type(error).__name__} in tensorrt_llm_bls; see the server's log")
        finally:
            self._free.release()

    def _answer(self, inputs: Inputs, sender: Any) -> None:
        request = read_request(inputs, self._tokenizer, self._limits, self._eos_ids, self._excludes_input)
        output = Output(
            self._tokenizer.detokenizer(),
            max_tokens=request.max_tokens,
            eos_ids=frozenset(request.eos_ids),
            stop_strings=request.stop_strings,
            min_tokens=request.min_tokens,
        )
        with _Calls(shared_tensors(request), sender) as calls:
            self._generate(request, output, calls, sender, streams=inputs.flag("stream"))

    def _generate(
        self, request: GenerationRequest, output: Output, calls: _Calls, sender: Any, *, streams: bool
    ) -> None:
        generation = Generation(
            request,
            output,
            target=calls.engine(self._target),
            draft=calls.engine(self._draft),
            draft_max_seq_len=self._limits.draft_max_seq_len,
        )
        unsent = Delta()
        # Closed before the last response: Triton takes nothing that belongs to an answer after it.
        with closing(generation.deltas()) as deltas:
            for delta in deltas:
                if calls.cancelled():
                    break
                unsent += delta
                if streams and not delta.finish_reason and (unsent.text or unsent.tokens):
                    sender.send(pb.InferenceResponse(delta_tensors(unsent, request)))
                    unsent = Delta()
        if calls.cancelled():
            sender.send(flags=FINAL)
            return
        usage = usage_tensors(request, output, generation.speculation)
        sender.send(pb.InferenceResponse([*delta_tensors(unsent, request), *usage]), flags=FINAL)


class _Calls:
    """The engine calls of one answer.

    A response iterator must not be dropped before Triton's stub has forgotten it: up to release
    24.11 the stub would free its tensors without holding the GIL, which corrupts the process. The
    stub forgets it in the queue that also answers `is_cancelled`, so once that has been answered,
    iterators that ended before may go.
    """

    def __init__(self, shared: list[Any], sender: Any) -> None:
        self._shared = shared
        self._sender = sender
        self._ended: list[Any] = []

    def __enter__(self) -> _Calls:
        return self

    def __exit__(self, *error: object) -> None:
        # An answer that failed leaves iterators of calls that ended before.
        if self._ended:
            self.cancelled()

    def cancelled(self) -> bool:
        """Return whether the caller has gone."""
        cancelled = bool(self._sender.is_cancelled())
        self._ended.clear()
        return cancelled

    def engine(self, name: str) -> Engine:
        """Return the engine behind the model `name`."""

        def call_engine(call: Call) -> Generator[Reply, None, None]:
            request_id = secrets.token_hex(8)
            responses = _infer(name, request_id, [*self._shared, *call_tensors(call)], call_outputs(call))
            try:
                for response in responses:
                    if response.has_error():
                        error = response.error()
                        refused = error.code() == pb.TritonError.INVALID_ARG
                        raise EngineCallError(f"{name}: {error.message()}", refused=refused)
                    if response.output_tensors():
                        yield read_reply(response)
            except GeneratorExit:
                self._stop(name, request_id)
                raise
            finally:
                self._end(responses)

        return call_engine

    def _stop(self, name: str, request_id: str) -> None:
        """End a call in flight: the same id, with `stop` set, as TensorRT-LLM's backend has it."""
        self._end(_infer(name, request_id, stop_tensors(), ["output_ids"]))

    def _end(self, responses: Any) -> None:
        # To its end: Triton counts a call whose responses were not all taken as in flight for ever.
        for _ in responses:
            pass
        self._ended.append(responses)


def _infer(name: str, request_id: str, inputs: list[Any], outputs: list[str]) -> Any:
    request = pb.InferenceRequest(
        model_name=name, request_id=request_id, inputs=inputs, requested_output_names=outputs
    )
    try:
        return request.exec(decoupled=True)
    except pb.TritonModelException as error:
        raise EngineCallError(f"{name}: {error}") from error


# The first word tells a gRPC client whose fault it is: of an error in a stream it sees only the text.
def _refuse(sender: Any, message: str) -> None:
    _send_error(sender, f"refused: {message}", pb.TritonError.INVALID_ARG)


def _fail(sender: Any, message: str) -> None:
    _send_error(sender, f"failed: {message}", pb.TritonError.INTERNAL)


def _send_error(sender: Any, message: str, code: int) -> None:
    sender.send(pb.InferenceResponse(error=pb.TritonError(message, code)), flags=FINAL)
