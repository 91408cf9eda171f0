"""Connections over HTTP: each is kept or closed by the one exchange that has it, whoever ends that."""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import numpy as np
import pytest
from four_clients import PATIENCE_S, SOON_S, asking
from scripted_http_server import serving_http
from scripted_server import Asked, Step, last

from trtspec.client import (
    Client,
    ClientError,
    ConnectionFailed,
    DeadlineExceeded,
    InferRequest,
    RequestRefused,
    StreamBroken,
)
from trtspec.client._connections import BROKEN, Exchange, Pool
from trtspec.client._endpoint import Endpoint, endpoint
from trtspec.client._failures import Call
from trtspec.client._http import HttpTransport
from trtspec.client._questions import get
from trtspec.client.bench.targets import Piece, from_thread

EVENT = b'data: {"text_output": "a"}\n\n'


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> list[socket.socket]:
    """All sockets that connect to a server from here on."""
    made: list[socket.socket] = []
    connect = socket.socket.connect_ex

    def remember(self: socket.socket, address: Any) -> int:
        made.append(self)
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect_ex", remember)
    return made


def are_closed(sockets: list[socket.socket]) -> bool:
    return bool(sockets) and all(made.fileno() == -1 for made in sockets)


@contextmanager
def saying(reply: bytes, endless: bytes = b"") -> Iterator[Endpoint]:
    """Give a server that says the same to everyone, then `endless` again and again, and hangs up."""

    def answer() -> None:
        while True:
            try:
                end, _ = listener.accept()
            except OSError:
                return
            with end, end.makefile("rb") as asked:
                length = 0
                while line := asked.readline().strip().lower():
                    length = int(line.partition(b":")[2]) if line.startswith(b"content-length") else length
                asked.read(length)
                end.sendall(reply)
                with suppress(OSError):
                    while endless:
                        end.sendall(endless)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield Endpoint("http", *listener.getsockname())
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(PATIENCE_S)


def question() -> InferRequest:
    inputs = {"text_input": np.array([[b"x"]], object), "max_tokens": np.array([[1]], np.int32)}
    return InferRequest("tensorrt_llm_bls", "1", inputs)


class Hooked(http.client.HTTPResponse):
    """A response at whose reading something else happens: what another thread does just then."""

    before: Callable[[], None] = staticmethod(lambda: None)
    after: Callable[[], None] = staticmethod(lambda: None)

    def read1(self, n: int = -1) -> bytes:
        self.before()
        piece = super().read1(n)
        self.after()
        return piece


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http.client.HTTPConnection, "response_class", Hooked)


@pytest.mark.usefixtures("hooks")
def test_an_answer_that_is_closed_just_as_a_response_comes_leaves_no_connection(
    sockets: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        serving_http(lambda _: [Step("a")]) as server,
        closing(HttpTransport(endpoint(server.url))) as transport,
    ):
        responses = transport.stream(question())
        monkeypatch.setattr(Hooked, "after", responses.close)
        next(responses, None)
        # As asyncio has it when a task is cancelled: nobody asks for more.
        assert are_closed(sockets)
        assert list(responses) == []


@pytest.mark.usefixtures("hooks")
def test_a_body_that_only_hanging_up_ends_is_not_whole_when_it_was_closed_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reply = b"HTTP/1.1 200 OK\r\n\r\n" + EVENT
    with saying(reply) as endpoint, closing(HttpTransport(endpoint)) as transport:
        assert [response.final for response in transport.stream(question())] == [False, True]
        responses = transport.stream(question())
        monkeypatch.setattr(Hooked, "before", responses.close)
        assert not any(response.final for response in responses)


