"""A server with OpenAI's API as a target: what real ones send, and how they fail."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import ssl
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from four_clients import PATIENCE_S
from hypothesis import given
from hypothesis import strategies as st
from openai_double import (
    MODEL,
    Cut,
    Hang,
    HangUp,
    OpenAiDouble,
    Refusal,
    chat_chunk,
    chunk,
    serving_openai,
    usage,
)

from trtspec.client import (
    CallFailed,
    ConnectionFailed,
    DeadlineExceeded,
    InvalidArgument,
    RequestRefused,
    ServerBusy,
    ServerFailed,
    StreamBroken,
    Tls,
)
from trtspec.client._events import EventParser
from trtspec.client._options import Prompt
from trtspec.client.bench.openai import OpenAiTarget
from trtspec.client.bench.openai_call import API_KEY
from trtspec.client.bench.openai_stream import SaidError, Transcript, error_words, words_of_body
from trtspec.client.bench.targets import Ending, Piece

KEY = "sk-secret-0123456789"
WHOLE = ("Hello", [chunk("Hel"), chunk("lo", finish="stop"), usage(3, 2), "[DONE]"])


def ask(target: OpenAiTarget, prompt: Prompt = "Hi", **options: Any) -> list[Piece | Ending]:
    """All that a target gives for a prompt, from an event loop of its own."""

    async def all_of_it() -> list[Piece | Ending]:
        try:
            return [item async for item in target.ask(prompt, max_tokens=8, **options)]
        finally:
            await target.close()

    return asyncio.run(all_of_it())


def answer(steps: list[Any], prompt: Prompt = "Hi", **options: Any) -> list[Piece | Ending]:
    """What a target makes of a server's events."""
    with serving_openai(lambda asked: steps) as server:
        return ask(OpenAiTarget(server.url, **options), prompt)


def test_an_answer_is_its_pieces_and_then_what_the_server_counted() -> None:
    assert answer(WHOLE[1]) == [
        Piece("Hel"),
        Piece("lo"),
        Ending(tokens=2, tokens_from="usage", prompt_tokens=3, finish_reason="stop"),
    ]


@pytest.mark.parametrize(
    ("prompt", "path", "field"),
    [
        ("Hi", "/v1/completions", {"prompt": "Hi"}),
        ([5, 6], "/v1/completions", {"prompt": [5, 6]}),
        (
            [{"role": "user", "content": "日本 \ud800"}],
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "日本 \ud800"}]},
        ),
    ],
)
def test_a_request_is_greedy_and_asks_for_usage(prompt: Prompt, path: str, field: dict[str, Any]) -> None:
    with serving_openai(lambda asked: WHOLE[1]) as server:
        ask(OpenAiTarget(server.url), prompt)
    (asked,) = server.asked
    options = {"stream": True, "stream_options": {"include_usage": True}}
    assert asked.path == path
    assert asked.body == {"model": MODEL, "max_tokens": 8, "temperature": 0, **options, **field}
    assert "authorization" not in asked.headers


def test_a_chat_begins_with_its_first_text_not_with_its_role() -> None:
    steps = [
        chat_chunk(role="assistant", content=""),
        chat_chunk(role="assistant", content=None),
        chat_chunk(reasoning_content="Hm."),
        chat_chunk(content="Yes", reasoning_content=None),
        chat_chunk("length"),
        usage(9, 4),
        "[DONE]",
    ]
    assert answer(steps, [{"role": "user", "content": "Hi"}]) == [
        Piece("Hm."),
        Piece("Yes"),
        Ending(tokens=4, tokens_from="usage", prompt_tokens=9, finish_reason="length"),
    ]


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([b": ping - 2026\n\n", *WHOLE[1][:1], b":\n\n", *WHOLE[1][1:]], id="comments"),
        pytest.param(WHOLE[1][:-1], id="no [DONE], as ik_llama.cpp"),
        pytest.param([chunk("Hel"), chunk("lo"), usage(3, 2), "[DONE]"], id="no finish_reason"),
        pytest.param(
            [chunk("Hel"), chunk("lo", finish="stop", usage=json.loads(usage(3, 2))["usage"])],
            id="usage beside text",
        ),
        pytest.param([*WHOLE[1][:3], b"data: [DONE]\n"], id="no empty line at the end"),
        pytest.param(
            [b"event: message\r\nid: 1\r\ndata:%b\r\n\r\n" % step.encode() for step in WHOLE[1]], id="\\r\\n"
        ),
        pytest.param(
            [
                '{"choices":[{"index":0,"text":"Hello"}],"object":"text_completion"}',
                '{"choices":[{"finish_reason":"length","index":0,"text":""}],'
                '"usage":{"completion_tokens":2,"prompt_tokens":3,"total_tokens":5}}',
            ],
            id="as transformers serve",
        ),
        pytest.param(
            [chunk("Hel", usage=None), chunk("lo", finish="stop"), usage(3, 2)], id="usage null, as vLLM"
        ),
    ],
)
def test_streams_that_differ_in_form_say_the_same(steps: list[Any]) -> None:
    *pieces, ending = answer(steps)
    assert "".join(piece.text for piece in pieces if isinstance(piece, Piece)) == WHOLE[0]
    assert isinstance(ending, Ending)
    assert (ending.tokens, ending.prompt_tokens) == (2, 3)


