"""Requests of the public model, from Triton to the answer that each gets.

Every one is read in a thread: a bad one is refused, one too many turned away, for each of the others an
answer is made and run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import triton_python_backend_utils as pb

from .callers import Caller, Callers
from .chat import Chat
from .metrics import Metrics
from .output import Output
from .request import GenerationRequest, Limits, RequestError
from .tensors import Inputs, read_request
from .tokenizer import Tokenizer

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Received:
    """A request that was read, and who waits for its answer."""

    request: GenerationRequest
    output: Output
    caller: Caller
    arrival_s: float
    streams: bool


def settings_of(args: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters of the model that Triton initialises."""
    parameters = json.loads(args["model_config"])["parameters"]
    return {key: value["string_value"] for key, value in parameters.items()}


class Intake(Generic[Answer]):
    """Takes requests in.

    Args:
        args: what Triton initialises the model with.
        tokenizer: the folder of the tokenizer's files.
        readers: the threads that requests are read in.
        gauges: metrics beside the number of requests in flight.
        make: returns the answer to a request; what it raises is told to the caller.
        run: starts an answer, which speaks with its caller itself.
        take_ended: as `Callers` wants it.
    """

    def __init__(
        self,
        args: Mapping[str, str],
        tokenizer: Path,
        limits: Limits,
        readers: Executor,
        *,
        gauges: Mapping[str, Callable[[], float]],
        make: Callable[[Received], Answer],
        run: Callable[[Answer], object],
        take_ended: Callable[[], list[Any]] = list,
    ) -> None:
        settings = settings_of(args)
        self._limits = limits
        self._eos_ids = tuple(int(i) for i in settings["eos_token_ids"].split(",") if i)
        self._excludes_input = settings["exclude_input_in_output"] == "true"
        self._capacity = int(settings["max_inflight_requests"])
        self._tokenizer = Tokenizer(tokenizer / "tokenizer.json")
        self._chat = Chat(tokenizer)
        self._readers = readers
        self._make = make
        self._run = run
        self._callers = Callers(take_ended)
        in_flight = {"trtspec_requests_in_flight": lambda: len(self._callers)}
        self.metrics = Metrics(pb.MetricFamily, args["model_name"], {**gauges, **in_flight})

    def take(self, requests: list[Any]) -> None:
        """Hand requests to the readers, or send them away."""
        for request in requests:
            is_full = len(self._callers) >= self._capacity
            caller = self._callers.welcome(request.get_response_sender())
            if is_full:
                self.metrics.count("trtspec_rejected_busy_total")
                caller.turn_away(f"{self._capacity} requests are in flight; try again later")
            else:
                self._readers.submit(self._serve, request, caller, time.monotonic())

    def close(self) -> None:
        """Take nothing more; what is being answered gets no further response."""
        self.metrics.close()
        self._callers.close()

    def _serve(self, request: Any, caller: Caller, arrival_s: float) -> None:
        try:
            answer = self._make(self._read(Inputs(request), caller, arrival_s))
        except RequestError as error:
            caller.refuse(str(error))
        except Exception as error:
            caller.fail_unexpectedly(error)
        else:
            self._run(answer)

    def _read(self, inputs: Inputs, caller: Caller, arrival_s: float) -> Received:
        request = read_request(
            inputs, self._tokenizer, self._chat, self._limits, self._eos_ids, self._excludes_input
        )
        output = Output.of(request, self._tokenizer.detokenizer())
        return Received(request, output, caller, arrival_s, streams=inputs.flag("stream"))
