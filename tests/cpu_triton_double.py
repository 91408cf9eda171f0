"""A double of `triton_python_backend_utils`, as far as the adapter uses it, and a scripted caller."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

FINAL = 1


@dataclass
class Tensor:
    tensor_name: str
    array: Any

    def name(self) -> str:
        return self.tensor_name

    def as_numpy(self) -> Any:
        return self.array


class TritonError(Exception):
    INTERNAL, INVALID_ARG, CANCELLED = 1, 3, 7

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class InferenceResponse:
    tensors: Sequence[Tensor] = ()
    error: TritonError | None = None


class Logger:
    @staticmethod
    def log_error(message: str) -> None:
        """Goes nowhere."""


@dataclass
class Call:
    """A request, its response sender, and what has been sent."""

    inputs_: Mapping[str, Any]
    outputs: Sequence[str]
    id: str = ""
    cancelled: bool = False
    # The first response to be taken holds the engine up until this is so.
    until: Callable[[], bool] = lambda: True
    responses: list[InferenceResponse] = field(default_factory=list)
    ended: bool = False

    def inputs(self) -> list[Tensor]:
        return [Tensor(name, np.asarray(value)) for name, value in self.inputs_.items()]

    def requested_output_names(self) -> Sequence[str]:
        return self.outputs

    def request_id(self) -> str:
        return self.id

    def get_response_sender(self) -> Call:
        return self

    def is_cancelled(self) -> bool:
        return self.cancelled

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        assert not self.ended, "a response after the final flag"
        if response is not None:
            self.responses.append(response)
        self.ended = bool(flags & FINAL)
        for _ in range(6000):
            if self.until():
                return
            time.sleep(0.005)

    def wait(self, responses: int | None = None) -> Call:
        """Wait for the final flag, or for so many responses."""
        for _ in range(6000):
            if self.ended or (responses is not None and len(self.responses) >= responses):
                return self
            time.sleep(0.005)
        raise AssertionError(f"no answer after 30 s, {len(self.responses)} responses so far")

    @property
    def error(self) -> TritonError:
        (response,) = self.responses
        assert response.error is not None
        return response.error

    def output(self, name: str) -> Any:
        """The tensor of a whole answer."""
        (response,) = self.responses
        assert response.error is None, response.error
        return next(tensor.array for tensor in response.tensors if tensor.tensor_name == name)


def module() -> ModuleType:
    """The double, as the module that Triton provides."""
    double = ModuleType("triton_python_backend_utils")
    names = {"TRITONSERVER_RESPONSE_COMPLETE_FINAL": FINAL, "Tensor": Tensor, "TritonError": TritonError}
    names |= {"InferenceResponse": InferenceResponse, "Logger": Logger}
    for name, value in names.items():
        setattr(double, name, value)
    return double
