"""One time for a method, whatever it asks on the way, and whoever asks beside it."""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from four_clients import PATIENCE_S, client_for
from scripted_http_server import serving_http
from scripted_server import ScriptedServer, last

from trtspec.client import (
    AsyncMockTransport,
    Client,
    ConnectionFailed,
    DeadlineExceeded,
    Delta,
    Health,
    InferRequest,
    Metadata,
    MockTransport,
    RequestRefused,
    Retry,
)


class SlowTransport(MockTransport):
    """A transport double: each question takes two seconds of a clock of its own, and some are refused."""

    def __init__(self, refuse: Callable[[str], Exception | None] = lambda _: None) -> None:
        super().__init__(self._answer)
        self.now_s = 0.0
        # What was asked, and the time that was given for it.
        self.given: list[tuple[str, float | None]] = []
        self._refuse = refuse

    def clock(self) -> float:
        return self.now_s

    def metadata(self, model: str, timeout_s: float | None) -> Metadata:
        self._note(model, timeout_s)
        if error := self._refuse(model):
            raise error
        return super().metadata(model, timeout_s)

    def health(self, model: str, timeout_s: float | None) -> Health:
        self._note("health", timeout_s)
        return super().health(model, timeout_s)

    def _answer(self, request: InferRequest) -> Iterator[Delta]:
        self._note("answer", request.left_s)
        yield Delta("a")

    def _note(self, what: str, given_s: float | None) -> None:
        self.given.append((what, None if given_s is None else round(given_s, 3)))
        self.now_s += 2


class AsyncSlowTransport(AsyncMockTransport):
    """SlowTransport for AsyncClient."""

    def __init__(self, slow: SlowTransport) -> None:
        super().__init__(lambda _: [])
        self.mock = slow


@contextmanager
def asking_slowly(way: str, slow: SlowTransport, **options: Any) -> Iterator[Any]:
    async def sleep(seconds: float) -> None:
        """Wait for nothing."""

    transport: Any = slow if way == "plain" else AsyncSlowTransport(slow)
    given = {
        "transport": transport,
        "clock": slow.clock,
        "sleep": sleep if way == "async" else lambda _: None,
    }
    with client_for("async grpc" if way == "async" else "grpc", "localhost", **given, **options) as client:
        yield client


def unknown_but_the_last(model: str) -> Exception | None:
    return None if model == "tensorrt_llm" else RequestRefused("no such model", status="NOT_FOUND")


@pytest.mark.parametrize("way", ["plain", "async"])
def test_all_the_names_of_a_model_are_tried_in_one_time(way: str) -> None:
    slow = SlowTransport(unknown_but_the_last)
    with asking_slowly(way, slow) as client:
        client.metadata(timeout_s=10)
    assert slow.given == [("tensorrt_llm_bls", 10), ("ensemble", 8), ("tensorrt_llm", 6)]


@pytest.mark.parametrize("way", ["plain", "async"])
def test_health_has_one_time_for_everything_that_it_asks(way: str) -> None:
    slow = SlowTransport()
    with asking_slowly(way, slow) as client:
        assert client.health(timeout_s=10).healthy
    assert slow.given == [
        *(("tensorrt_llm_bls", 10), ("health", 8)),
        *(("tensorrt_llm_bls", 6), ("answer", 4)),
    ]


@pytest.mark.parametrize("way", ["plain", "async"])
def test_metadata_is_not_asked_for_again_when_the_time_is_up(way: str) -> None:
    slow = SlowTransport(lambda _: ConnectionFailed("not yet"))
    with (
        asking_slowly(way, slow, model="x", retry=Retry(attempts=10, first_wait_s=0)) as client,
        pytest.raises(ConnectionFailed, match="not yet"),
    ):
        client.metadata(timeout_s=5)
    assert slow.given == [("x", 5), ("x", 3), ("x", 1)]


@pytest.mark.parametrize("way", ["plain", "async"])
def test_a_call_without_limit_asks_for_metadata_without_limit(way: str) -> None:
    slow = SlowTransport()
    with asking_slowly(way, slow, timeout_s=10) as client:
        client.generate("x", timeout_s=math.inf)
    assert slow.given == [("tensorrt_llm_bls", None), ("answer", None)]


def test_who_waits_for_another_threads_question_waits_no_longer_than_allowed() -> None:
    asked, answered = threading.Event(), threading.Event()

    class Hanging(MockTransport):
        """A transport double that is asked in vain."""

        def metadata(self, model: str, timeout_s: float | None) -> Metadata:
            asked.set()
            assert answered.wait(PATIENCE_S)
            return super().metadata(model, timeout_s)

    with Client(transport=Hanging(lambda _: [])) as client:
        thread = threading.Thread(target=client.metadata)
        thread.start()
        assert asked.wait(PATIENCE_S)
        try:
            with pytest.raises(DeadlineExceeded, match=r"not whole after 0\.05 s"):
                client.generate("x", timeout_s=0.05)
        finally:
            answered.set()
            thread.join()


class AtOnce(ScriptedServer):
    """A server double that answers a question when all three of its kind are there."""

    def __init__(self) -> None:
        super().__init__(lambda _: [last("a", [1])])
        self._meeting = threading.Barrier(3)

    def _meet(self) -> None:
        self._meeting.wait(PATIENCE_S)

    def __getattribute__(self, name: str) -> Any:
        method = super().__getattribute__(name)
        if name not in QUESTIONS:
            return method

        def answer(request: Any, context: Any) -> Any:
            self._meet()
            return method(request, context)

        return answer


QUESTIONS = ("ServerMetadata", "ModelMetadata", "ModelConfig", "ServerLive", "ServerReady", "ModelReady")


@pytest.mark.parametrize("way", ["grpc", "async grpc"])
def test_questions_over_grpc_share_their_time_as_they_are_asked_at_once(way: str) -> None:
    with AtOnce() as server, client_for(way, server.url) as client:
        assert client.metadata(timeout_s=PATIENCE_S).model == "tensorrt_llm_bls"
        assert client.health(timeout_s=PATIENCE_S, canary=False).healthy


def test_questions_over_http_share_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []
    limit = socket.socket.settimeout

    def note(self: socket.socket, seconds: float | None) -> None:
        if seconds is not None and threading.current_thread() is asking_thread:
            limits.append(seconds)
        limit(self, seconds)

    asking_thread = threading.current_thread()
    with serving_http(lambda _: [last()]) as server, Client(server.url) as client:
        monkeypatch.setattr(socket.socket, "settimeout", note)
        client.metadata(timeout_s=PATIENCE_S)
        client._transport.health("tensorrt_llm_bls", 2 * PATIENCE_S)
    longer = [limit > PATIENCE_S for limit in limits]
    metadata, health = limits[: longer.index(True)], limits[longer.index(True) :]
    for of_one in (metadata, health):
        assert len(of_one) >= 6
        assert of_one == sorted(of_one, reverse=True)


def test_a_server_that_says_nothing_is_asked_no_more_when_the_time_is_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        seen: list[bytes] = []

        def listen() -> None:
            while True:
                try:
                    end, _ = listener.accept()
                except OSError:
                    return
                with end:
                    seen.append(end.recv(1 << 16))
                    end.recv(1)

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            with Client(f"http://127.0.0.1:{listener.getsockname()[1]}") as client:
                assert not client._transport.health("x", 0.2).live
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(PATIENCE_S)
    # None where the time was up before the first was sent.
    assert sum(map(bool, seen)) <= 1
