"""A client that is closed ends whatever waits, wherever it waits, and says that this is why."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import pytest
from four_clients import PATIENCE_S, WAYS, asking, client_for
from scripted_server import Asked, Fault, Step, last

from trtspec.client import (
    CallFailed,
    ClientError,
    ConnectionFailed,
    InvalidArgument,
    Retry,
    StreamBroken,
)

CLOSED = r"the client was closed before the answer was whole( \(request \w+\))?$"


def error_of(ask: Callable[[], object], meanwhile: Callable[[], object]) -> ClientError:
    """Return what a call raises in a thread of its own while something else happens here."""
    errors: list[ClientError] = []

    def work() -> None:
        try:
            ask()
        except ClientError as error:
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    meanwhile()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "it still waits"
    return errors[0]


@pytest.mark.parametrize("way", WAYS)
def test_who_reads_a_stream_is_told_that_the_client_was_closed(way: str) -> None:
    begun = threading.Event()

    def script(asked: Asked) -> Iterator[Step]:
        yield Step("a", [1])
        asked.over.wait(PATIENCE_S)

    with asking(way, script) as (_, client):
        stream = client.stream("x")

        def read() -> None:
            next(stream)
            begun.set()
            next(stream)

        def close() -> None:
            assert begun.wait(PATIENCE_S)
            client.close()

        error = error_of(read, close)
        assert isinstance(error, StreamBroken)
        assert error.status == "CANCELLED"
        with pytest.raises(StreamBroken, match=CLOSED):
            next(stream)


@pytest.mark.parametrize("way", WAYS)
def test_who_waits_for_the_first_response_is_told_that_the_client_was_closed(way: str) -> None:
    begun = threading.Event()

    def script(asked: Asked) -> Iterator[Step]:
        begun.set()
        asked.over.wait(PATIENCE_S)
        yield from ()

    with asking(way, script) as (_, client):

        def close() -> None:
            assert begun.wait(PATIENCE_S)
            client.close()

        error = error_of(lambda: client.generate("x"), close)
        assert isinstance(error, ConnectionFailed)
        with pytest.raises(ConnectionFailed, match=CLOSED):
            raise error


@pytest.mark.parametrize("way", WAYS)
def test_an_answer_that_was_to_be_asked_for_again_is_not_when_the_client_was_closed(way: str) -> None:
    def close(_: float) -> None:
        client.close()

    async def close_async(_: float) -> None:
        await client._client.close()

    sleep = close_async if "async" in way else close
    with asking(way, lambda _: [Fault("busy: later", "UNAVAILABLE")], sleep=sleep) as (server, client):
        with pytest.raises(ConnectionFailed, match=CLOSED):
            client.generate("x")
        assert len(server.asked) == 1


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("method", ["generate", "metadata"])
def test_who_waits_to_ask_again_is_told_that_the_client_was_closed(way: str, method: str) -> None:
    waits = threading.Event()

    class Late(Retry):
        def wait_s(self, error: CallFailed, attempt: int, draw: float) -> float | None:
            wait_s = super().wait_s(error, attempt, draw)
            if wait_s is not None:
                waits.set()
            return wait_s

    def close() -> None:
        assert waits.wait(PATIENCE_S)
        client.close()

    late = Late(first_wait_s=10 * PATIENCE_S, longest_wait_s=10 * PATIENCE_S)
    busy = [Fault("busy: later", "UNAVAILABLE")]
    nowhere = f"{'http' if 'http' in way else 'grpc'}://127.0.0.1:1"
    with ExitStack() as opened:
        if method == "generate":
            _, client = opened.enter_context(asking(way, lambda _: busy, retry=late, timeout_s=None))
            asked = partial(client.generate, "x")
        else:
            client = opened.enter_context(client_for(way, nowhere, retry=late, timeout_s=None))
            asked = client.metadata
        with pytest.raises(ConnectionFailed, match=CLOSED):
            raise error_of(asked, close)


@pytest.mark.parametrize("way", WAYS)
def test_a_closed_client_refuses_all_its_methods(way: str) -> None:
    with asking(way, lambda _: [last()]) as (_, client):
        client.metadata()
        client.close()
        for ask in (client.metadata, client.health, client.metrics, client.is_ready):
            with pytest.raises(InvalidArgument, match=r"^client: found it closed"):
                ask()


@contextmanager
def silent() -> Iterator[tuple[str, threading.Event]]:
    """Give the address of a server that takes what comes and says nothing, and what is set when it has."""
    came = threading.Event()
    ends: list[socket.socket] = []

    def take() -> None:
        while True:
            try:
                end, _ = listener.accept()
            except OSError:
                return
            ends.append(end)
            if end.recv(1 << 16):
                came.set()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=take)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}", came
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            for end in ends:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            thread.join(PATIENCE_S)
            for end in ends:
                end.close()


@pytest.mark.parametrize("scheme", ["", "s"])
@pytest.mark.parametrize("way", WAYS)
def test_who_waits_for_metadata_or_a_handshake_is_told_that_the_client_was_closed(
    way: str, scheme: str
) -> None:
    with silent() as (address, came):
        url = f"{'http' if 'http' in way else 'grpc'}{scheme}://{address}"
        with client_for(way, url, timeout_s=None) as client:

            def close() -> None:
                assert came.wait(PATIENCE_S)
                client.close()

            with pytest.raises(ConnectionFailed, match=CLOSED):
                raise error_of(client.metadata, close)


@pytest.mark.parametrize("way", WAYS)
def test_who_waits_for_metrics_is_told_that_the_client_was_closed(way: str) -> None:
    with silent() as (address, came):
        url = "http://localhost" if "http" in way else "localhost"
        with client_for(way, url, metrics_url=f"http://{address}/metrics") as client:

            def close() -> None:
                assert came.wait(PATIENCE_S)
                client.close()

            with pytest.raises(ConnectionFailed, match=CLOSED):
                raise error_of(lambda: client.metrics(timeout_s=PATIENCE_S), close)


@pytest.mark.parametrize("way", ["http", "async http"])
def test_who_waits_for_a_connection_is_told_that_the_client_was_closed(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()
    connect = socket.socket.connect_ex

    def begin(self: socket.socket, address: Any) -> int:
        error = connect(self, address)
        begun.set()
        return error

    with socket.socket() as listener, socket.socket() as first:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        # The one that waits to be accepted: Linux leaves the next without an answer.
        first.connect(listener.getsockname())
        monkeypatch.setattr(socket.socket, "connect_ex", begin)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with client_for(way, url, timeout_s=None) as client:

            def close() -> None:
                assert begun.wait(PATIENCE_S)
                client.close()

            with pytest.raises(ConnectionFailed, match=CLOSED):
                raise error_of(client.metadata, close)