def test_several_tokens_in_a_chunk_are_one_piece_of_unknown_size() -> None:
    first, ending = answer([chunk("one two three", finish="stop"), usage(1, 3)])
    assert first == Piece("one two three", tokens=None)
    assert isinstance(ending, Ending)
    assert ending.tokens == 3


@given(cuts=st.lists(st.integers(1, 400), max_size=20))
def test_where_the_bytes_are_cut_does_not_matter(cuts: list[int]) -> None:
    texts = ["naïve ", "日本", " 🌸"]
    said = "".join(f"data: {chunk(text)}\n\n" for text in texts).encode()
    ends = sorted({cut for cut in cuts if cut < len(said)})
    pieces = [said[a:b] for a, b in zip([0, *ends], [*ends, len(said)], strict=True)]
    parser, transcript = EventParser(), Transcript()
    assert [transcript.take(data) for piece in pieces for data in parser.feed(piece)] == texts
    assert transcript.text == "".join(texts)


def test_without_usage_a_tokenizer_counts_and_the_ending_says_so() -> None:
    found = answer([chunk("a b c", finish="stop"), "[DONE]"], count_tokens=lambda text: len(text.split()))
    assert found[-1] == Ending(tokens=3, tokens_from="tokenizer", finish_reason="stop")


def test_usage_goes_before_a_tokenizer() -> None:
    found = answer(WHOLE[1], count_tokens=lambda text: 99)
    assert found[-1] == Ending(tokens=2, tokens_from="usage", prompt_tokens=3, finish_reason="stop")


@pytest.mark.parametrize("tokens", [0, -1, 10**30, True])
def test_a_usage_that_cannot_be_is_none(tokens: int) -> None:
    events = [chunk("a b c", finish="stop"), usage(3, tokens), "[DONE]"]
    found = answer(events, count_tokens=lambda text: len(text.split()))
    assert found[-1] == Ending(tokens=3, tokens_from="tokenizer", prompt_tokens=3, finish_reason="stop")
    with pytest.raises(StreamBroken, match="the answer has no usage"):
        answer(events)


def test_an_answer_without_text_has_no_tokens() -> None:
    found = answer([chunk("", finish="stop"), usage(3, 0), "[DONE]"])
    assert found == [Ending(tokens=0, tokens_from="usage", prompt_tokens=3, finish_reason="stop")]


def test_json_that_is_nested_too_deeply_is_no_protocol() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        Transcript().take(b"[" * 100_000)
    assert words_of_body(b"[" * 100_000).startswith("[[")


def test_without_usage_and_tokenizer_there_is_no_speed() -> None:
    with pytest.raises(StreamBroken, match=r"the answer has no usage, expected one.*give a pair"):
        answer([chunk("a", finish="stop"), "[DONE]"])


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ({"error": {"message": "CUDA out\nof memory", "code": 500}}, "CUDA out of memory"),
        ({"object": "error", "message": "engine died", "code": 500}, "engine died"),
        ({"error": "Request failed during generation", "error_type": "generation"}, "Request failed during"),
    ],
)
def test_an_error_inside_of_a_stream_is_the_servers(error: dict[str, Any], words: str) -> None:
    with pytest.raises(ServerFailed, match=f"the server failed: {words}"):
        answer([chunk("Hel"), json.dumps(error), "[DONE]"])


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([chunk("Hel"), Cut()], "the answer broke off: "),
        ([chunk("Hel"), b"data: {", Cut()], "the answer broke off: "),
        ([chunk("Hel")], "the answer broke off: found its end without a finish_reason"),
        ([], "the answer broke off: found its end without"),
        (["{no json"], "found no chunk of a stream .*, expected OpenAI's protocol"),
        (["[1]"], r"found no chunk of a stream \(list in place of an object\)"),
        (['{"choices": 1}'], "found no chunk"),
        (['{"choices": [{"text": 5}]}'], "found no chunk"),
        (['{"choices": [{"delta": 5}]}'], "found no chunk"),
    ],
)
def test_an_answer_that_is_not_whole_is_an_error(steps: list[Any], message: str) -> None:
    with pytest.raises(StreamBroken, match=message):
        answer(steps)


