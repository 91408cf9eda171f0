"""The client over real gRPC, against a scripted server."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from four_clients import SOON_S
from scripted_server import Asked, Fault, ScriptedServer, Step, endless, last

from trtspec.client import (
    CallFailed,
    Client,
    ConnectionFailed,
    DeadlineExceeded,
    Delta,
    Health,
    RequestRefused,
    ServerBusy,
    ServerFailed,
    Speculation,
    StreamBroken,
    Usage,
)

UNICODE = ("Grüße", "日本で一番高い山", "عاصمة مصر", "🌸🌱👩‍👩‍👧", "e\u0301", "a\x00b", "\u2028")


@pytest.fixture
def killable_server() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address and the process of a server that serves an endless answer."""
    script = Path(__file__).with_name("scripted_server.py")
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield process.stdout.readline().strip(), process
        finally:
            process.kill()


def test_a_delta_is_there_before_the_server_makes_the_next() -> None:
    seen = threading.Event()

    def script(asked: Asked) -> Iterator[Step]:
        yield Step("one ", [1])
        assert seen.wait(20)
        yield Step("two", [2])

    with ScriptedServer(script) as server, Client(server.url) as client, client.stream("count") as stream:
        assert next(stream) == Delta("one ", (1,))
        seen.set()
        assert list(stream) == [Delta("two", (2,))]
        assert stream.result.text == "one two"


def test_a_whole_answer_holds_everything_the_server_says() -> None:
    def script(asked: Asked) -> Iterator[Step]:
        yield Step("Hel", [5, 6], more={"output_log_probs": [-0.5, -0.25]})
        yield last("lo", [7], prompt_tokens=4, tokens=3, finish="length")

    with ScriptedServer(script) as server, Client(server.url) as client:
        answer = client.generate("hello", return_log_probs=True)
    assert (answer.text, answer.token_ids, answer.log_probs) == ("Hello", (5, 6, 7), (-0.5, -0.25))
    assert (answer.finish_reason, answer.stop_reason) == ("length", "")
    assert answer.usage == Usage(4, 3)
    assert answer.speculation == Speculation(3, 8, 6, (3, 2, 1), (3, 3, 2), "")
    assert answer.request_id == server.asked[0].id


@pytest.mark.parametrize("final", [False, True])
def test_a_last_response_may_be_empty_or_carry_the_last_tensors(final: bool) -> None:
    with ScriptedServer(lambda _: [Step("all", [1], final)]) as server, Client(server.url) as client:
        assert client.generate("x").text == "all"


def test_the_wire_carries_what_tritons_protocol_asks_for() -> None:
    with ScriptedServer(lambda _: [last()]) as server, Client(server.url) as client:
        client.generate("what?", max_tokens=7, seed=2**64 - 1, temperature=0.5, stop_words=["a", "ß"])
    asked = server.asked[0]
    assert asked.model == "tensorrt_llm_bls"
    # With it Triton would end a failed stream with a status, and crash now and then.
    assert "triton_grpc_error" not in asked.metadata
    assert asked.tensors == {
        "text_input": ("BYTES", (1, 1)),
        "max_tokens": ("INT32", (1, 1)),
        "seed": ("UINT64", (1, 1)),
        "temperature": ("FP32", (1, 1)),
        "stop_words": ("BYTES", (1, 2)),
        "stream": ("BOOL", (1, 1)),
        "exclude_input_in_output": ("BOOL", (1, 1)),
    }
    assert asked.values["seed"] == [2**64 - 1]
    assert asked.values["stop_words"] == [b"a", "ß".encode()]
    assert (asked.values["stream"], asked.values["exclude_input_in_output"]) == ([False], [True])


@pytest.mark.parametrize("text", UNICODE)
def test_text_of_any_script_comes_back_as_it_went(text: str) -> None:
    with ScriptedServer(lambda asked: [Step(asked.prompt)]) as server, Client(server.url) as client:
        assert client.generate(text).text == text


def test_an_answer_larger_than_grpcs_own_limit_arrives() -> None:
    with ScriptedServer(lambda _: [Step("x" * 5_000_000)]) as server, Client(server.url) as client:
        assert len(client.generate("more").text) == 5_000_000


@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        (Fault("max_tokens is 0", "INVALID_ARGUMENT"), RequestRefused, "refused: max_tokens is 0"),
        (Fault("unknown model 'x'"), RequestRefused, "refused: unknown model 'x'"),
        (Fault("refused: top_p is 2"), RequestRefused, "refused: top_p is 2"),
        (Fault("failed: engine died"), ServerFailed, "the server failed: engine died; look into its log"),
        (Fault("engine died", "INTERNAL"), ServerFailed, "the server failed: engine died; look into its log"),
        (Fault("busy: 64 requests are in flight"), ServerBusy, "busy: 64 requests are in flight"),
        (Fault("not ready", "UNAVAILABLE"), ConnectionFailed, "no server took the request: not ready"),
    ],
)
def test_an_error_before_the_answer_has_its_kind_status_and_id(
    fault: Fault, kind: type[CallFailed], message: str
) -> None:
    with ScriptedServer(lambda _: [fault]) as server, Client(server.url) as client:
        with pytest.raises(CallFailed, match=message) as caught:
            client.generate("x")
        assert type(caught.value) is kind
        assert (caught.value.status, caught.value.request_id) == (fault.status, server.asked[0].id)
        assert server.url in str(caught.value)
        assert server.asked[0].id in str(caught.value)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault("engine died", "INTERNAL"), ServerFailed),
        (Fault("engine died"), ServerFailed),
        (Fault("gone", "UNAVAILABLE"), StreamBroken),
    ],
)
def test_an_error_in_the_answer_follows_its_deltas_and_stays(fault: Fault, kind: type[CallFailed]) -> None:
    with (
        ScriptedServer(lambda _: [Step("a"), Step("b"), fault]) as server,
        Client(server.url) as client,
        client.stream("x") as stream,
    ):
        assert [next(stream).text, next(stream).text] == ["a", "b"]
        for read in (lambda: next(stream), lambda: stream.result):
            with pytest.raises(CallFailed) as caught:
                read()
            assert type(caught.value) is kind


