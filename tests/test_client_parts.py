"""The client's parts on their own: addresses, secrets, retries, events, metrics, sizes."""

from __future__ import annotations

import asyncio
import json
import math
import socket
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from four_clients import WAYS, asking, client_for
from hypothesis import given
from hypothesis import strategies as st
from scripted_http_server import serving_http
from scripted_server import Fault, ScriptedServer, Step, last
from tritonclient.grpc import service_pb2

from trtspec.client import (
    AsyncClient,
    AsyncMockTransport,
    CallFailed,
    Client,
    ConnectionFailed,
    DeadlineExceeded,
    Delta,
    InferRequest,
    InvalidArgument,
    Metadata,
    MockTransport,
    Retry,
    ServerBusy,
    ServerFailed,
    StreamBroken,
    Tls,
)
from trtspec.client._endpoint import endpoint
from trtspec.client._events import EventParser, error_of, read_json, write_json
from trtspec.client._failures import Call
from trtspec.client._grpc import read
from trtspec.client._metrics import parse_metrics
from trtspec.client.verify.asking import Question
from trtspec.client.verify.asking import ask as ask_all

SECRET = "sk-do-not-show"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("gpu-host", "grpc://gpu-host:8001"),
        ("grpc://gpu-host:9", "grpc://gpu-host:9"),
        ("grpcs://[::1]:8001/", "grpcs://[::1]:8001"),
        ("10.0.0.1:80", "grpc://10.0.0.1:80"),
        ("http://gpu-host", "http://gpu-host:8000"),
        ("https://gpu-host:443/", "https://gpu-host:443"),
    ],
)
def test_a_url_may_leave_out_scheme_and_port(url: str, shown: str) -> None:
    assert endpoint(url).url == shown


@pytest.mark.parametrize(
    "url",
    [
        *("", "ftp://host:8000", "host:port", "host:0", "host:65536", ":8001", "host:", "host:8001\n", "a b"),
        *(
            "grpc://host/model",
            "grpc://host/metrics",
            "grpc:host:8001",
            "[::1:8001",
            "::1",
            "a,b",
            "a..b",
            "http://",
        ),
    ],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument, match="expected host:port or one of grpc://host:port, "):
        Client(url)


@pytest.mark.parametrize(
    ("url", "metrics_url", "expected"),
    [
        ("host:9001", None, "http://host:9002"),
        ("http://host:8000", None, "http://host:8002"),
        ("host:9001", "http://prometheus:9090/metrics", "http://prometheus:9090"),
        ("grpcs://host", "https://host/metrics", "https://host:443"),
    ],
)
def test_metrics_are_on_tritons_port_or_where_one_says(
    url: str, metrics_url: str | None, expected: str
) -> None:
    assert endpoint(url, metrics_url=metrics_url).for_metrics().url == expected


@pytest.mark.parametrize(
    ("url", "metrics_url", "goes_along"),
    [
        ("host:8001", None, True),
        ("host:8001", "http://elsewhere:8002/metrics", False),
        ("grpcs://host:8001", None, False),
        ("grpcs://host:8001", "https://host:8002/metrics", True),
    ],
)
def test_a_key_goes_to_the_metrics_of_the_same_host_and_never_unencrypted(
    url: str, metrics_url: str | None, goes_along: bool
) -> None:
    headers = endpoint(url, api_key=SECRET, metrics_url=metrics_url).for_metrics().headers
    assert ("authorization" in headers) == goes_along


@pytest.mark.parametrize(
    "url",
    [
        *(f"http://user:{SECRET}@host:8000", f"grpc://{SECRET}@host", f"user:{SECRET}@host"),
        *(f"http://user:{SECRET}@host:port", f"http://user:{SECRET}#x@host", f"ftp://user:{SECRET}/x@host"),
    ],
)
def test_a_password_in_a_url_is_refused_without_being_shown(url: str) -> None:
    for arguments in ({"url": url}, {"url": "host", "metrics_url": url}):
        with pytest.raises(InvalidArgument, match="found a name or password in the url") as caught:
            Client(**arguments)
        assert SECRET not in str(caught.value)