@pytest.mark.parametrize(
    ("refusal", "kind", "message"),
    [
        (
            Refusal(400, '{"object":"error","message":"max_tokens is too large"}'),
            RequestRefused,
            "status 400: max_tokens is",
        ),
        (
            Refusal(422, '{"detail":[{"loc":["body"],"msg":"Field required"}]}'),
            RequestRefused,
            "422: .*Field required",
        ),
        (
            Refusal(404, '{"detail":"Not Found"}'),
            RequestRefused,
            r"404: Not Found; is there /v1/completions, and",
        ),
        (Refusal(403, "Forbidden"), RequestRefused, f"put the server's key into {API_KEY}"),
        (
            Refusal(429, '{"error":{"message":"Model is overloaded"}}'),
            ServerBusy,
            "429: Model is overloaded; ask for",
        ),
        (Refusal(503, '{"error":{"message":"Loading model"}}'), ServerBusy, "503: Loading model"),
        (Refusal(500, "<html>oops\n</html>"), ServerFailed, "500: <html>oops </html>; look into"),
        (Refusal(502), ServerFailed, "502: Bad Gateway"),
        (
            Refusal(308, headers={"Location": "https://there/v1?key=x"}),
            RequestRefused,
            "sends to https://there/v1: give",
        ),
    ],
)
def test_a_refusal_says_why_and_what_to_do(refusal: Refusal, kind: type[CallFailed], message: str) -> None:
    with serving_openai(lambda asked: refusal) as server, pytest.raises(kind, match=message):
        ask(OpenAiTarget(server.url, name="theirs"))


def test_a_server_that_does_not_stream_is_refused() -> None:
    whole = serving_openai(lambda asked: [b"{}"], media_type="application/json")
    with whole as server, pytest.raises(StreamBroken, match="found application/json, expected text/event"):
        ask(OpenAiTarget(server.url))


def test_no_server_is_an_error_that_asks_for_one() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and does not listen
        target = OpenAiTarget(f"http://127.0.0.1:{bound.getsockname()[1]}")
        with pytest.raises(ConnectionFailed, match=r"no server took the request: .*; is it running there"):
            ask(target)


@pytest.mark.parametrize("steps", [WHOLE[1], [chunk("Hel"), json.dumps({"error": "no"})]])
def test_a_connection_that_is_not_to_be_kept_is_closed(steps: list[str]) -> None:
    with serving_openai(lambda asked: steps, keep_alive=False) as server:
        for _ in range(2):
            with suppress(ServerFailed):
                ask(OpenAiTarget(server.url))
    gc.collect()  # what was left open warns now, and fails the test
    assert server.connections == 2  # each was kept after /models


def test_a_server_that_says_nothing_is_given_up() -> None:
    with (
        serving_openai(lambda asked: [chunk("a"), Hang()]) as server,
        pytest.raises(DeadlineExceeded, match=r"nothing came for 0\.2 s"),
    ):
        ask(OpenAiTarget(server.url, timeout_s=0.2))


def described(target: OpenAiTarget) -> dict[str, str]:
    async def description() -> dict[str, str]:
        try:
            return await target.describe()
        finally:
            await target.close()

    return asyncio.run(description())


def test_the_model_is_the_only_one_that_is_served() -> None:
    with serving_openai(lambda asked: WHOLE[1]) as server:
        found = described(OpenAiTarget(f"{server.url}/v1/"))
    assert found == {"server": f"OpenAI's API at {server.url}/v1", "model": MODEL}


@pytest.mark.parametrize(
    ("models", "kind", "message"),
    [
        (("a", "b"), InvalidArgument, "serves a, b, expected one model; name the one"),
        ((), InvalidArgument, "serves no model"),
        ('{"models": []}', StreamBroken, "found no list at /models; name the model"),
        ("<html>", StreamBroken, "found no list at /models"),
    ],
)
def test_a_model_that_is_not_clear_has_to_be_named(models: Any, kind: type[Exception], message: str) -> None:
    with serving_openai(lambda asked: WHOLE[1], models=models) as server, pytest.raises(kind, match=message):
        ask(OpenAiTarget(server.url))


def test_a_named_model_is_asked_for_and_refused_where_there_is_none() -> None:
    with serving_openai(lambda asked: WHOLE[1], models=("a", "b")) as server:
        ask(OpenAiTarget(server.url, model="b"))
        with pytest.raises(RequestRefused, match="The model `c` does not exist"):
            ask(OpenAiTarget(server.url, model="c"))
    assert [asked.body["model"] for asked in server.asked] == ["b", "c"]


