"""The engines behind the loop, called through Triton."""

from __future__ import annotations

import itertools
import secrets
import threading
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import triton_python_backend_utils as pb

from .engine_tensors import Array, EngineRequest, read_replies, stack, stop_inputs
from .loop import EngineCallError, Reply, Role


class Engines:
    """The two models, by their names.

    A response iterator must not be dropped before Triton's stub has forgotten it: up to release
    24.11 the stub would free its tensors without holding the GIL, which corrupts the process. The
    stub forgets it in the queue that also answers `is_cancelled`, so once that has been answered,
    iterators that ended before may go.
    """

    def __init__(self, models: Mapping[Role, str]) -> None:
        self._models = models
        self._lock = threading.Lock()
        self._ended: list[Any] = []
        # Ids must not meet those of another instance or of other clients: `stop` goes by them.
        self._prefix = f"{secrets.token_hex(8)}-"
        self._numbers = itertools.count()

    def take_ended(self) -> list[Any]:
        """Return iterators that have ended, to be dropped as said above."""
        with self._lock:
            ended, self._ended = self._ended, []
        return ended

    def ask(
        self, engine: Role, requests: Sequence[EngineRequest]
    ) -> Generator[tuple[int, Reply], None, None]:
        """Make requests of one kind as one; yield replies with their row, in the order they come.

        Closing the generator before its end stops the engine.
        """
        model, request_id = self._models[engine], f"{self._prefix}{next(self._numbers)}"
        outputs = [*requests[0].outputs, *(["batch_index"] if len(requests) > 1 else [])]
        responses = _infer(model, request_id, stack(requests), outputs)
        is_drained = False
        try:
            for response in responses:
                if response.has_error():
                    error = response.error()
                    refused = error.code() == pb.TritonError.INVALID_ARG
                    raise EngineCallError(f"{model}: {error.message()}", refused=refused)
                tensors = response.output_tensors()
                if tensors:
                    yield from read_replies({tensor.name(): tensor.as_numpy() for tensor in tensors})
            is_drained = True
        except GeneratorExit:
            # The same id, with `stop` set, as TensorRT-LLM's backend has it.
            self._drain(_infer(model, request_id, stop_inputs(), ["output_ids"]))
            raise
        finally:
            if is_drained:
                self._keep(responses)
            else:
                self._drain(responses)

    def _drain(self, responses: Any) -> None:
        # Triton counts a call whose responses were not all taken as in flight for ever.
        for _ in responses:
            pass
        self._keep(responses)

    def _keep(self, responses: Any) -> None:
        with self._lock:
            self._ended.append(responses)


def _infer(model: str, request_id: str, inputs: Mapping[str, Array], outputs: list[str]) -> Any:
    request = pb.InferenceRequest(
        model_name=model,
        request_id=request_id,
        inputs=[pb.Tensor(name, array) for name, array in inputs.items()],
        requested_output_names=outputs,
    )
    try:
        return request.exec(decoupled=True)
    except pb.TritonModelException as error:
        raise EngineCallError(f"{model}: {error}") from error