@pytest.mark.parametrize("more", [f"?token={SECRET}", f"#{SECRET}", f"/#{SECRET}", f"/?a#{SECRET}", "?", "#"])
def test_what_follows_an_address_is_refused_without_being_shown(more: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^'host:8001/?': found a query or fragment") as caught:
        Client(f"host:8001{more}")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("given", [{"api_key": f"{SECRET}\n"}, {"headers": {"x-key": f"{SECRET}\u00e4"}}])
def test_a_header_that_cannot_be_sent_is_refused_without_being_shown(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=r"^header '.*': found a value that is no printable") as caught:
        Client("host", **given)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("name", ["", "a b", "a:b", "ä"])
def test_what_is_no_headers_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match="found no header's name"):
        Client("host", headers={name: "x"})


@pytest.mark.parametrize("way", WAYS)
def test_the_key_and_headers_go_with_every_request(way: str) -> None:
    given: dict[str, Any] = {"api_key": SECRET, "headers": {"X-Tenant": "a"}}
    with asking(way, lambda _: [last()], **given) as (server, client):
        client.generate("x")
        assert SECRET not in repr(client) + repr(vars(client)) + str(client)
    sent = [server.asked[0].metadata]
    sent += [m for _, m in server.questions] if "grpc" in way else [h for _, _, h in server.seen]
    for metadata in ({k.lower(): v for k, v in headers.items()} for headers in sent):
        assert (metadata["authorization"], metadata["x-tenant"]) == (f"Bearer {SECRET}", "a")


@pytest.mark.parametrize("way", WAYS)
def test_no_error_shows_a_key(way: str) -> None:
    url = "http://localhost:1" if "http" in way else "localhost:1"
    with (
        client_for(way, url, api_key=SECRET, retry=Retry(attempts=1)) as client,
        pytest.raises(ConnectionFailed) as caught,
    ):
        client.generate("x")
    chain = repr(caught.value) + repr(caught.value.__cause__) + repr(vars(caught.value))
    assert SECRET not in chain


def test_tls_needs_an_address_and_files_that_fit(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="use grpcs://"):
        Client("grpc://host", tls=Tls())
    with pytest.raises(InvalidArgument, match="expected both or none"):
        Tls(certificate=tmp_path)
    with pytest.raises(InvalidArgument, match=r"^tls: .*no-such\.pem: cannot be read"):
        Client("grpcs://host", tls=Tls(ca=tmp_path / "no-such.pem"))
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(InvalidArgument, match="certificates that cannot be used"):
        Client("https://host", tls=Tls(ca=tmp_path / "ca.pem"))


BUSY, GONE = ServerBusy("busy"), ConnectionFailed("gone", status="UNAVAILABLE")


def test_waits_double_up_to_the_longest_and_are_half_chance() -> None:
    retry = Retry(attempts=9, first_wait_s=1.0, longest_wait_s=5.0)
    assert [retry.wait_s(BUSY, attempt, 1.0) for attempt in range(1, 5)] == [1.0, 2.0, 4.0, 5.0]
    assert [retry.wait_s(GONE, attempt, 0.0) for attempt in range(1, 5)] == [0.5, 1.0, 2.0, 2.5]
    assert retry.wait_s(BUSY, 9, 1.0) is None
    assert Retry(attempts=10_000).wait_s(BUSY, 9_000, 1.0) == 2.0


@pytest.mark.parametrize(
    "error",
    [ServerFailed(""), StreamBroken(""), DeadlineExceeded(""), ConnectionFailed("", status="CANCELLED")],
)
def test_only_what_is_safe_is_asked_again(error: CallFailed) -> None:
    assert Retry().wait_s(error, 1, 0.5) is None


@pytest.mark.parametrize("given", [{"attempts": 0}, {"first_wait_s": -1.0}, {"longest_wait_s": 0.0}])
def test_a_retry_that_makes_no_sense_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=r"^retry: found "):
        Retry(**given)


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def __call__(self) -> float:
        return self.now


