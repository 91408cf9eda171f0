"""A double of a Triton server: real gRPC, answers from a script.

Tensors are packed and unpacked here by hand, so that the client's codec is not tested against
itself. Run as a program, it serves an endless answer, prints its address and waits to be killed.
"""

from __future__ import annotations

import itertools
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
from triton_models_double import TRTSPEC, Model
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

_FORMATS = {"INT32": "i", "INT64": "q", "FP32": "f", "UINT64": "Q", "BOOL": "?"}


@dataclass(frozen=True)
class Step:
    """A response: text_output and output_ids, and other outputs by name. `final`: marked as the last."""

    text: str | bytes = ""
    ids: Sequence[int] = ()
    final: bool = False
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Fault:
    """Ends an answer with an error: a status where given, else Triton's message inside the stream."""

    message: str
    status: str = ""


def last(
    text: str = "", ids: Sequence[int] = (), *, prompt_tokens: int = 0, tokens: int = 0, finish: str = "stop"
) -> Step:
    """The last response of our public model: it says everything about the answer."""
    counts = {"num_input_tokens": prompt_tokens, "num_output_tokens": tokens, "num_rounds": 3}
    drafts = {"total_draft_tokens": 8, "total_accepted_draft_tokens": 6}
    words = {"finish_reason": finish, "stop_reason": "", "speculation_off_reason": ""}
    positions = {"accepted_per_position": [3, 2, 1], "proposed_per_position": [3, 3, 2]}
    return Step(text, ids, more={**counts, **drafts, **words, **positions})


@dataclass
class Asked:
    """A request as it came over the wire, and what became of it."""

    id: str
    model: str
    # By name: (datatype, shape), and the values in one row.
    tensors: dict[str, tuple[str, tuple[int, ...]]]
    values: dict[str, list[Any]]
    metadata: dict[str, str]
    over: threading.Event = field(default_factory=threading.Event)
    finished: bool = False

    @property
    def prompt(self) -> str:
        return str(self.values["text_input"][0].decode())

    def was_cancelled(self) -> bool:
        """Wait until the call is over; whether that was before its script was."""
        assert self.over.wait(20), "the call is still open"
        return not self.finished


Script = Callable[[Asked], Iterable[Step | Fault]]