def test_an_answer_that_is_closed_while_it_connects_is_not_asked_for(
    sockets: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = socket.socket.connect_ex

    def close_then(self: socket.socket, address: Any) -> int:
        begun = connect(self, address)
        responses.close()
        return begun

    with (
        serving_http(lambda _: [last()]) as server,
        closing(HttpTransport(endpoint(server.url))) as transport,
    ):
        responses = transport.stream(question())
        monkeypatch.setattr(socket.socket, "connect_ex", close_then)
        monkeypatch.setattr(http.client.HTTPConnection, "request", lambda *_: pytest.fail("it was asked for"))
        assert list(responses) == []
        assert are_closed(sockets)


def test_an_answer_that_is_closed_on_a_kept_connection_is_not_asked_for_again(
    sockets: list[socket.socket],
) -> None:
    waiting, seen = threading.Event(), threading.Event()

    def script(asked: Asked) -> Iterator[Step]:
        if asked.prompt == "wait":
            waiting.set()
            seen.wait(PATIENCE_S)
        yield last()

    with serving_http(script) as server, Client(server.url) as client:
        client.generate("first")
        made = len(sockets)
        with client.stream("wait") as stream:
            results: list[Any] = []
            thread = threading.Thread(target=lambda: results.append(stream.result))
            thread.start()
            assert waiting.wait(PATIENCE_S)
            stream.close()
            thread.join(PATIENCE_S)
            seen.set()
        assert results[0].finish_reason == "cancelled"
        assert are_closed(sockets)
        assert len(sockets) == made


@pytest.mark.parametrize("way", ["http", "async http"])
def test_a_kept_connection_on_which_nothing_comes_in_time_is_closed(
    way: str, sockets: list[socket.socket]
) -> None:
    seen = threading.Event()

    def script(asked: Asked) -> Iterator[Step]:
        if asked.prompt == "hang":
            seen.wait(2 * PATIENCE_S)
        yield last()

    with asking(way, script) as (_, client):
        client.generate("first")
        made = len(sockets)
        for timeout_s in SOON_S:
            with pytest.raises(DeadlineExceeded):
                client.generate("hang", timeout_s=timeout_s)
            if are_closed(sockets):
                break  # else its time was up before it took the connection
        seen.set()
        assert are_closed(sockets)
        assert len(sockets) == made


def body_of(exchange: Exchange) -> bytes:
    exchange.send("GET", "/")
    return exchange.read(1 << 20)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("reply", "endless"), [(b"HTTP/1.1 200 OK\r\nX-Endless: ", b"x"), (CHUNKED, b"1\r\n \r\n")]
)
def test_a_head_or_body_that_keeps_coming_ends_when_the_time_is_up(reply: bytes, endless: bytes) -> None:
    waits = iter([PATIENCE_S] * 5)

    def left_s() -> float:
        with suppress(StopIteration):
            return next(waits)
        raise TimeoutError

    with (
        saying(reply, endless * 100) as endpoint,
        closing(Pool(endpoint)) as pool,
        pytest.raises(TimeoutError),
    ):
        body_of(Exchange(pool, left_s))


def test_a_single_question_has_one_time_for_all_that_comes() -> None:
    with (
        saying(CHUNKED, b"1\r\n \r\n" * 1000) as endpoint,
        closing(Pool(endpoint)) as pool,
        pytest.raises(DeadlineExceeded),
    ):
        get(pool, "/v2", Call(endpoint.address, timeout_s=0.2))


# Half a body, of a connection that is not to be kept: the response alone has the socket then.
HALF = b'HTTP/1.1 %s\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"nam'


def test_a_question_whose_answer_breaks_off_leaves_no_connection(sockets: list[socket.socket]) -> None:
    with saying(HALF % b"200 OK") as endpoint, closing(HttpTransport(endpoint)) as transport:
        with pytest.raises(ClientError, match="IncompleteRead") as caught:
            transport.metadata("x", 5)
        assert are_closed(sockets), caught  # which still has the frames that had the response