def test_a_call_may_take_as_long_as_it_takes_though_the_client_has_a_limit() -> None:
    allowed: list[float | None] = []

    def note(request: InferRequest) -> list[Delta]:
        allowed.append(request.timeout_s)
        return [Delta("a")]

    with Client(transport=MockTransport(note), timeout_s=30.0) as client:
        for timeout_s in (None, 5.0, math.inf, 1e300):
            client.generate("x", timeout_s=timeout_s)
    assert allowed == [30.0, 5.0, None, None]


@pytest.mark.parametrize("way", WAYS)
def test_a_time_longer_than_sockets_take_is_none_and_no_time_is_refused(way: str) -> None:
    with asking(way, lambda _: [last("a")]) as (_, client):
        for timeout_s in (1e7, 1e300):
            assert client.generate("x", timeout_s=timeout_s).text == "a"
        assert client.health(timeout_s=math.inf).healthy
        for ask in (client.health, client.metrics):
            with pytest.raises(InvalidArgument, match="timeout_s: found 0, expected a positive number"):
                ask(timeout_s=0)


def busy(request: InferRequest) -> Any:
    raise ServerBusy("busy")
    yield


def test_waiting_stops_when_the_answers_time_would_be_up() -> None:
    clock = Clock()
    transport = MockTransport(busy)
    client = Client(
        transport=transport,
        retry=Retry(attempts=100, first_wait_s=1.0, longest_wait_s=1.0),
        clock=clock,
        sleep=clock.sleep,
        timeout_s=3.0,
    )
    with pytest.raises(ServerBusy):
        client.generate("x")
    assert 3 <= len(transport.requests) <= 6
    assert clock.now < 3.0
    left = [request.left_s for request in transport.requests]
    assert left == sorted(left, reverse=True)
    assert left[0] == 3.0
    assert {request.timeout_s for request in transport.requests} == {3.0}


def test_many_ask_for_metadata_in_the_callers_thread_which_an_interrupt_reaches() -> None:
    threads: list[threading.Thread] = []

    class Interrupted(MockTransport):
        def metadata(self, model: str, timeout_s: float | None) -> Metadata:
            threads.append(threading.current_thread())
            raise KeyboardInterrupt

    client = Client(transport=Interrupted(lambda _: []))
    with pytest.raises(KeyboardInterrupt):
        client.generate_many(["a", "b"])
    with pytest.raises(KeyboardInterrupt):
        list(ask_all(client, [Question("a")], concurrency=1))
    assert threads == [threading.current_thread()] * 2
    assert Client(transport=Interrupted(lambda _: [])).generate_many([]) == []


def test_nothing_is_asked_again_after_the_first_response() -> None:
    def handler(request: InferRequest) -> Any:
        yield Delta("a", (1,))
        raise ServerBusy("busy")

    clock = Clock()
    transport = MockTransport(handler)
    with pytest.raises(ServerBusy):
        Client(transport=transport, clock=clock, sleep=clock.sleep).generate("x")
    assert (len(transport.requests), clock.slept) == (1, [])


@pytest.mark.parametrize("way", WAYS)
def test_a_server_that_comes_up_while_it_is_asked_for_answers(way: str) -> None:
    def serving(port: int = 0) -> Any:
        server = serving_http if "http" in way else ScriptedServer
        return server(lambda _: [last("up")], port=port)

    with serving() as gone:
        url = gone.url
    slept: list[float] = []
    with ExitStack() as servers:

        def start(seconds: float) -> None:
            slept.append(seconds)
            time.sleep(0.05)
            if len(slept) == 2:
                servers.enter_context(serving(int(url.rsplit(":", 1)[1])))

        async def start_async(seconds: float) -> None:
            start(seconds)

        given = {"retry": Retry(attempts=200), "sleep": start_async if way.startswith("async") else start}
        with client_for(way, url, **given) as client:
            assert client.generate("x").text == "up"
    assert len(slept) >= 2


@pytest.mark.parametrize("way", WAYS)
def test_a_request_too_large_is_refused_before_it_is_sent(way: str) -> None:
    with asking(way, lambda _: [last()], max_message_bytes=20_000) as (server, client):
        with pytest.raises(InvalidArgument, match=r"^prompt: found a request of \d+ bytes, expected at most"):
            client.generate("x" * 20_000)
        assert server.asked == []