def test_a_key_is_sent_and_never_shown() -> None:
    with serving_openai(lambda asked: WHOLE[1], key=KEY) as server:
        target = OpenAiTarget(server.url, api_key=KEY)
        ask(target)
        assert KEY not in repr(vars(target)) + repr(described(target))
        with pytest.raises(
            RequestRefused, match=r"401: Incorrect API key provided: Bearer \[key\]; put"
        ) as caught:
            ask(OpenAiTarget(server.url, api_key=f"{KEY}-old"))
    assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"
    assert KEY not in f"{caught.value} {caught.value.server_message}"


async def three_answers(server: OpenAiDouble) -> None:
    target = OpenAiTarget(server.url, model=MODEL)
    for _ in range(3):
        _ = [item async for item in target.ask("Hi", max_tokens=8)]
    await target.close()


def test_a_connection_is_kept_for_the_next_request() -> None:
    with serving_openai(lambda asked: WHOLE[1]) as server:
        asyncio.run(three_answers(server))
    assert (server.connections, len(server.asked)) == (1, 3)


def test_a_connection_that_the_server_closed_meanwhile_is_replaced() -> None:
    with serving_openai(lambda asked: [*WHOLE[1], HangUp()]) as server:
        asyncio.run(three_answers(server))
    assert (server.connections, len(server.asked)) == (3, 3)


def test_an_answer_that_is_closed_early_ends_the_servers_work() -> None:
    async def first_piece(server: OpenAiDouble) -> Piece | Ending:
        target = OpenAiTarget(server.url)
        answer = target.ask("Hi", max_tokens=8)
        first = await anext(answer)
        await answer.aclose()
        await asyncio.to_thread(server.hung_up.wait, 20)
        await target.close()
        return first

    with serving_openai(lambda asked: [chunk("a"), Hang()]) as server:
        assert asyncio.run(first_piece(server)) == Piece("a")
        assert server.hung_up.is_set()


def test_a_run_that_is_stopped_before_the_model_is_known_waits_for_no_server() -> None:
    async def stopped(server: OpenAiDouble) -> None:
        target = OpenAiTarget(server.url, timeout_s=2 * PATIENCE_S)
        asking = asyncio.create_task(target.describe())
        await asyncio.to_thread(server.asked_for_models.wait, PATIENCE_S)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await asyncio.to_thread(server.hung_up.wait, PATIENCE_S)
        await target.close()

    with serving_openai(lambda asked: [], models=Hang()) as server:
        asyncio.run(stopped(server))
        assert server.hung_up.is_set()


def test_a_draft_length_cannot_be_asked_for() -> None:
    target = OpenAiTarget("http://localhost")
    assert not target.takes_draft_tokens
    with pytest.raises(InvalidArgument, match="found a draft length, expected none"):
        ask(target, num_draft_tokens=4)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("http://a", "http://a:80/v1"),
        ("https://a/", "https://a:443/v1"),
        ("http://a:8000/v1/", "http://a:8000/v1"),
        ("http://[::1]:8080/api/v2", "http://[::1]:8080/api/v2"),
    ],
)
def test_an_address_may_leave_out_port_and_path(url: str, name: str) -> None:
    assert OpenAiTarget(url).name == name


@pytest.mark.parametrize(
    "url",
    ["", "a:8000", "ftp://a", "http://", "http://a:x", "http://a:99999", "http://a/v1?key=sk", "http://a#b"],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(
        InvalidArgument, match=r"found no address, expected http\(s\)://host\[:port\]\[/v1\]"
    ) as caught:
        OpenAiTarget(url)
    assert "sk" not in str(caught.value)


@pytest.mark.parametrize("url", [f"http://me:{KEY}@a", f"http://me:{KEY}@a:x", f"ftp://{KEY}@a"])
def test_a_login_in_an_address_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        OpenAiTarget(url)
    assert KEY not in str(caught.value)


def test_an_encrypted_server_must_be_one_that_is_trusted(tmp_path: Path) -> None:
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
            ),
            *("-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    with serving_openai(lambda asked: WHOLE[1], context=context) as server:
        assert ask(OpenAiTarget(server.url, tls=Tls(ca=certificate)))[0] == Piece("Hel")
        with pytest.raises(ConnectionFailed, match="CERTIFICATE_VERIFY_FAILED"):
            ask(OpenAiTarget(server.url))


def test_words_are_found_where_servers_put_them() -> None:
    assert error_words({"choices": []}) == error_words([]) == error_words({"error": None}) == ""
    assert error_words({"object": "error"}) == "an error without a word"
    assert error_words({"error": {"code": 5}}) == '{"code": 5}'
    assert len(error_words({"error": "x" * 5000})) == 300
    assert words_of_body(b"\xff\n oops") == "� oops"
    with pytest.raises(SaidError, match="no"):
        Transcript().take(b'{"error": "no"}')
