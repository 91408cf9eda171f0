"""The engines behind the loop, called through Triton."""

from __future__ import annotations

import itertools
import secrets
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import triton_python_backend_utils as pb

from .engine_tensors import EngineRequest, read_replies, stack
from .loop import EngineCallError, Reply, Role

# How an engine of ours begins what it says of a request that is at fault itself.
REFUSED = "refused: "


class Engines:
    """The two models, by their names.

    Every call has one response. Where there are more, the stub's thread that hands them on can wait
    for one that takes them, which waits for Python's lock, which another has that makes a call and
    waits for the first: for ever, as long as Triton's `ResponseIterator::Next` takes Python's lock
    while it holds its own (seen in release 24.10; unchanged in 26.07's source).

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

    def ask(self, engine: Role, requests: Sequence[EngineRequest]) -> list[Reply]:
        """Make requests of one kind as one and return the reply to each."""
        model = self._models[engine]
        responses = _infer(model, f"{self._prefix}{next(self._numbers)}", requests)
        replies: list[Reply] = []
        failure: EngineCallError | None = None
        try:
            # To its end: Triton counts a call whose responses were not all taken as in flight for ever.
            for response in responses:
                if response.has_error():
                    failure = _failure(model, response.error())
                elif tensors := response.output_tensors():
                    replies += read_replies({tensor.name(): tensor.as_numpy() for tensor in tensors})
        finally:
            with self._lock:
                self._ended.append(responses)
        if failure is None and len(replies) not in (0, len(requests)):
            failure = EngineCallError(f"{model}: {len(replies)} replies to {len(requests)} calls")
        if failure is not None:
            raise failure
        return replies or [Reply(()) for _ in requests]


def _failure(model: str, error: Any) -> EngineCallError:
    # The code says so to other clients; to a model that asks another, Triton hands on the text alone.
    message = error.message()
    refused = message.startswith(REFUSED)
    return EngineCallError(f"{model}: {message.removeprefix(REFUSED)}", refused=refused)


def _infer(model: str, request_id: str, requests: Sequence[EngineRequest]) -> Any:
    request = pb.InferenceRequest(
        model_name=model,
        request_id=request_id,
        inputs=[pb.Tensor(name, array) for name, array in stack(requests).items()],
        requested_output_names=list(requests[0].outputs),
    )
    try:
        return request.exec(decoupled=True)
    except pb.TritonModelException as error:
        raise EngineCallError(f"{model}: {error}") from error
