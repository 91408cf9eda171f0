"""The thread that speaks with all callers outlives whatever one of them brings, and forgets nobody."""

from __future__ import annotations

import importlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import cpu_triton_double as double
import pytest

from trtspec.triton_repo.speculation.output import Delta

MODULE = "trtspec.triton_repo.speculation.callers"


@pytest.fixture(scope="module")
def callers_class() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "triton_python_backend_utils", double.module())
        patch.delitem(sys.modules, MODULE, raising=False)
        yield importlib.import_module(MODULE).Callers
        patch.delitem(sys.modules, MODULE)


@pytest.fixture
def callers(callers_class: Any) -> Iterator[Any]:
    callers = callers_class(take_ended=list)
    yield callers
    callers.close()


def saying(text: str) -> Callable[[Any], Any]:
    return lambda unsent: double.InferenceResponse([double.Tensor("text", text)])


def new_sender() -> double.Call:
    return double.Call({}, ())


class BrokenSender(double.Call):
    """Triton has lost the connection in a way of its own."""

    def send(self, response: double.InferenceResponse | None = None, flags: int = 0) -> None:
        raise RuntimeError("the response factory is gone")


@pytest.fixture
def _paused_everywhere(callers_class: Any) -> Iterator[None]:
    """The thread lets others in between any two of its steps."""
    file = sys.modules[MODULE].__file__

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code.co_filename != file:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            time.sleep(0.0001)
        return trace

    threading.settrace(trace)
    yield
    threading.settrace(None)  # type: ignore[arg-type]  # as sys.settrace takes it


@pytest.mark.usefixtures("_paused_everywhere")
def test_callers_may_come_while_the_next_to_be_checked_is_looked_for(callers: Any) -> None:
    senders = [new_sender() for _ in range(40)]
    for sender in senders:
        callers.welcome(sender).end(saying("done"))
        time.sleep(0.0005)
    for sender in senders:
        assert sender.wait().output("text") == "done"
    assert len(callers) == 0


def test_a_last_response_that_cannot_be_made_is_an_error_that_ends_the_call(callers: Any) -> None:
    def fail(unsent: Any) -> Any:
        raise ValueError("no logits to stack")

    sender = new_sender()
    callers.welcome(sender).end(fail)
    assert str(sender.wait().error) == "failed: ValueError in tensorrt_llm_bls; see the server's log"
    assert len(callers) == 0


def test_one_who_cannot_be_reached_takes_no_other_along(callers: Any) -> None:
    callers.welcome(BrokenSender({}, ())).end(saying("lost"))
    sender = new_sender()
    callers.welcome(sender).end(saying("heard"))
    assert sender.wait().output("text") == "heard"
    assert len(callers) == 0


@pytest.mark.parametrize("lost", [1, 2])
def test_an_answer_of_which_a_response_was_lost_ends_with_an_error(callers: Any, lost: int) -> None:
    class FullSender(double.Call):
        """Triton's shared memory has no room just then."""

        sent = 0

        def send(self, response: double.InferenceResponse | None = None, flags: int = 0) -> None:
            self.sent += 1
            if self.sent == lost:
                raise RuntimeError("failed to increase the shared memory pool size")
            super().send(response, flags)

    sender = FullSender({}, ())
    caller = callers.welcome(sender)
    caller.add(Delta(text="one "), lambda unsent: double.InferenceResponse([double.Tensor("text", "one ")]))
    while sender.sent < 1:
        time.sleep(0.001)
    caller.end(saying("two"))
    failure = sender.wait().responses[-1].error
    assert str(failure) == "failed: RuntimeError in tensorrt_llm_bls; see the server's log"
    assert caller.has_gone
    assert len(callers) == 0
