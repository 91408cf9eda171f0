"""Networks and servers at their worst: no hang, a typed error, and nothing asked twice once it answered."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from four_clients import PATIENCE_S, SOON_S, WAYS, asking, client_for
from scripted_http_server import Cut, serving_http
from scripted_server import Asked, ScriptedServer, Step, endless, last

from trtspec.client import (
    AsyncClient,
    Client,
    ConnectionFailed,
    DeadlineExceeded,
    RequestRefused,
    Retry,
    ServerFailed,
    StreamBroken,
)
from trtspec.client._many import ask_many, ignore

AT_ONCE = Retry(first_wait_s=0.0)


class Proxy:
    """A line between client and server that can be slow, go silent, or be cut."""

    def __init__(self, target: str, *, delay_s: float = 0.0) -> None:
        host, port = target.removeprefix("http://").split(":")
        self._target = (host, int(port))
        self._delay_s = delay_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ends: list[socket.socket] = []
        self._passing = threading.Event()
        self._passing.set()
        self._threads: list[threading.Thread] = []
        scheme = "http://" if target.startswith("http") else ""
        self.url = f"{scheme}127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Proxy:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self.cut()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        for end in (self._listener, *self._ends):
            end.close()

    def go_silent(self) -> None:
        """Keep all connections open and let nothing through any more."""
        self._passing.clear()

    def cut(self) -> None:
        """Break all connections."""
        self._passing.set()
        for end in self._ends:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self._ends.append(near)
            far = socket.create_connection(self._target)
            self._ends.append(far)
            self._start(self._pass_on, near, far)
            self._start(self._pass_on, far, near)

    def _start(self, work: Any, *args: Any) -> None:
        thread = threading.Thread(target=work, args=args)
        self._threads.append(thread)
        thread.start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                time.sleep(self._delay_s)
                self._passing.wait(PATIENCE_S)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_RDWR)
        except OSError:
            return


@contextmanager
def through_proxy(way: str, script: Any, *, delay_s: float = 0.0, **options: Any) -> Iterator[Any]:
    """Give server, client and the line between them."""
    with (
        asking(way, script) as (server, _),
        Proxy(server.url, delay_s=delay_s) as proxy,
        client_for(way, proxy.url, **options) as client,
    ):
        yield server, client, proxy


@pytest.mark.parametrize("way", WAYS)
def test_a_slow_network_changes_no_answer(way: str) -> None:
    def script(asked: Asked) -> Iterator[Step]:
        yield from (Step(str(number), [number]) for number in range(5))
        yield last()

    with through_proxy(way, script, delay_s=0.02) as (_, client, _proxy):
        answer = client.generate("x")
    assert (answer.text, answer.token_ids, answer.timings.attempts) == ("01234", (0, 1, 2, 3, 4), 1)


@pytest.mark.parametrize("way", WAYS)
def test_a_connection_cut_in_the_answer_is_a_broken_stream_and_not_asked_again(way: str) -> None:
    with through_proxy(way, endless, retry=AT_ONCE) as (server, client, proxy):
        with client.stream("x") as stream:
            first = next(stream)
            proxy.cut()
            with pytest.raises(StreamBroken, match="the answer broke off"):
                list(stream)
        assert first.text
        assert len(server.asked) == 1
        assert server.asked[0].was_cancelled()


@pytest.mark.parametrize("way", WAYS)
def test_a_connection_cut_before_the_answer_is_asked_again(way: str) -> None:
    cut = threading.Event()

    def script(asked: Asked) -> Iterator[Step]:
        if not cut.is_set():
            cut.set()
            lines[0].cut()
            asked.over.wait(5)
            return
        yield last("here")

    lines: list[Proxy] = []
    with through_proxy(way, script, retry=Retry(attempts=20, first_wait_s=0.05)) as (server, client, proxy):
        lines.append(proxy)
        answer = client.generate("x")
        assert answer.text == "here"
        assert answer.timings.attempts >= 2
        assert len(server.asked) == 2


@pytest.mark.parametrize("way", WAYS)
def test_a_line_that_goes_silent_ends_at_the_deadline(way: str) -> None:
    begun = threading.Event()

    def read(stream: Any, proxy: Proxy) -> None:
        next(stream)
        begun.set()
        proxy.go_silent()
        list(stream)

    for timeout_s in SOON_S:
        with (
            through_proxy(way, endless) as (_, client, proxy),
            pytest.raises(DeadlineExceeded),
            client.stream("x", timeout_s=timeout_s) as stream,
        ):
            read(stream, proxy)
        if begun.is_set():
            break
    assert begun.is_set()


@pytest.mark.parametrize("way", WAYS)
def test_closing_a_silent_stream_does_not_wait(way: str) -> None:
    with through_proxy(way, endless, timeout_s=None) as (_, client, proxy):
        with client.stream("x") as stream:
            next(stream)
            proxy.go_silent()
        assert stream.result.finish_reason == "cancelled"


@pytest.mark.parametrize("way", ["grpc", "async grpc"])
def test_a_server_that_does_not_end_a_call_it_has_answered_holds_nobody_up(way: str) -> None:
    with (
        ScriptedServer(lambda _: [last("all")], hangs_up=False) as server,
        client_for(way, server.url, timeout_s=None) as client,
    ):
        assert client.generate("x").text == "all"
        assert server.asked[0].was_cancelled() is False


@pytest.mark.parametrize("way", ["http", "async http"])
@pytest.mark.parametrize("cut_after", [0, 1])
def test_a_body_without_its_end_is_a_broken_stream(way: str, cut_after: int) -> None:
    script = [*[Step("half")] * cut_after, Cut()]
    with serving_http(lambda _: script) as server, client_for(way, server.url, retry=AT_ONCE) as client:
        kind = StreamBroken if cut_after else ConnectionFailed
        with pytest.raises(kind):
            client.generate("x")
        assert len(server.asked) == (1 if cut_after else 3)


@pytest.mark.parametrize("way", ["http", "async http"])
def test_a_request_that_breaks_off_on_a_kept_connection_is_sent_no_more_often_than_on_a_new_one(
    way: str,
) -> None:
    def script(asked: Asked) -> Iterator[Any]:
        yield last() if asked.prompt == "first" else Cut()

    with serving_http(script) as server, client_for(way, server.url, retry=Retry(attempts=1)) as client:
        client.generate("first")
        with pytest.raises(ConnectionFailed):
            client.generate("x")
        assert [asked.prompt for asked in server.asked] == ["first", "x"]


@pytest.mark.parametrize("way", ["http", "async http"])
@pytest.mark.parametrize(
    "nonsense", [b"data: {\n\n", b"data: [1]\n\n", b'data: {"text_output": {}}\n\n', b'data: {"output_ids"']
)
def test_a_body_that_makes_no_sense_is_a_broken_stream(way: str, nonsense: bytes) -> None:
    with (
        serving_http(lambda _: [nonsense]) as server,
        client_for(way, server.url) as client,
        pytest.raises(StreamBroken),
    ):
        client.generate("x")


@pytest.mark.parametrize("way", ["http", "async http"])
def test_events_cut_anywhere_are_put_together(way: str) -> None:
    event = 'data: {"text_output": "Grüße 🌍", "output_ids": [1, 2]}\n\n'.encode()
    with (
        serving_http(lambda _: [event[i : i + 1] for i in range(len(event))]) as server,
        client_for(way, server.url) as client,
    ):
        answer = client.generate("x")
    assert (answer.text, answer.token_ids) == ("Grüße 🌍", (1, 2))


@pytest.mark.parametrize("reply", [b"HTTP/1.1 502 Bad Gateway\r\n\r\n", b"SSH-2.0\r\n", b"", b"\x00\x01\x02"])
@pytest.mark.parametrize("way", WAYS)
def test_what_is_no_triton_server_is_a_typed_error(way: str, reply: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            while True:
                try:
                    end, _ = listener.accept()
                except OSError:
                    return
                with end:
                    try:
                        end.settimeout(PATIENCE_S)
                        end.recv(65536)
                        end.sendall(reply)
                    except OSError:
                        continue

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"{'http://' if 'http' in way else ''}127.0.0.1:{listener.getsockname()[1]}"
        try:
            with client_for(way, url, retry=Retry(attempts=1), timeout_s=5) as client:
                with pytest.raises((ConnectionFailed, ServerFailed, StreamBroken, RequestRefused)):
                    client.generate("x")
                assert not client.health(timeout_s=5).healthy
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(PATIENCE_S)


@pytest.mark.parametrize("way", WAYS)
def test_a_server_killed_in_the_answer_breaks_the_stream_and_is_not_asked_again(way: str) -> None:
    name = "scripted_http_server.py" if "http" in way else "scripted_server.py"
    script = Path(__file__).with_name(name)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            url = process.stdout.readline().strip()
            with client_for(way, url, retry=AT_ONCE) as client, client.stream("x") as stream:
                next(stream)
                process.send_signal(signal.SIGKILL)
                with pytest.raises(StreamBroken, match="the answer broke off") as caught:
                    list(stream)
                assert caught.value.status == "UNAVAILABLE"
                with pytest.raises(ConnectionFailed):
                    client.generate("x")
        finally:
            process.kill()


def test_interrupting_many_cancels_what_is_under_way() -> None:
    def stop(number: int, answer: object) -> None:
        raise KeyboardInterrupt

    def script(asked: Asked) -> Iterator[Step]:
        yield from [last("a")] if asked.prompt == "first" else endless(asked)

    with ScriptedServer(script) as server, Client(server.url) as client:
        with pytest.raises(KeyboardInterrupt):
            client.generate_many(["slow", "first", "slow"], concurrency=3, on_answer=stop)
        for asked in server.asked:
            assert asked.prompt == "first" or asked.was_cancelled()


def test_an_interrupt_while_many_are_still_handed_out_cancels_those_under_way() -> None:
    class Interrupted(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            yield self[0]
            while not server.asked:
                time.sleep(0.01)
            raise KeyboardInterrupt

    with ScriptedServer(endless) as server, Client(server.url) as client:
        with pytest.raises(KeyboardInterrupt):
            ask_many(Interrupted([lambda: client.stream("x")]), concurrency=2, on_answer=ignore)
        assert server.asked[0].was_cancelled()


def test_another_thread_may_close_a_stream_that_waits_over_http() -> None:
    closed = threading.Event()

    def silent(asked: Asked) -> Iterator[Step]:
        closed.wait(PATIENCE_S)
        yield Step("late")

    with serving_http(silent) as server, Client(server.url) as client:
        stream = client.stream("x")
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.append(stream.result))
        thread.start()
        while not server.asked:
            time.sleep(0.01)
        stream.close()
        thread.join(PATIENCE_S)
        closed.set()
        assert results[0].finish_reason == "cancelled"


def test_a_task_that_is_cancelled_ends_the_servers_work() -> None:
    async def give_up(server: Any) -> None:
        async with AsyncClient(server.url) as client:
            task = asyncio.create_task(client.generate("x"))
            while not server.asked:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    with ScriptedServer(endless) as grpc_server, serving_http(endless) as http_server:
        for server in (grpc_server, http_server):
            asyncio.run(give_up(server))
            assert server.asked[0].was_cancelled()  # type: ignore[attr-defined]


def test_closing_does_not_wait_for_a_lock_that_an_interrupt_left_taken() -> None:
    with ScriptedServer(endless) as server:
        client = Client(server.url)
        stream = client.stream("x")
        next(stream)
        # What gRPC's own `with` leaves when the interrupt comes before its block: taken by this thread.
        stream._responses._call._state.condition.acquire()
        started = time.monotonic()
        client.close()
        assert time.monotonic() - started < PATIENCE_S