def test_an_exchange_that_fails_needs_nobody_to_close_it(sockets: list[socket.socket]) -> None:
    with saying(HALF % b"200 OK") as endpoint, closing(Pool(endpoint)) as pool:
        exchange = Exchange(pool, lambda: 5)
        exchange.send("GET", "/v2")
        with pytest.raises(BROKEN) as caught:
            exchange.read(100)
        assert are_closed(sockets), caught
        with pytest.raises(ConnectionAbortedError):
            exchange.read(100)


@contextmanager
def listening() -> Iterator[tuple[Endpoint, threading.Event]]:
    """Give a server that reads a question and says nothing, and what is set when it has come."""
    came = threading.Event()

    def read() -> None:
        end, _ = listener.accept()
        with end, suppress(OSError):
            end.recv(1 << 16)
            came.set()
            end.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=read)
        thread.start()
        try:
            yield endpoint(f"http://127.0.0.1:{listener.getsockname()[1]}"), came
        finally:
            thread.join(PATIENCE_S)


def test_a_question_ends_with_the_transport(sockets: list[socket.socket]) -> None:
    with listening() as (endpoint, came), closing(HttpTransport(endpoint)) as transport:
        threading.Thread(target=lambda: (came.wait(PATIENCE_S), transport.close())).start()
        with pytest.raises(ConnectionFailed, match="the client was closed"):
            transport.metadata("x", None)
        assert are_closed(sockets)
        with pytest.raises(ConnectionFailed, match="the client was closed"):
            transport.metadata("x", None)


def test_a_refusal_that_breaks_off_is_still_one() -> None:
    with (
        saying(HALF % b"403 Forbidden") as endpoint,
        closing(HttpTransport(endpoint)) as transport,
        pytest.raises(RequestRefused, match="HTTP status 403"),
    ):
        transport.metadata("x", 5)


@pytest.mark.parametrize("missing", [0, 1])
def test_a_body_that_is_shorter_than_was_said_is_a_broken_stream(missing: int) -> None:
    length = len(EVENT) + missing
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (length, EVENT)
    with saying(reply) as endpoint, closing(HttpTransport(endpoint)) as transport:
        responses = transport.stream(question())
        assert not next(responses).final
        if missing:
            with pytest.raises(StreamBroken, match="the answer broke off"):
                next(responses)
        else:
            assert next(responses).final
        words = "IncompleteRead" if missing else "description of x that is none"
        with pytest.raises(ClientError, match=words):
            transport.metadata("x", 5)


def test_a_connection_whose_response_said_its_length_is_used_again_and_asked_once(
    sockets: list[socket.socket],
) -> None:
    """As of a proxy that collects the events before it passes them on."""
    with serving_http(lambda _: [last()]) as server, closing(Pool(endpoint(server.url))) as pool:
        for _ in range(3):
            exchange = Exchange(pool, lambda: 5)
            exchange.send("GET", "/v2")
            assert b"triton" in b"".join(exchange.pieces())
    assert len(server.seen) == 3
    assert len(sockets) == 1
    assert are_closed(sockets)


def test_answers_that_were_read_to_their_end_are_forgotten() -> None:
    with (
        serving_http(lambda _: [last()]) as server,
        closing(HttpTransport(endpoint(server.url))) as transport,
    ):
        responses = transport.stream(question())
        while not next(responses).final:
            pass
        assert transport._pool._under_way == set()


def test_a_blocking_iterator_is_closed_when_its_loop_has_gone() -> None:
    """As by an interrupt that comes just as an item does."""
    more, closed = threading.Event(), threading.Event()

    def items() -> Generator[Piece, None, None]:
        try:
            yield Piece("a")
            more.wait(PATIENCE_S)
            yield Piece("b")
        finally:
            closed.set()

    loop = asyncio.new_event_loop()
    pieces = from_thread(items)
    others = set(threading.enumerate())
    loop.run_until_complete(anext(pieces))
    loop.close()
    (thread,) = (found for found in set(threading.enumerate()) - others if found.name == "bench")
    more.set()
    thread.join(PATIENCE_S)
    assert closed.is_set()