def test_http_requests_end_where_triton_would_crash() -> None:
    with serving_http(lambda _: [last()]) as server, Client(server.url) as client:
        with pytest.raises(InvalidArgument, match="at most 4194304; shorten it"):
            client.generate("x" * (4 << 20))
        client.generate("x" * (3 << 20))


@pytest.mark.parametrize("way", WAYS)
def test_a_response_too_large_breaks_the_stream_and_says_what_to_do(way: str) -> None:
    with (
        asking(way, lambda _: [Step("x" * 100_000)], max_message_bytes=20_000) as (_, client),
        pytest.raises(StreamBroken, match=r"larger than this client takes, .*max_message_bytes"),
    ):
        client.generate("x")


EVENTS = st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), min_size=1))


@given(EVENTS, st.sampled_from(["\n", "\r\n"]), st.data())
def test_events_do_not_depend_on_where_their_bytes_are_cut(
    events: list[str], line_end: str, data: st.DataObject
) -> None:
    raw = "".join(f"data: {event}{line_end}{line_end}" for event in events).encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw)))))
    parser = EventParser()
    found = [
        event for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True) for event in parser.feed(raw[a:b])
    ]
    assert [event.decode() for event in found] == events
    assert parser.size_bytes == 0


def test_events_may_have_comments_other_fields_several_lines_and_no_space() -> None:
    raw = b": hello\nevent: x\ndata:a\ndata: b\nid: 1\n\n\n\nretry: 3\n\ndata:  c\n\n"
    assert list(EventParser().feed(raw)) == [b"a\nb", b" c"]


@given(st.dictionaries(st.sampled_from(["a", "b"]), st.lists(st.text(), min_size=1)))
def test_strings_survive_json(fields: dict[str, list[str]]) -> None:
    arrays = {name: np.array([s.encode() for s in texts], object) for name, texts in fields.items()}
    tensors, error = read_json(write_json(arrays))
    assert error == ""
    assert {name: [b.decode() for b in array] for name, array in tensors.items()} == fields


@pytest.mark.parametrize(
    ("event", "expected"),
    [('{"a": []}', []), ('{"a": 5}', [5]), ('{"a": [1, 2.5]}', [1.0, 2.5]), ('{"a": "x"}', [b"x"])],
)
def test_a_tensor_may_come_as_a_scalar_a_list_or_nothing(event: str, expected: list[Any]) -> None:
    assert read_json(event.encode())[0]["a"].tolist() == expected


@pytest.mark.parametrize("event", ["[1]", "null", "{", '{"a": [[1]]}', '{"a": {}}', '{"a": null}', "\xff"])
def test_what_is_no_event_of_tritons_is_a_value_error(event: str) -> None:
    with pytest.raises(ValueError):
        read_json(event.encode("latin-1"))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error": "no"}', "no"),
        (b'data: {"error": "no"}\n\n', "no"),
        (b"<html>502 Bad Gateway</html>", "502 Bad Gateway"),
        (b"<h1>Error</h1>\n  <p>Error code: 404</p>\n", "Error Error code: 404"),
        (b"", ""),
        (b"\xff", "\ufffd"),
    ],
)
def test_the_words_of_a_failed_response_are_found(body: bytes, words: str) -> None:
    assert error_of(body) == words


METRICS = r"""# HELP nv_inference_count Number of inferences
# TYPE nv_inference_count counter
nv_inference_count{model="tensorrt_llm",version="1"} 14
nv_inference_count{model="tensorrt_llm_bls",version="1"} 8
trtspec_rounds_total 3
trtspec_seconds_bucket{le="+Inf",path="a\\b\"c\n}"} 5 1700000000
odd{} NaN
this is no sample
worse{a="b"} word
"""


def test_metrics_are_read_with_their_labels_and_the_rest_is_passed_over() -> None:
    metrics = parse_metrics(METRICS)
    assert [sample.name for sample in metrics.samples] == [
        *("nv_inference_count", "nv_inference_count", "trtspec_rounds_total", "trtspec_seconds_bucket"),
        "odd",
    ]
    assert metrics.total("nv_inference_count") == 22
    assert metrics.total("nv_inference_count", model="tensorrt_llm") == 14
    assert metrics.total("nothing") == 0
    (bucket,) = metrics.select("trtspec_seconds_bucket", le="+Inf")
    assert (bucket.value, bucket.labels["path"]) == (5.0, 'a\\b"c\n}')


