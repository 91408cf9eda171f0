"""The public model inside Triton's Python backend: many answers at once over two engines."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .adaptive_length import DraftLengths, SharedDraftLength
from .answer import Answer
from .dispatch import Dispatcher
from .draft_gate import DraftGate
from .draft_length import FixedDraftLength
from .draft_table import DraftTable, DraftTokens, TabledDraftLength
from .engines import Engines
from .intake import Intake, Received, settings_of
from .request import ADAPTIVE, Limits
from .runtime import RUNTIMES


class TritonPythonModel:
    """What Triton's Python backend loads."""

    def initialize(self, args: dict[str, str]) -> None:
        settings = settings_of(args)
        self._limits = Limits.of(settings)
        self._runtime = RUNTIMES[settings["engine_runtime"]]
        # Engines that do not answer keep the threads that asked them: of each engine fewer than twice as many
        # as requests may be in flight, since it is asked no more when it has left so many without an answer.
        most_inflight = int(settings["max_inflight_requests"])
        self._threads = ThreadPoolExecutor(4 * most_inflight)
        self._gate = DraftGate()
        self._draft_lengths = DraftLengths(self._limits.max_draft_len)
        self._engines = Engines(
            {
                "target": settings["tensorrt_llm_model_name"],
                "draft": settings["tensorrt_llm_draft_model_name"],
            }
        )
        self._dispatcher = Dispatcher(
            self._engines.ask,
            self._threads,
            timeouts_s={
                "target": float(settings["target_timeout_s"]),
                "draft": float(settings["draft_timeout_s"]),
            },
            max_rows=int(settings["max_rows_per_call"]) if self._runtime.stacks_calls else 1,
            most_stuck=most_inflight,
        )
        self._intake = Intake(
            args,
            Path(__file__).parent.parent / "tokenizer",
            self._limits,
            self._threads,
            gauges={
                "trtspec_draft_length": lambda: self._draft_lengths.current,
                "trtspec_draft_failing": lambda: self._gate.is_closed,
            },
            make=self._answer,
            run=self._dispatcher.run,
            take_ended=self._engines.take_ended,
        )

    def execute(self, requests: list[Any]) -> None:
        self._intake.take(requests)

    def finalize(self) -> None:
        self._dispatcher.close()
        self._intake.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _answer(self, received: Received) -> Answer:
        return Answer(
            received.request,
            received.output,
            received.caller,
            self._runtime,
            self._gate,
            self._draft_length(received.request.num_draft_tokens),
            self._intake.metrics,
            draft_max_seq_len=self._limits.draft_max_seq_len,
            arrival_s=received.arrival_s,
            streams=received.streams,
        )

    def _draft_length(self, asked: DraftTokens) -> SharedDraftLength:
        lengths = self._draft_lengths
        if isinstance(asked, DraftTable):
            return lengths.request(TabledDraftLength(asked, lambda: lengths.in_flight))
        return lengths.request(None if asked == ADAPTIVE else FixedDraftLength(asked))
