"""The public model inside Triton's Python backend: many answers at once over two engines."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb

from .answer import Answer
from .callers import Caller, Callers
from .chat import Chat
from .dispatch import Dispatcher
from .draft_gate import DraftGate
from .draft_length import DraftLengths, FixedDraftLength, SharedDraftLength
from .draft_table import DraftTable, DraftTokens, TabledDraftLength
from .engines import Engines
from .metrics import Metrics
from .output import Output
from .request import ADAPTIVE, Limits, RequestError
from .runtime import RUNTIMES
from .tensors import Inputs, read_request
from .tokenizer import Tokenizer


class TritonPythonModel:
    """What Triton's Python backend loads."""

    def initialize(self, args: dict[str, str]) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        settings = {key: value["string_value"] for key, value in parameters.items()}
        self._limits = Limits.of(settings)
        self._eos_ids = tuple(int(i) for i in settings["eos_token_ids"].split(",") if i)
        self._excludes_input = settings["exclude_input_in_output"] == "true"
        folder = Path(__file__).parent.parent / "tokenizer"
        self._tokenizer = Tokenizer(folder / "tokenizer.json")
        self._chat = Chat(folder)
        self._runtime = RUNTIMES[settings["engine_runtime"]]
        self._capacity = int(settings["max_inflight_requests"])
        # Twice: an engine that does not answer keeps the threads that asked it.
        self._threads = ThreadPoolExecutor(2 * self._capacity)
        self._gate = DraftGate()
        self._draft_lengths = DraftLengths(self._limits.max_draft_len)
        self._engines = Engines(
            {
                "target": settings["tensorrt_llm_model_name"],
                "draft": settings["tensorrt_llm_draft_model_name"],
            }
        )
        self._callers = Callers(self._engines.take_ended)
        self._metrics = Metrics(
            pb.MetricFamily,
            args["model_name"],
            {
                "trtspec_draft_length": lambda: self._draft_lengths.current,
                "trtspec_draft_failing": lambda: self._gate.is_closed,
                "trtspec_requests_in_flight": lambda: len(self._callers),
            },
        )
        self._dispatcher = Dispatcher(
            self._engines.ask,
            self._threads,
            timeouts_s={
                "target": float(settings["target_timeout_s"]),
                "draft": float(settings["draft_timeout_s"]),
            },
            max_rows=int(settings["max_rows_per_call"]) if self._runtime.stacks_calls else 1,
        )

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            is_full = len(self._callers) >= self._capacity
            caller = self._callers.welcome(request.get_response_sender())
            if is_full:
                self._metrics.count("trtspec_rejected_busy_total")
                caller.turn_away(f"{self._capacity} requests are in flight; try again later")
            else:
                self._threads.submit(self._serve, request, caller, time.monotonic())

    def finalize(self) -> None:
        self._metrics.close()
        self._dispatcher.close()
        self._callers.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _serve(self, request: Any, caller: Caller, arrival_s: float) -> None:
        try:
            answer = self._read(Inputs(request), caller, arrival_s)
        except RequestError as error:
            caller.refuse(str(error))
        except Exception as error:
            caller.fail_unexpectedly(error)
        else:
            self._dispatcher.run(answer)

    def _read(self, inputs: Inputs, caller: Caller, arrival_s: float) -> Answer:
        request = read_request(
            inputs, self._tokenizer, self._chat, self._limits, self._eos_ids, self._excludes_input
        )
        output = Output.of(request, self._tokenizer.detokenizer())
        return Answer(
            request,
            output,
            caller,
            self._runtime,
            self._gate,
            self._draft_length(request.num_draft_tokens),
            self._metrics,
            draft_max_seq_len=self._limits.draft_max_seq_len,
            arrival_s=arrival_s,
            streams=inputs.flag("stream"),
        )

    def _draft_length(self, asked: DraftTokens) -> SharedDraftLength:
        lengths = self._draft_lengths
        if isinstance(asked, DraftTable):
            return lengths.request(TabledDraftLength(asked, lambda: lengths.in_flight))
        return lengths.request(None if asked == ADAPTIVE else FixedDraftLength(asked))