@pytest.mark.parametrize("way", WAYS)
def test_metrics_come_from_the_server(way: str) -> None:
    with serving_http(lambda _: [], metrics=METRICS) as metrics:
        url = f"{metrics.url}/metrics"
        with asking(way, lambda _: [last()], metrics_url=url) as (_, client):
            assert client.metrics().total("trtspec_rounds_total") == 3
    with (
        client_for(way, "http://localhost:1" if "http" in way else "localhost:1") as client,
        pytest.raises(
            ConnectionFailed, match="refused; if the metrics are on another port, pass metrics_url"
        ),
    ):
        client.metrics()


def test_what_does_not_speak_http_is_said_to_be_just_that() -> None:
    with socket.create_server(("localhost", 0)) as listening:

        def answer() -> None:
            with listening.accept()[0] as connection:
                connection.recv(4096)
                # What gRPC begins with: a frame of settings.
                connection.sendall(b"\0\0\x12\4\0\0\0\0\0\0\x03\x7f\xff\xff\xff")

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"http://localhost:{listening.getsockname()[1]}"
        with (
            Client(url, timeout_s=20, retry=Retry(attempts=1)) as client,
            pytest.raises(StreamBroken, match="that is not HTTP"),
        ):
            client.generate("x")
        thread.join()


def test_http_connections_are_used_again() -> None:
    with serving_http(lambda _: [last()]) as server, Client(server.url) as client:
        client.metadata()
        before = server.connections
        for _ in range(5):
            client.generate("x")
        assert server.connections == before + 1


def test_a_connection_that_the_server_closed_while_idle_is_replaced() -> None:
    with serving_http(lambda _: [last("a")]) as server, Client(server.url, retry=Retry(attempts=1)) as client:
        client.generate("x")
        (idle,) = client._transport._pool._idle  # type: ignore[attr-defined]
        # What the server's hanging up looks like from here.
        idle.sock.connected.shutdown(socket.SHUT_RD)
        assert client.generate("x").text == "a"


def test_mocks_serve_both_clients_and_other_models() -> None:
    async def ask() -> tuple[str, list[str]]:
        transport = AsyncMockTransport(lambda request: [Delta("Hel"), Delta("lo")], metrics="a 1")
        async with AsyncClient(transport=transport) as client:
            answer = await client.generate("greet")
            async with client.stream("x") as stream:
                await anext(stream)
            assert (await client.health()).healthy
            assert (await client.metrics()).total("a") == 1
        assert len(transport.requests) == 3
        return answer.text, transport.closed_early

    text, closed_early = asyncio.run(ask())
    assert text == "Hello"
    assert len(closed_early) == 1


@pytest.mark.parametrize("raw", [b"\5\0\0\0abcd", b"\1\0\0", b"\0\0\0\0\xff\xff\xff\xff"])
def test_a_string_that_is_shorter_than_it_says_is_a_broken_stream(raw: bytes) -> None:
    message = service_pb2.ModelInferResponse()
    message.outputs.add(name="text_output", datatype="BYTES", shape=[1, 1])
    message.raw_output_contents.append(raw)
    with pytest.raises(StreamBroken, match="a response that contradicts itself"):
        read(message, Call("host:8001"))


def test_a_body_is_json_that_triton_reads() -> None:
    seed = np.array([[2**64 - 1]], np.uint64)
    body = write_json({"id": "a", "text_input": np.array([[b"x"]], object), "seed": seed})
    assert json.loads(body) == {"id": "a", "text_input": "x", "seed": 2**64 - 1}


def test_a_fault_has_the_servers_words_apart() -> None:
    with ScriptedServer(lambda _: [Fault("failed: engine died")]) as server, Client(server.url) as client:
        with pytest.raises(ServerFailed) as caught:
            client.generate("x")
        assert caught.value.server_message == "failed: engine died"
