"""The public model inside Triton's Python backend, over TensorRT-LLM's LLM API."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ..speculation.intake import Intake, Received, settings_of
from ..speculation.request import Limits
from .answer import Answer
from .capabilities import Capabilities
from .llm import Llm

# Tokenising is the work of these threads; a request waits for TensorRT-LLM in none.
READERS = 4


class TritonPythonModel:
    """What Triton's Python backend loads."""

    def initialize(self, args: dict[str, str]) -> None:
        settings = settings_of(args)
        self._can = Capabilities.read(settings)
        self._timeout_s = float(settings["target_timeout_s"])
        version = Path(args["model_repository"]) / args["model_version"]
        arguments = json.loads((version / "llm_args.json").read_text("utf-8"))
        self._llm = Llm(version / "engine", arguments)
        self._readers = ThreadPoolExecutor(READERS)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="answers", daemon=True)
        self._thread.start()
        self._intake = Intake(
            args,
            version / "tokenizer",
            Limits(
                vocab_size=int(settings["vocab_size"]),
                max_seq_len=int(settings["max_seq_len"]),
                draft_max_seq_len=int(settings["max_seq_len"]),
                max_draft_len=self._can.max_draft_len,
                default_draft_len=self._can.max_draft_len,
            ),
            self._readers,
            gauges={"trtspec_draft_length": lambda: self._can.max_draft_len},
            make=self._answer,
            run=lambda answer: asyncio.run_coroutine_threadsafe(answer.run(), self._loop),
        )

    def execute(self, requests: list[Any]) -> None:
        self._intake.take(requests)

    def finalize(self) -> None:
        self._intake.close()
        self._readers.shutdown(wait=False, cancel_futures=True)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._llm.close()

    def _answer(self, received: Received) -> Answer:
        self._can.check(received.request)
        return Answer(
            received.request,
            received.output,
            received.caller,
            self._llm,
            self._intake.metrics,
            max_draft_len=self._can.max_draft_len,
            fixed_length=self._can.fixed_length,
            timeout_s=self._timeout_s,
            arrival_s=received.arrival_s,
            streams=received.streams,
        )
