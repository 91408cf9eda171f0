"""The public model inside Triton's Python backend, over TensorRT-LLM's LLM API."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb

from ..speculation.callers import Caller, Callers
from ..speculation.chat import Chat
from ..speculation.metrics import Metrics
from ..speculation.output import Output
from ..speculation.request import Limits, RequestError
from ..speculation.tensors import Inputs, read_request
from ..speculation.tokenizer import Tokenizer
from .answer import Answer
from .capabilities import Capabilities
from .llm import Llm

# Tokenising is the work of these threads; a request waits for TensorRT-LLM in none.
READERS = 4


class TritonPythonModel:
    """What Triton's Python backend loads."""

    def initialize(self, args: dict[str, str]) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        settings = {key: value["string_value"] for key, value in parameters.items()}
        self._can = Capabilities.read(settings)
        self._limits = Limits(
            vocab_size=int(settings["vocab_size"]),
            max_seq_len=int(settings["max_seq_len"]),
            draft_max_seq_len=int(settings["max_seq_len"]),
            max_draft_len=self._can.max_draft_len,
            default_draft_len=self._can.max_draft_len,
        )
        self._eos_ids = tuple(int(i) for i in settings["eos_token_ids"].split(",") if i)
        self._excludes_input = settings["exclude_input_in_output"] == "true"
        self._timeout_s = float(settings["target_timeout_s"])
        self._capacity = int(settings["max_inflight_requests"])
        version = Path(args["model_repository"]) / args["model_version"]
        self._tokenizer = Tokenizer(version / "tokenizer" / "tokenizer.json")
        self._chat = Chat(version / "tokenizer")
        arguments = json.loads((version / "llm_args.json").read_text("utf-8"))
        self._llm = Llm(version / "engine", arguments)
        self._readers = ThreadPoolExecutor(READERS)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="answers", daemon=True)
        self._thread.start()
        self._callers = Callers(list)
        self._metrics = Metrics(
            pb.MetricFamily,
            args["model_name"],
            {
                "trtspec_draft_length": lambda: self._can.max_draft_len,
                "trtspec_requests_in_flight": lambda: len(self._callers),
            },
        )

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            is_full = len(self._callers) >= self._capacity
            caller = self._callers.welcome(request.get_response_sender())
            if is_full:
                self._metrics.count("trtspec_rejected_busy_total")
                caller.turn_away(f"{self._capacity} requests are in flight; try again later")
            else:
                self._readers.submit(self._serve, request, caller, time.monotonic())

    def finalize(self) -> None:
        self._metrics.close()
        self._callers.close()
        self._readers.shutdown(wait=False, cancel_futures=True)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._llm.close()

    def _serve(self, request: Any, caller: Caller, arrival_s: float) -> None:
        try:
            answer = self._read(Inputs(request), caller, arrival_s)
        except RequestError as error:
            caller.refuse(str(error))
        except Exception as error:
            caller.fail_unexpectedly(error)
        else:
            asyncio.run_coroutine_threadsafe(answer.run(), self._loop)

    def _read(self, inputs: Inputs, caller: Caller, arrival_s: float) -> Answer:
        request = read_request(
            inputs, self._tokenizer, self._chat, self._limits, self._eos_ids, self._excludes_input
        )
        self._can.check(request)
        output = Output.of(request, self._tokenizer.detokenizer())
        return Answer(
            request,
            output,
            caller,
            self._llm,
            self._metrics,
            max_draft_len=self._can.max_draft_len,
            fixed_length=self._can.fixed_length,
            timeout_s=self._timeout_s,
            arrival_s=arrival_s,
            streams=inputs.flag("stream"),
        )
