"""Responses in, deltas out, and the whole answer at the end."""

from __future__ import annotations

import codecs
from types import TracebackType
from typing import Any, cast

from numpy.typing import NDArray

from trtspec.client._errors import CallFailed, StreamBroken
from trtspec.client._results import Delta, FinishReason, Generation, Speculation, Usage
from trtspec.client._transport import InferResponse, Responses


class Stream:
    """An answer that is coming: iterate over its deltas, then read `result`.

    A context manager: leaving it early cancels what the server is still doing. One thread iterates;
    `close` may be called from any.
    """

    def __init__(self, request_id: str, responses: Responses) -> None:
        self.request_id = request_id
        self._responses = responses
        # A server may cut between the bytes of a character; ours does not.
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._deltas: list[Delta] = []
        # The newest of each output: the last response sums up, and an empty one may follow it.
        self._outputs: dict[str, NDArray[Any]] = {}
        self._result: Generation | None = None
        self._error: CallFailed | None = None
        self._closed = False

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Delta:
        """Return what the next response adds; responses that add nothing are passed over.

        Raises:
            CallFailed: what ended the answer; again when called again.
        """
        if self._error:
            raise self._error
        while self._result is None:
            response = self._receive()
            if response is None:
                self._result = self._generation(cancelled=True)
                break
            delta = self._take(response)
            if response.final:
                self._result = self._generation()
            if delta != Delta():
                return delta
        raise StopIteration

    @property
    def result(self) -> Generation:
        """The whole answer; waits for what has not come yet.

        After an early close, what had come, with the finish reason "cancelled".
        """
        for _ in self:
            pass
        assert self._result is not None
        return self._result

    def close(self) -> None:
        """Cancel what the server is still doing. Returns at once; does nothing after the end."""
        self._closed = True
        self._responses.close()

    def _receive(self) -> InferResponse | None:
        """Return the next response, None when the stream was closed here."""
        try:
            response = next(self._responses, None)
        except CallFailed as error:
            if self._closed:
                return None
            self._error = error
            raise
        if response is None and not self._closed:
            self._error = StreamBroken(
                f"request {self.request_id}: the server ended the stream without a last response; "
                "look into its log",
                request_id=self.request_id,
            )
            raise self._error
        return response

    def _take(self, response: InferResponse) -> Delta:
        outputs = response.outputs
        self._outputs.update(outputs)
        piece = b"".join(outputs["text_output"].flat) if "text_output" in outputs else b""
        delta = Delta(
            self._decoder.decode(piece, final=response.final),
            _values(outputs.get("output_ids")),
            _values(outputs.get("output_log_probs")),
        )
        self._deltas.append(delta)
        return delta

    def _generation(self, *, cancelled: bool = False) -> Generation:
        reason = "cancelled" if cancelled else self._text("finish_reason")
        return Generation(
            text="".join(delta.text for delta in self._deltas),
            token_ids=tuple(i for delta in self._deltas for i in delta.token_ids),
            log_probs=tuple(p for delta in self._deltas for p in delta.log_probs),
            finish_reason=cast(FinishReason, reason) if reason else None,
            stop_reason=self._text("stop_reason"),
            usage=self._usage(),
            speculation=self._speculation(),
            request_id=self.request_id,
        )

    def _usage(self) -> Usage | None:
        if "num_output_tokens" not in self._outputs:
            return None
        return Usage(self._count("num_input_tokens"), self._count("num_output_tokens"))

    def _speculation(self) -> Speculation | None:
        if "num_rounds" not in self._outputs:
            return None
        return Speculation(
            rounds=self._count("num_rounds"),
            proposed=self._count("total_draft_tokens"),
            accepted=self._count("total_accepted_draft_tokens"),
            per_position=_values(self._outputs.get("accepted_per_position")),
            off_reason=self._text("speculation_off_reason"),
        )

    def _count(self, name: str) -> int:
        return int(self._outputs[name].flat[0]) if name in self._outputs else 0

    def _text(self, name: str) -> str:
        return self._outputs[name].flat[0].decode(errors="replace") if name in self._outputs else ""


def _values(array: NDArray[Any] | None) -> tuple[Any, ...]:
    return () if array is None else tuple(array.ravel().tolist())