class ScriptedServer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Serves `script` at `url` while the block runs.

    After the script's steps comes an empty final response, as Triton sends it for a decoupled
    model, unless a step was final or `ends` is False. Inputs that a model has not, or has otherwise,
    are refused before the script sees them.

    Args:
        models: what is served.
        hangs_up: whether a call is ended when its last response was sent.
        credentials: of grpc; None: not encrypted.
    """

    def __init__(
        self,
        script: Script,
        *,
        models: Sequence[Model] = (TRTSPEC,),
        port: int = 0,
        ends: bool = True,
        ready: bool = True,
        hangs_up: bool = True,
        credentials: Any = None,
    ) -> None:
        self.asked: list[Asked] = []
        # The metadata of calls that ask no model anything.
        self.questions: list[tuple[str, dict[str, str]]] = []
        self._script = script
        self._models = {model.name: model for model in models}
        self._ends = ends
        self._ready = ready
        self._hangs_up = hangs_up
        # As Triton's: a large request is the model's to refuse.
        options = [("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0)]
        self._server = grpc.server(ThreadPoolExecutor(64), options=options)
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, self._server)
        address = f"127.0.0.1:{port}"
        bound = (
            self._server.add_insecure_port(address)
            if credentials is None
            else self._server.add_secure_port(address, credentials)
        )
        self.url = f"127.0.0.1:{bound}"

    def __enter__(self) -> ScriptedServer:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(grace=0).wait()

    def ServerLive(self, request: Any, context: Any) -> Any:
        return pb.ServerLiveResponse(live=True)

    def ServerReady(self, request: Any, context: Any) -> Any:
        return pb.ServerReadyResponse(ready=True)

    def ModelReady(self, request: Any, context: Any) -> Any:
        return pb.ModelReadyResponse(ready=self._ready and request.name in self._models)

    def ServerMetadata(self, request: Any, context: Any) -> Any:
        return pb.ServerMetadataResponse(name="triton", version="2.51.0")

    def ModelMetadata(self, request: Any, context: Any) -> Any:
        model = self._model(request, context)
        message = pb.ModelMetadataResponse(name=model.name, versions=["1"], platform="python")
        for side, tensors in ((message.inputs, model.inputs), (message.outputs, model.outputs)):
            for name, (datatype, shape) in tensors.items():
                side.add(name=name, datatype=datatype, shape=shape)
        return message

    def ModelConfig(self, request: Any, context: Any) -> Any:
        model = self._model(request, context)
        message = pb.ModelConfigResponse()
        message.config.model_transaction_policy.decoupled = model.decoupled
        for name, value in model.parameters.items():
            message.config.parameters[name].string_value = value
        return message

    def _model(self, request: Any, context: Any) -> Model:
        self.questions.append((request.name, dict(context.invocation_metadata())))
        if request.name not in self._models:
            words = f"Request for unknown model: '{request.name}' is not found"
            context.abort(grpc.StatusCode.NOT_FOUND, words)
        return self._models[request.name]

    def ModelStreamInfer(self, request_iterator: Any, context: Any) -> Iterator[Any]:
        for message in request_iterator:
            asked = _unpack(message, dict(context.invocation_metadata()))
            if not context.add_callback(asked.over.set):
                asked.over.set()  # the call was over before that
            self.asked.append(asked)
            if refusal := self._models[asked.model].refusal(asked.tensors):
                asked.finished = True
                yield _fault(Fault(refusal), asked, context)
                return
            final = False
            for step in self._script(asked):
                if isinstance(step, Fault):
                    asked.finished = True
                    yield _fault(step, asked, context)
                    return
                final = step.final
                yield _response(asked, step)
            asked.finished = not asked.over.is_set()
            if self._ends and not final:
                yield _response(asked, Step(final=True))
            if not self._hangs_up:
                asked.over.wait(20)


def _fault(fault: Fault, asked: Asked, context: Any) -> Any:
    if fault.status:
        context.abort(grpc.StatusCode[fault.status], fault.message)
    return pb.ModelStreamInferResponse(
        error_message=fault.message, infer_response=pb.ModelInferResponse(id=asked.id)
    )


def _response(asked: Asked, step: Step) -> Any:
    response = pb.ModelInferResponse(model_name=asked.model, id=asked.id)
    response.parameters["triton_final_response"].bool_param = step.final
    outputs = dict(step.more)
    if step.text or step.ids or outputs:
        outputs = {"text_output": step.text, "output_ids": list(step.ids), **outputs}
    for name, value in outputs.items():
        datatype, shape, raw = _pack(name, value)
        response.outputs.add(name=name, datatype=datatype, shape=shape)
        response.raw_output_contents.append(raw)
    return pb.ModelStreamInferResponse(infer_response=response)


def _pack(name: str, value: Any) -> tuple[str, list[int], bytes]:
    if isinstance(value, str | bytes):
        data = value.encode() if isinstance(value, str) else value
        return "BYTES", [1, 1], struct.pack("<I", len(data)) + data
    values = value if isinstance(value, list) else [value]
    datatype = "FP32" if "log_probs" in name else "INT64" if name.endswith("_ns") else "INT32"
    shape = [1, 1, len(values)] if "log_probs" in name else [1, len(values)]
    return datatype, shape, struct.pack(f"<{len(values)}{_FORMATS[datatype]}", *values)


def _unpack(message: Any, metadata: dict[str, str]) -> Asked:
    tensors, values = {}, {}
    for tensor, raw in zip(message.inputs, message.raw_input_contents, strict=True):
        tensors[tensor.name] = (tensor.datatype, tuple(tensor.shape))
        values[tensor.name] = list(_values(tensor.datatype, raw))
    return Asked(message.id, message.model_name, tensors, values, metadata)


def _values(datatype: str, raw: bytes) -> Iterator[Any]:
    if datatype != "BYTES":
        yield from (value for (value,) in struct.iter_unpack(f"<{_FORMATS[datatype]}", raw))
        return
    while raw:
        (length,) = struct.unpack_from("<I", raw)
        yield raw[4 : 4 + length]
        raw = raw[4 + length :]


def endless(asked: Asked) -> Iterator[Step]:
    """A script without an end that stops when its call is over."""
    for number in itertools.count():
        if asked.over.is_set():
            return
        yield Step(f"{number} ", [number])
        time.sleep(0.01)


if __name__ == "__main__":
    with ScriptedServer(endless) as server:
        print(server.url, flush=True)  # noqa: T201
        threading.Event().wait()
