"""What holds for every client, plain or async, over gRPC or HTTP, against scripted servers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from four_clients import PATIENCE_S, SOON_S, WAYS, asking, client_for
from scripted_server import Asked, Fault, Step, endless, last
from triton_models_double import ENSEMBLE, LEAF, LLMAPI, NVIDIA_BLS, TRTSPEC, Model

from trtspec.client import (
    CallFailed,
    ConnectionFailed,
    DeadlineExceeded,
    Delta,
    Health,
    InvalidArgument,
    RequestRefused,
    Retry,
    ServerBusy,
    ServerFailed,
    ServerTimes,
    Speculation,
    StreamBroken,
    Usage,
)

pytestmark = pytest.mark.parametrize("way", WAYS)

UNICODE = ("Grüße", "日本で一番高い山", "عاصمة مصر", "🌸🌱👩‍👩‍👧", "a\x00b", "\u2028", '"\\\n')
AT_ONCE = Retry(first_wait_s=0.0)


def talk(asked: Asked) -> Iterator[Step]:
    yield Step("Hel", [5, 6], more={"output_log_probs": [-0.5, -0.25]})
    yield last("lo", [7], prompt_tokens=4, tokens=3, finish="length")


def test_a_whole_answer_holds_everything_the_server_says(way: str) -> None:
    with asking(way, talk) as (server, client):
        answer = client.generate("hello", return_log_probs=True)
    assert (answer.text, answer.token_ids, answer.log_probs) == ("Hello", (5, 6, 7), (-0.5, -0.25))
    assert (answer.finish_reason, answer.stop_reason) == ("length", "")
    assert answer.usage == Usage(4, 3)
    assert answer.speculation == Speculation(3, 8, 6, (3, 2, 1), (3, 3, 2), "")
    assert answer.request_id == server.asked[0].id
    # Triton keeps a request for ever whose HTTP caller hangs up before the first response.
    assert server.asked[0].values["stream"] == ["http" in way]


def test_a_stream_yields_each_delta_before_the_server_makes_the_next(way: str) -> None:
    seen = threading.Event()

    def script(asked: Asked) -> Iterator[Step]:
        yield Step("one ", [1])
        assert seen.wait(PATIENCE_S)
        yield Step("two", [2])

    with asking(way, script) as (server, client), client.stream("count") as stream:
        assert next(stream) == Delta("one ", (1,))
        seen.set()
        assert list(stream) == [Delta("two", (2,))]
        assert stream.result.text == "one two"
        assert stream.request_id == server.asked[0].id
        assert server.asked[0].values["stream"] == [True]


@pytest.mark.parametrize("text", UNICODE)
def test_text_of_any_script_comes_back_as_it_went(way: str, text: str) -> None:
    with asking(way, lambda asked: [Step(asked.prompt)]) as (_, client):
        assert client.generate(text).text == text


def test_every_kind_of_option_arrives(way: str) -> None:
    with asking(way, lambda _: [last()]) as (server, client):
        client.generate(
            "what?",
            max_tokens=7,
            seed=2**64 - 1,
            temperature=1,
            stop_words=["a", "ß"],
            embedding_bias={"x": 2},
            return_log_probs=True,
        )
        client.generate([3, 1, 2])
    values = server.asked[0].values
    assert (values["max_tokens"], values["seed"], values["temperature"]) == ([7], [2**64 - 1], [1.0])
    assert (values["stop_words"], values["return_log_probs"]) == ([b"a", "ß".encode()], [True])
    assert (values["embedding_bias_words"], values["embedding_bias_weights"]) == ([b"x"], [2.0])
    assert server.asked[1].values["input_ids"] == [3, 1, 2]


def test_a_conversation_goes_as_messages_and_a_text_is_tokenized_without_an_answer(way: str) -> None:
    def script(asked: Asked) -> Iterator[Step]:
        yield Step(more={"prompt_ids": [4, 5], "num_output_tokens": 0, "finish_reason": "length"})

    messages = [{"role": "user", "content": "Grüße"}]
    with asking(way, script) as (server, client):
        client.chat(messages, max_tokens=3)
        assert client.tokenize("x") == (4, 5)
        with pytest.raises(InvalidArgument, match=r"^messages: found "):
            client.chat([])
    chat, tokenize = (asked.values for asked in server.asked)
    assert chat["messages"][0].decode() == '[{"role": "user", "content": "Grüße"}]'
    assert (tokenize["max_tokens"], tokenize["return_prompt_ids"]) == ([0], [True])


def test_times_are_the_servers_and_our_own(way: str) -> None:
    names = ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns")
    times = dict(zip(names, (10**15, 10**15 + 10**6, 10**15 + 3 * 10**6, 10**15 + 10**7), strict=True))
    with asking(way, lambda _: [Step("a", [1]), Step(more=times)]) as (_, client):
        timings = client.generate("x").timings
    assert timings.server == ServerTimes(*times.values())
    assert timings.server.engine_s is None
    assert (timings.server.queued_s, timings.server.first_token_s, timings.server.total_s) == (
        *(1e-3, 3e-3),
        1e-2,
    )
    assert 0 < timings.first_delta_s <= timings.total_s
    assert timings.attempts == 1


def test_the_time_of_the_engines_is_told_where_the_server_does(way: str) -> None:
    names = ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns")
    times = {**dict.fromkeys(names, 10**15), "engine_time_ns": 7 * 10**6}
    with asking(way, lambda _: [Step("a", [1]), Step(more=times)]) as (_, client):
        timings = client.generate("x").timings
    assert timings.server.engine_s == 7e-3


@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        (Fault("refused: top_p is 2", "INVALID_ARGUMENT"), RequestRefused, "refused: top_p is 2"),
        (Fault("failed: engine died", "INTERNAL"), ServerFailed, "the server failed: engine died; look into"),
        (Fault("busy: 64 in flight", "UNAVAILABLE"), ServerBusy, "busy: 64 in flight"),
        (Fault("not ready", "UNAVAILABLE"), ConnectionFailed, "no server took the request: not ready"),
    ],
)
def test_an_error_has_its_kind_status_id_and_the_servers_words(
    way: str, fault: Fault, kind: type[CallFailed], message: str
) -> None:
    with asking(way, lambda _: [fault], retry=Retry(attempts=1)) as (server, client):
        with pytest.raises(CallFailed, match=message) as caught:
            client.generate("x")
        error = caught.value
        assert type(error) is kind
        assert (error.status, error.server_message) == (fault.status, fault.message)
        assert error.request_id == server.asked[0].id
        assert error.request_id in str(error)


def test_an_error_in_the_answer_follows_its_deltas_stays_and_is_not_retried(way: str) -> None:
    script = [Step("a"), Step("b"), Fault("busy: no, in the middle of an answer")]
    with asking(way, lambda _: script) as (server, client), client.stream("x") as stream:
        assert [next(stream).text, next(stream).text] == ["a", "b"]
        for read in (lambda: next(stream), lambda: stream.result):
            with pytest.raises(ServerFailed):
                read()
    assert len(server.asked) == 1


def test_a_busy_server_is_asked_again_until_it_answers(way: str) -> None:
    def counted(asked: Asked) -> Iterator[Step | Fault]:
        yield from (Fault("busy: later"),) if len(server.asked) < 3 else (last("here", [1]),)

    with asking(way, counted, retry=AT_ONCE) as (server, client):
        answer = client.generate("x")
        assert (answer.text, answer.timings.attempts) == ("here", 3)
        assert len({asked.id for asked in server.asked}) == 1


def test_retries_end_and_leave_the_last_error(way: str) -> None:
    with asking(way, lambda _: [Fault("busy: later")], retry=AT_ONCE) as (server, client):
        with pytest.raises(ServerBusy):
            client.generate("x")
        assert len(server.asked) == 3


def test_without_a_server_the_error_names_the_address_and_what_to_do(way: str) -> None:
    url = "http://localhost:1" if "http" in way else "localhost:1"
    with client_for(way, url, retry=AT_ONCE) as client:
        with pytest.raises(ConnectionFailed, match=r"^localhost:1: no server .*`trtspec serve`"):
            client.generate("x")
        health = client.health()
        assert (health.live, health.canary, health.healthy) == (False, False, False)


def test_a_deadline_ends_the_servers_work(way: str) -> None:
    with asking(way, endless) as (server, client):
        client.metadata()
        for timeout_s in SOON_S:
            words = f"not whole after {timeout_s:g} s; .* more with timeout_s"
            with pytest.raises(DeadlineExceeded, match=words):
                client.generate("x", timeout_s=timeout_s)
            if server.asked:
                break
        assert server.asked[0].was_cancelled()


def test_closing_a_stream_ends_the_servers_work_and_keeps_what_had_come(way: str) -> None:
    with asking(way, endless) as (server, client):
        with client.stream("x") as stream:
            first = next(stream)
        assert server.asked[0].was_cancelled()
        assert stream.result.finish_reason == "cancelled"
        assert stream.result.token_ids[:1] == first.token_ids
        assert list(stream) == []


def test_a_stream_that_was_closed_before_it_began_is_over(way: str) -> None:
    with asking(way, endless) as (_, client):
        stream = client.stream("x")
        stream.close()
        assert list(stream) == []
        assert stream.result.finish_reason == "cancelled"


def test_leaving_the_client_ends_what_is_under_way(way: str) -> None:
    with asking(way, endless) as (server, client):
        stream = client.stream("x")
        next(stream)
        client.close()
        assert server.asked[0].was_cancelled()
        with pytest.raises(StreamBroken):
            list(stream)
        with pytest.raises(InvalidArgument, match=r"^client: found it closed"):
            client.generate("x")


def test_many_answers_come_in_the_order_of_their_prompts(way: str) -> None:
    under_way, most, lock = [0], [0], threading.Lock()

    def echo(asked: Asked) -> Iterator[Step]:
        with lock:
            under_way[0] += 1
            most[0] = max(most[0], under_way[0])
        time.sleep(0.01 * (int(asked.prompt) % 3))
        with lock:
            under_way[0] -= 1
        yield last(asked.prompt)

    prompts = [str(number) for number in range(20)]
    seen: dict[int, str] = {}
    with asking(way, echo) as (_, client):
        answers = client.generate_many(
            prompts, concurrency=4, on_answer=lambda n, a: seen.update({n: a.text}), max_tokens=5
        )
    assert [answer.text for answer in answers] == prompts
    assert [seen[n] for n in range(20)] == prompts
    assert most[0] <= 4


def test_one_failure_of_many_cancels_the_others(way: str) -> None:
    def script(asked: Asked) -> Iterator[Step | Fault]:
        if asked.prompt == "bad":
            time.sleep(0.05)
            yield Fault("refused: bad")
        else:
            yield from endless(asked)

    with asking(way, script) as (server, client):
        with pytest.raises(RequestRefused):
            client.generate_many(["a", "b", "bad", "c", "d", "e"], concurrency=3)
        for asked in server.asked:
            assert asked.prompt == "bad" or asked.was_cancelled()
        with pytest.raises(InvalidArgument, match="concurrency: found 0"):
            client.generate_many(["a"], concurrency=0)


def test_health_asks_for_a_token(way: str) -> None:
    with asking(way, lambda _: [last("a", [1])]) as (server, client):
        assert client.health() == Health(live=True, ready=True, model_ready=True, canary=True)
        assert server.asked[0].values["max_tokens"] == [1]
        assert client.health(canary=False).canary is None
        assert client.is_ready()
        assert len(server.asked) == 1


def test_health_sees_a_model_whose_process_has_died(way: str) -> None:
    died = "Stub process 'tensorrt_llm_bls_0_0' is not healthy."
    with asking(way, lambda _: [Fault(died)]) as (_, client):
        health = client.health()
        assert (health.ready, health.model_ready, health.canary, health.healthy) == (True, True, False, False)
        assert died in health.detail


def test_health_sees_a_model_that_hangs(way: str) -> None:
    seen = threading.Event()

    def hang(asked: Asked) -> Iterator[Step]:
        seen.wait(2 * PATIENCE_S)
        yield from ()

    with asking(way, hang) as (_, client):
        for timeout_s in SOON_S:
            health = client.health(timeout_s=timeout_s)
            assert not health.canary
            if health.live:
                break
        seen.set()
        assert (health.live, health.canary) == (True, False)


def test_metadata_is_asked_once_and_says_what_is_served(way: str) -> None:
    with asking(way, lambda _: [last()]) as (_, client):
        metadata = client.metadata()
        assert (metadata.server_version, metadata.model) == ("2.51.0", "tensorrt_llm_bls")
        assert metadata.inputs["max_tokens"].shape == (-1, 1)
        assert metadata.is_trtspec
        assert client.metadata() is metadata


@pytest.mark.parametrize(
    ("models", "chosen"),
    [
        ((TRTSPEC, LEAF), "tensorrt_llm_bls"),
        ((NVIDIA_BLS, ENSEMBLE, LEAF), "tensorrt_llm_bls"),
        ((ENSEMBLE, LEAF), "ensemble"),
        ((LLMAPI,), "tensorrt_llm"),
    ],
)
def test_the_public_model_of_each_repository_is_found(
    way: str, models: tuple[Model, ...], chosen: str
) -> None:
    with asking(way, lambda _: [Step("a")], models=models) as (server, client):
        assert client.generate("x").text == "a"
        assert server.asked[0].model == chosen
        assert client.is_ready()


def test_without_a_model_to_ask_the_error_says_which_were_tried(way: str) -> None:
    with (
        asking(way, lambda _: [], models=()) as (_, client),
        pytest.raises(RequestRefused, match="expected one of tensorrt_llm_bls, ensemble, tensorrt_llm; pass"),
    ):
        client.generate("x")


def test_a_model_may_be_named(way: str) -> None:
    with asking(way, lambda _: [Step("a")], models=(TRTSPEC, ENSEMBLE), model="ensemble") as (server, client):
        client.generate("x")
        assert server.asked[0].model == "ensemble"


@pytest.mark.parametrize(
    ("model", "options", "missing"),
    [
        (ENSEMBLE, {"num_draft_tokens": 3}, "num_draft_tokens"),
        (NVIDIA_BLS, {"return_prompt_ids": True}, "return_prompt_ids"),
        (
            LLMAPI,
            {"min_tokens": 3, "bad_words": "a", "return_log_probs": True},
            "bad_words, min_tokens, return_log_probs",
        ),
    ],
)
def test_what_a_model_cannot_do_is_refused_by_name_before_anything_is_sent(
    way: str, model: Model, options: dict[str, Any], missing: str
) -> None:
    with asking(way, lambda _: [], models=(model,)) as (server, client):
        with pytest.raises(InvalidArgument, match=rf"^{model.name}: found no input for {missing}; "):
            client.generate("x", **options)
        with pytest.raises(InvalidArgument, match="found no input for input_ids"):
            client.generate([1, 2])
        assert server.asked == []


def test_nvidias_llmapi_model_is_asked_in_its_own_names_and_ranks(way: str) -> None:
    reply = {"finish_reason": "stop", "stop_reason": "None", "total_draft_tokens": 9}
    reply |= {"total_accepted_draft_tokens": 4}

    def script(asked: Asked) -> Iterator[Step]:
        yield Step("answer", more=reply)

    with asking(way, script, models=(LLMAPI,)) as (server, client):
        options = {"temperature": 0.5, "seed": 3, "stop_words": ["a", "b"], "return_perf_metrics": True}
        answer = client.generate("x", max_tokens=9, **options)
        with client.stream("x") as stream:
            assert [delta.text for delta in stream] == ["answer"]
    asked = server.asked[0]
    assert asked.tensors["text_input"] == ("BYTES", (1,))
    assert asked.tensors["sampling_param_stop"] == ("BYTES", (2,))
    assert asked.values["sampling_param_max_tokens"] == [9]
    assert asked.values["sampling_param_exclude_input_from_output"] == [True]
    assert asked.values["return_finish_reason"] == [True]
    # It is not decoupled, so it may not be asked to stream.
    assert [asked.values["streaming"] for asked in server.asked] == [[False], [False]]
    assert (answer.text, answer.finish_reason, answer.stop_reason) == ("answer", "stop", "")
    assert answer.speculation == Speculation(rounds=0, proposed=9, accepted=4)


def test_nvidias_repeated_log_probs_count_once_and_only_when_asked_for(way: str) -> None:
    pieces = [
        Step("a", more={"output_log_probs": [-0.5]}),
        Step("b", more={"output_log_probs": [-0.5, -1.0]}),
    ]
    with asking(way, lambda _: pieces, models=(NVIDIA_BLS,)) as (server, client):
        assert client.generate("x", return_log_probs=True).log_probs == (-0.5, -1.0)
        assert client.generate("x").log_probs == ()
        assert server.asked[0].values["return_num_output_tokens"] == [True]


def test_text_that_a_model_accumulates_comes_as_deltas(way: str) -> None:
    pieces = [Step("Gr"), Step("Grü"), Step("Grüße")]
    for model in (
        replace(NVIDIA_BLS, parameters={"accumulate_tokens": "true"}),
        replace(LLMAPI, decoupled=True),
    ):
        with asking(way, lambda _: pieces, models=(model,)) as (_, client), client.stream("x") as stream:
            assert [delta.text for delta in stream] == ["Gr", "ü", "ße"]
            assert stream.result.text == "Grüße"


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), "5"])
def test_a_time_limit_that_is_none_is_refused(way: str, timeout_s: Any) -> None:
    with asking(way, endless) as (server, client):
        with pytest.raises(InvalidArgument, match=r"^timeout_s: found .*; math.inf is no limit"):
            client.generate("x", timeout_s=timeout_s)
        assert server.asked == []


@pytest.mark.parametrize("timeout_s", [np.float32(20), np.int64(20), 20])
def test_a_time_limit_may_be_any_number(way: str, timeout_s: Any) -> None:
    with asking(way, lambda _: [last("a")], timeout_s=timeout_s) as (_, client):
        assert client.generate("x").text == "a"
        assert client.health(timeout_s=timeout_s).healthy


def test_many_calls_may_share_a_client(way: str) -> None:
    def echo(asked: Asked) -> Iterator[Step]:
        yield from (Step(letter) for letter in asked.prompt)

    prompts = [f"prompt {number}" for number in range(60)]
    with asking(way, echo) as (_, client):
        answers = client.generate_many(prompts, concurrency=30)
    assert [answer.text for answer in answers] == prompts
    assert len({answer.request_id for answer in answers}) == 60
