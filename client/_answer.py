"""One answer while it comes: responses in, deltas out, and what to do when a call fails.

Nothing here waits or sends, so that streams with and without `await` share it.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from trtspec.client._errors import CallFailed, StreamBroken
from trtspec.client._metadata import Metadata
from trtspec.client._results import (
    Delta,
    FinishReason,
    Generation,
    ServerTimes,
    Speculation,
    Timings,
    Usage,
)
from trtspec.client._retry import Retry
from trtspec.client._transport import InferRequest, InferResponse

MOMENT_S = 1e-3
_REASONS = ("stop", "length", "cancelled")
_TIMES = ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns")


@dataclass(frozen=True)
class Terms:
    """What holds for all calls of a client: when to ask again, and what time it is."""

    retry: Retry
    clock: Callable[[], float]
    # Draws from [0, 1).
    draw: Callable[[], float]

    def wait_s(self, error: CallFailed, attempt: int, deadline: Deadline) -> float | None:
        """Return how long to wait after this attempt, the first being 1; None: do not ask again."""
        wait_s = self.retry.wait_s(error, attempt, self.draw())
        left_s = deadline.left_s()
        if wait_s is None or (left_s is not None and wait_s + MOMENT_S >= left_s):
            return None
        return wait_s


@dataclass(frozen=True)
class Deadline:
    """When the time for a call is up, with all that is asked for it.

    Args:
        started, allowed_s: when it began and how long it may be, by the clock; None: no limit.
    """

    started: float
    allowed_s: float | None
    clock: Callable[[], float]

    def left_s(self) -> float | None:
        """What is left of it, at the end a moment, in which whoever is asked says that it is up."""
        if self.allowed_s is None:
            return None
        return max(self.started + self.allowed_s - self.clock(), MOMENT_S)


class Answer:
    """What has come of one answer."""

    def __init__(self, request: InferRequest, metadata: Metadata, terms: Terms, deadline: Deadline) -> None:
        self.request_id = request.id
        self.closed = False
        self._request = request
        self._terms = terms
        self._deadline = deadline
        self._pieces = _Pieces(metadata, request.inputs.keys())
        self._attempts = 1
        self._first_delta: float | None = None
        self._begun = False
        self._error: CallFailed | None = None
        self._result: Generation | None = None

    @property
    def over(self) -> bool:
        return self._result is not None or self._error is not None

    @property
    def result(self) -> Generation:
        """The whole answer once it is over; raises what ended it."""
        self.raise_failure()
        assert self._result is not None
        return self._result

    def raise_failure(self) -> None:
        if self._error:
            raise self._error

    def request(self) -> InferRequest:
        """Return the request with the time that is left for it."""
        return replace(self._request, left_s=self._deadline.left_s())

    def take(self, response: InferResponse | None) -> Delta | None:
        """Return what a response adds, None when that is nothing; None in its place is the end."""
        if response is None and self.closed:
            self._finish(cancelled=True)
            return None
        if response is None:
            self._error = StreamBroken(
                f"request {self.request_id}: the server ended the stream without a last response; "
                "look into its log",
                request_id=self.request_id,
            )
            raise self._error
        self._begun = True
        delta = self._pieces.take(response)
        if delta is not None and self._first_delta is None:
            self._first_delta = self._terms.clock()
        if response.final:
            self._finish()
        return delta

    def failed(self, error: CallFailed) -> float:
        """Return after how many seconds to ask again; raises the error when not to.

        After an early close there is nothing to ask again: the answer is over.
        """
        if self.closed:
            self._finish(cancelled=True)
            return 0.0
        wait_s = None
        if not self._begun:
            wait_s = self._terms.wait_s(error, self._attempts, self._deadline)
        if wait_s is None:
            self._error = error
            raise error
        self._attempts += 1
        return wait_s

    def _finish(self, *, cancelled: bool = False) -> None:
        now = self._terms.clock()
        started = self._deadline.started
        first = None if self._first_delta is None else self._first_delta - started
        timings = Timings(first, now - started, self._attempts, self._pieces.server_times())
        whole = self._pieces.generation(cancelled=cancelled)
        self._result = replace(whole, request_id=self.request_id, timings=timings)


@dataclass
class _Pieces:
    """The responses so far."""

    metadata: Metadata
    # What others than our model may send unasked, or send a placeholder for.
    asked: Collection[str]
    deltas: list[Delta] = field(default_factory=list)
    # The newest of each output: the last response sums up, and an empty one may follow it.
    outputs: dict[str, NDArray[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # A server may cut between the bytes of a character; ours does not.
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._repeated = 0
        self._accumulates = self.metadata.accumulates

    def take(self, response: InferResponse) -> Delta | None:
        outputs = response.outputs
        self.outputs.update(outputs)
        delta = Delta(
            self._decoder.decode(self._text(outputs), final=response.final),
            _values(outputs.get("output_ids")),
            # Elsewhere each response repeats those before it, and has some without being asked.
            _values(outputs.get("output_log_probs")) if self.metadata.is_trtspec else (),
            _rows(outputs.get("generation_logits")) if "return_generation_logits" in self.asked else None,
        )
        if not (delta.text or delta.token_ids or delta.log_probs):
            return None
        self.deltas.append(delta)
        return delta

    def generation(self, *, cancelled: bool) -> Generation:
        reason = "cancelled" if cancelled else self._word("finish_reason")
        return Generation(
            text="".join(delta.text for delta in self.deltas),
            token_ids=tuple(i for delta in self.deltas for i in delta.token_ids),
            log_probs=self._log_probs(),
            finish_reason=cast(FinishReason, reason) if reason in _REASONS else None,
            stop_reason=self._stop_reason(),
            usage=None if cancelled else self._usage(),
            speculation=None if cancelled else self._speculation(),
            prompt_ids=_values(self.outputs.get("prompt_ids")),
            generation_logits=self._generation_logits(),
        )

    def server_times(self) -> ServerTimes | None:
        arrival, scheduled, first, last = times = [self._count(name) for name in _TIMES]
        engine_ns = self._count("engine_time_ns") if self._has("engine_time_ns") else None
        return ServerTimes(arrival, scheduled, first, last, engine_ns) if all(times) else None

    def _text(self, outputs: Mapping[str, NDArray[Any]]) -> bytes:
        if "text_output" not in outputs:
            return b""
        piece = b"".join(outputs["text_output"].flat)
        if self._accumulates:
            piece, self._repeated = piece[self._repeated :], len(piece)
        return piece

    def _log_probs(self) -> tuple[float, ...]:
        if self.metadata.is_trtspec:
            return tuple(p for delta in self.deltas for p in delta.log_probs)
        return _values(self.outputs.get("output_log_probs")) if "return_log_probs" in self.asked else ()

    def _generation_logits(self) -> NDArray[np.float32] | None:
        pieces = [delta.generation_logits for delta in self.deltas if delta.generation_logits is not None]
        return np.concatenate(pieces) if pieces else None

    def _stop_reason(self) -> str:
        # NVIDIA's llmapi model writes what Python calls it.
        word = self._word("stop_reason")
        return word if self.metadata.is_trtspec or word != "None" else ""

    def _usage(self) -> Usage | None:
        if "num_output_tokens" not in self.outputs:
            return None
        return Usage(self._count("num_input_tokens"), self._count("num_output_tokens"))

    def _speculation(self) -> Speculation | None:
        if "total_draft_tokens" not in self.outputs:
            return None
        return Speculation(
            rounds=self._count("num_rounds"),
            proposed=self._count("total_draft_tokens"),
            accepted=self._count("total_accepted_draft_tokens"),
            accepted_per_position=_values(self.outputs.get("accepted_per_position")),
            proposed_per_position=_values(self.outputs.get("proposed_per_position")),
            off_reason=self._word("speculation_off_reason"),
        )

    def _count(self, name: str) -> int:
        return int(self.outputs[name].flat[0]) if self._has(name) else 0

    def _word(self, name: str) -> str:
        return self.outputs[name].flat[0].decode(errors="replace") if self._has(name) else ""

    def _has(self, name: str) -> bool:
        return name in self.outputs and self.outputs[name].size > 0


def _rows(array: NDArray[Any] | None) -> NDArray[np.float32] | None:
    """Return the first beam of [..., tokens, vocabulary]."""
    if array is None or not array.size:
        return None
    rows_TV: NDArray[np.float32] = array.reshape(-1, *array.shape[-2:])[0].astype(np.float32, copy=False)
    return rows_TV


def _values(array: NDArray[Any] | None) -> tuple[Any, ...]:
    return () if array is None else tuple(array.ravel().tolist())