def test_a_stream_without_a_last_response_is_broken() -> None:
    with (
        ScriptedServer(lambda _: [Step("half")], ends=False) as server,
        Client(server.url) as client,
        pytest.raises(StreamBroken, match="ended the stream without a last response"),
    ):
        client.generate("x")


def test_a_deadline_ends_the_servers_work() -> None:
    with ScriptedServer(endless) as server, Client(server.url) as client:
        for timeout_s in SOON_S:
            words = f"not whole after {timeout_s:g} s; .* more with timeout_s"
            with pytest.raises(DeadlineExceeded, match=words) as caught:
                client.generate("x", timeout_s=timeout_s)
            assert caught.value.status == "DEADLINE_EXCEEDED"
            if server.asked:
                break
        assert server.asked[0].was_cancelled()


def test_a_client_has_a_deadline_for_calls_that_have_none() -> None:
    with (
        ScriptedServer(endless) as server,
        Client(server.url, timeout_s=0.2) as client,
        pytest.raises(DeadlineExceeded),
    ):
        client.generate("x")


def test_closing_a_stream_ends_the_servers_work_and_keeps_what_had_come() -> None:
    with ScriptedServer(endless) as server, Client(server.url) as client:
        with client.stream("x") as stream:
            first = next(stream)
        assert server.asked[0].was_cancelled()
        assert stream.result.finish_reason == "cancelled"
        assert stream.result.token_ids[:1] == first.token_ids
        assert list(stream) == []


def test_another_thread_may_close_a_stream_that_waits() -> None:
    def silent(asked: Asked) -> Iterator[Step]:
        asked.over.wait(20)
        yield from ()

    with ScriptedServer(silent) as server, Client(server.url) as client:
        stream = client.stream("x")
        with ThreadPoolExecutor(1) as pool:
            result = pool.submit(lambda: stream.result)
            while not server.asked:
                threading.Event().wait(0.01)
            stream.close()
            assert result.result(20).finish_reason == "cancelled"
        assert server.asked[0].was_cancelled()


def test_leaving_the_client_ends_what_is_under_way() -> None:
    with ScriptedServer(endless) as server:
        with Client(server.url) as client:
            stream = client.stream("x")
            next(stream)
        assert server.asked[0].was_cancelled()
        with pytest.raises(StreamBroken):
            list(stream)


def test_a_whole_answer_is_not_cancelled() -> None:
    with ScriptedServer(lambda _: [last("all", [1])]) as server, Client(server.url) as client:
        client.generate("x")
        assert not server.asked[0].was_cancelled()


def test_a_server_killed_in_the_middle_breaks_the_stream(
    killable_server: tuple[str, subprocess.Popen[str]],
) -> None:
    url, process = killable_server
    with Client(url) as client, client.stream("x") as stream:
        next(stream)
        process.send_signal(signal.SIGKILL)
        with pytest.raises(StreamBroken, match="the answer broke off") as caught:
            list(stream)
        assert caught.value.status == "UNAVAILABLE"
        with pytest.raises(ConnectionFailed):
            client.generate("x")


def test_without_a_server_the_error_names_the_address_and_what_to_do() -> None:
    message = r"^localhost:1: no server .*`trtspec serve`"
    with Client("localhost:1") as client, pytest.raises(ConnectionFailed, match=message):
        client.generate("x")


def test_many_threads_may_share_a_client() -> None:
    def echo(asked: Asked) -> Iterator[Step]:
        yield from (Step(letter) for letter in asked.prompt)

    prompts = [f"prompt {number}" for number in range(100)]
    with ScriptedServer(echo) as server, Client(server.url) as client, ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda prompt: client.generate(prompt), prompts))
    assert [answer.text for answer in answers] == prompts
    assert len({answer.request_id for answer in answers}) == 100


def test_health_tells_server_and_model_apart() -> None:
    with ScriptedServer(lambda _: [last()]) as server, Client(server.url) as client:
        assert client.health() == Health(live=True, ready=True, model_ready=True, canary=True)
        assert client.is_ready()
    with ScriptedServer(endless, ready=False) as server, Client(server.url) as client:
        assert client.health(canary=False) == Health(live=True, ready=True, model_ready=False)
        assert not client.is_ready()
    with Client("localhost:1") as client:
        assert client.health(canary=False) == Health()
        health = client.health()
        assert (health.live, health.canary, health.healthy) == (False, False, False)
        assert health.detail.startswith("localhost:1: no server")
        assert not client.is_ready()


def test_a_server_that_comes_up_later_is_noticed() -> None:
    with ScriptedServer(endless) as server:
        port = int(server.url.split(":")[1])
    with Client(server.url) as client:
        assert not client.is_ready()
        with ScriptedServer(endless, port=port):
            assert _becomes(client.is_ready)


def _becomes(condition: Callable[[], bool]) -> bool:
    return any(condition() or threading.Event().wait(0.05) for _ in range(400))
