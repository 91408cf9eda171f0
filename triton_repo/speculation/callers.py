"""Those who wait for answers: what they are sent, and whether they are still there.

One thread speaks with all of them, so that no engine waits until a response has gone out. When it
falls behind, what several rounds have brought goes out as one response.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

import triton_python_backend_utils as pb

from .output import Delta

FINAL = pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL

# TensorRT-LLM's own period. Asking costs a round trip to the server for each caller.
CANCELLATION_CHECK_S = 0.1

# Makes a response of what is unsent; None: there is none to send.
Respond = Callable[[Delta], Any]


class Caller:
    """One who waits. `has_gone` turns true when nobody does any more."""

    def __init__(self, sender: Any, expect: Callable[[Caller], None]) -> None:
        self.has_gone = False
        self.sender = sender
        self._expect = expect
        self._lock = threading.Lock()
        self._unsent = Delta()
        self._respond: Respond | None = None
        self._has_ended = False

    def add(self, delta: Delta, respond: Respond | None = None) -> None:
        """Add to what is unsent; with `respond` it goes out as soon as the thread comes to it."""
        with self._lock:
            self._unsent += delta
            is_expected = self._respond is not None
            self._respond = self._respond or respond
        if respond and not is_expected:
            self._expect(self)

    def end(self, respond: Respond) -> None:
        """Send the last response."""
        with self._lock:
            self._respond, self._has_ended = respond, True
        self._expect(self)

    # The first word tells a gRPC client whose fault it is: of an error in a stream it sees only the text.
    def refuse(self, message: str) -> None:
        self._end_with_error(f"refused: {message}", pb.TritonError.INVALID_ARG)

    def fail(self, message: str) -> None:
        self._end_with_error(f"failed: {message}", pb.TritonError.INTERNAL)

    def turn_away(self, message: str) -> None:
        self._end_with_error(f"busy: {message}", pb.TritonError.UNAVAILABLE)

    def fail_unexpectedly(self, error: Exception) -> None:
        self.fail(_logged(error))

    def take(self) -> tuple[Respond | None, Delta, bool]:
        """Return what to send now: how, what, and whether it is the last."""
        with self._lock:
            found = self._respond, self._unsent, self._has_ended
            if self._respond:
                self._respond, self._unsent = None, Delta()
            return found

    def _end_with_error(self, message: str, code: int) -> None:
        error = pb.InferenceResponse(error=pb.TritonError(message, code))
        self.end(lambda unsent: error)


class Callers:
    """All of them, and the thread that speaks with them.

    Args:
        take_ended: returns the engines' responses that have ended. They are let go when Triton has
            answered a question that was asked after that; see `Engines`.
    """

    def __init__(self, take_ended: Callable[[], list[Any]]) -> None:
        self._take_ended = take_ended
        self._expecting: SimpleQueue[Caller | None] = SimpleQueue()
        # With the time of the last check, the longest ago first.
        self._present: dict[Caller, float] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._run, name="callers", daemon=True).start()

    def __len__(self) -> int:
        return len(self._present)

    def welcome(self, sender: Any) -> Caller:
        """Return the caller behind a response sender; he is counted until his answer is over."""
        caller = Caller(sender, self._expecting.put)
        with self._lock:
            self._present[caller] = time.monotonic()
        # The thread sleeps while nobody is present.
        self._expecting.put(caller)
        return caller

    def close(self) -> None:
        self._expecting.put(None)

    def _run(self) -> None:
        while True:
            caller: Caller | None = None
            with suppress(Empty):
                caller = self._expecting.get(timeout=CANCELLATION_CHECK_S if self._present else None)
                if caller is None:
                    return
            try:
                if caller in self._present:
                    self._serve(caller)
                self._check_the_next()
            except Exception as error:  # of Triton, over one of them; the others still wait
                pb.Logger.log_error(f"tensorrt_llm_bls: callers: {type(error).__name__}: {error}")

    def _serve(self, caller: Caller) -> None:
        respond, unsent, is_last = caller.take()
        if respond is None:
            return
        if is_last:
            self._check(caller)
        try:
            response = None if caller.has_gone else respond(unsent)
            if is_last:
                # Before he hears it, so that there is room for the next request that he sends.
                with self._lock:
                    del self._present[caller]
            if response is not None:
                caller.sender.send(response, flags=FINAL if is_last else 0)
            elif is_last:
                caller.sender.send(flags=FINAL)
        except Exception as error:
            self._end_without(caller, error)

    def _end_without(self, caller: Caller, error: Exception) -> None:
        """End the answer of which a response is lost: what follows would read as if it were whole."""
        with self._lock:
            self._present.pop(caller, None)
        caller.has_gone = True
        failure = pb.TritonError(f"failed: {_logged(error)}", pb.TritonError.INTERNAL)
        with suppress(Exception):  # then he cannot be told either
            caller.sender.send(pb.InferenceResponse(error=failure), flags=FINAL)

    def _check_the_next(self) -> None:
        with self._lock:
            caller = next(iter(self._present), None)
            if caller is None or time.monotonic() - self._present[caller] <= CANCELLATION_CHECK_S:
                return
            del self._present[caller]
            self._present[caller] = time.monotonic()
        self._check(caller)

    def _check(self, caller: Caller) -> None:
        ended = self._take_ended()
        caller.has_gone = bool(caller.sender.is_cancelled())
        ended.clear()


def _logged(error: Exception) -> str:
    """Log what was not expected, and return what its caller is told."""
    pb.Logger.log_error(f"tensorrt_llm_bls: {type(error).__name__}: {error}")
    return f"{type(error).__name__} in tensorrt_llm_bls; see the server's log"
