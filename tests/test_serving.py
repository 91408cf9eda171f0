"""The served answer, through the real Triton server: it is the target's, whatever the draft length."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trtspec.client import Client, Generation, RequestRefused
from trtspec.client.prompts import DEFAULT_PROMPTS
from trtspec.client.reference import HuggingFaceReference
from trtspec.client.verify import verify
from trtspec.engines.pair import EnginePair
from trtspec.triton_repo.repository import RepositoryOptions, write_repository
from trtspec.triton_repo.server import FREE_PORTS, Server, serve

PROMPT = "def read_lines(path):\n    "
SOME_PROMPTS = (PROMPT, DEFAULT_PROMPTS[2], DEFAULT_PROMPTS[17])

# Each option of the public model, so that it makes a difference or would show one.
OPTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "log-probs": {"return_log_probs": True},
    "a stop string": {"stop_words": ("\n\n", "lines")},
    "min tokens": {"min_tokens": 30, "stop_words": "\n"},
    "an end id": {"end_id": 335},
    "bad words": {"bad_words": ("return", "self", '"""')},
    "a bias": {"embedding_bias": {"self": 4.0, "path": -100.0}},
    "repetition penalty": {"repetition_penalty": 1.3},
    "presence penalty": {"presence_penalty": 0.8},
    "frequency penalty": {"frequency_penalty": 0.7},
    "temperature": {"temperature": 0.8, "seed": 11},
    "top-k and top-p": {"top_k": 20, "top_p": 0.9, "seed": 12},
    "everything sampled": {
        "temperature": 1.1,
        "top_p": 0.95,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.3,
        "min_tokens": 5,
        "stop_words": ("\n\n\n",),
        "return_log_probs": True,
        "seed": 13,
    },
}


@pytest.fixture(scope="module")
def client(live_server: Server) -> Iterator[Client]:
    with Client(live_server.grpc_url, timeout_s=60) as client:
        yield client


def same(left: Generation, right: Generation) -> bool:
    """Whether two answers are one, up to what speculation did for them."""
    scores = pytest.approx(right.log_probs, abs=1e-4)
    return (left.text, left.token_ids, left.finish_reason, left.stop_reason) == (
        right.text,
        right.token_ids,
        right.finish_reason,
        right.stop_reason,
    ) and left.log_probs == scores


def test_greedy_answers_are_hugging_faces_for_every_draft_length(client: Client, demo_pair: Path) -> None:
    reference = HuggingFaceReference(demo_pair / "target")
    report = verify(client, reference, SOME_PROMPTS, range(9), max_tokens=32)
    assert report.ok, report.mismatches[0]
    assert len(report.cases) == 9 * len(SOME_PROMPTS)


@pytest.mark.parametrize("name", OPTIONS)
def test_no_option_depends_on_the_draft_length(client: Client, name: str) -> None:
    options = {"max_tokens": 40, **OPTIONS[name]}
    plain = client.generate(PROMPT, num_draft_tokens=0, **options)
    assert plain.token_ids
    for num_draft_tokens in (1, 3, 8):
        answer = client.generate(PROMPT, num_draft_tokens=num_draft_tokens, **options)
        assert same(answer, plain), num_draft_tokens
        assert answer.speculation is not None
        assert answer.speculation.rounds > 0


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_makes_a_difference(client: Client, name: str) -> None:
    if not OPTIONS[name]:
        return
    plain = client.generate(PROMPT, max_tokens=40)
    assert not same(client.generate(PROMPT, max_tokens=40, **OPTIONS[name]), plain)


@pytest.mark.parametrize("num_draft_tokens", [0, 4])
def test_a_stream_joins_to_the_whole(client: Client, num_draft_tokens: int) -> None:
    options: dict[str, Any] = {
        "max_tokens": 48,
        "num_draft_tokens": num_draft_tokens,
        "return_log_probs": True,
        "stop_words": "never generated, I think",
    }
    whole = client.generate(DEFAULT_PROMPTS[19], **options)
    with client.stream(DEFAULT_PROMPTS[19], **options) as stream:
        deltas = list(stream)
    assert len(deltas) > 5
    assert "".join(delta.text for delta in deltas) == whole.text
    assert sum((delta.token_ids for delta in deltas), ()) == whole.token_ids
    assert sum((delta.log_probs for delta in deltas), ()) == pytest.approx(whole.log_probs, abs=1e-4)


def test_many_requests_at_once_get_the_answers_they_get_alone(client: Client) -> None:
    cases = [
        (prompt, num_draft_tokens, options)
        for prompt in SOME_PROMPTS
        for num_draft_tokens in (0, 2, 5)
        for options in (OPTIONS["log-probs"], OPTIONS["temperature"], OPTIONS["repetition penalty"])
    ]

    def ask(case: tuple[str, int, dict[str, Any]]) -> Generation:
        prompt, num_draft_tokens, options = case
        return client.generate(prompt, max_tokens=32, num_draft_tokens=num_draft_tokens, **options)

    alone = [ask(case) for case in cases]
    with ThreadPoolExecutor(16) as threads:
        together = list(threads.map(ask, cases))
    assert all(map(same, together, alone))


def test_the_server_lives_through_thousands_of_rounds_at_once(client: Client) -> None:
    """Dropping Triton's response iterators as they end crashed the public model's process here."""
    with ThreadPoolExecutor(32) as threads:
        answers = threads.map(
            lambda i: client.generate([1, 5 + i], max_tokens=64, num_draft_tokens=1), range(64)
        )
        rounds = sum(answer.speculation.rounds for answer in answers if answer.speculation)
    assert rounds > 2000


def test_sampling_with_draft_probabilities_keeps_the_options(client: Client) -> None:
    answer = client.generate(
        PROMPT, max_tokens=40, temperature=1.0, top_k=50, seed=5, use_draft_logits=True, num_draft_tokens=4
    )
    assert len(answer.token_ids) <= 40
    assert answer.speculation is not None
    assert 0 < answer.speculation.accepted < answer.speculation.proposed


def test_a_request_without_seed_is_sampled_anew(client: Client) -> None:
    texts = {client.generate(PROMPT, max_tokens=24, temperature=1.0).text for _ in range(3)}
    assert len(texts) == 3


def test_what_speculation_did_is_told(client: Client) -> None:
    answer = client.generate(PROMPT, max_tokens=40, num_draft_tokens=4)
    spec = answer.speculation
    assert spec is not None
    assert spec.proposed <= 4 * spec.rounds
    assert sum(spec.per_position) == spec.accepted
    assert spec.rounds + spec.accepted <= 40
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(answer.token_ids)


def test_closed_streams_leave_room_for_others(client: Client) -> None:
    for _ in range(3):
        with ExitStack() as streams:
            for i in range(30):
                stream = streams.enter_context(
                    client.stream(PROMPT, max_tokens=1500, num_draft_tokens=3 * (i % 2))
                )
                if i % 5 == 0:
                    next(stream)
    # 90 answers of 1,500 tokens would take minutes, and 64 of them all the room there is.
    started = time.monotonic()
    assert client.generate(PROMPT, max_tokens=8).token_ids
    assert time.monotonic() - started < 30


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        (PROMPT, {"max_tokens": 0}, "max_tokens is 0"),
        (PROMPT, {"max_tokens": 5000}, "the engine holds 2048"),
        ([5] * 2048, {"max_tokens": 1}, "the engine holds 2048"),
        ([4096], {}, "outside the vocabulary of 4096"),
        ("", {}, "no tokens"),
        (PROMPT, {"num_draft_tokens": 9}, "built for 0 to 8"),
        (PROMPT, {"stop_words": ""}, "empty string"),
        (PROMPT, {"temperature": -1.0}, "temperature is -1"),
        (PROMPT, {"top_p": 1.5}, "top_p is 1.5"),
    ],
)
def test_what_cannot_be_served_is_refused_with_the_reason(
    client: Client, prompt: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(RequestRefused, match=message):
        client.generate(prompt, **options)


def post(server: Server, path: str, body: dict[str, Any]) -> str:
    request = urllib.request.Request(
        f"{server.http_url}/v2/models/tensorrt_llm_bls/{path}", json.dumps(body).encode()
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return str(response.read().decode())


def test_http_gives_the_same_answer(live_server: Server, client: Client) -> None:
    expected = client.generate(PROMPT, max_tokens=24)
    body = {"text_input": PROMPT, "max_tokens": 24}
    whole = json.loads(post(live_server, "generate", body))
    assert (whole["text_output"], whole["output_ids"]) == (expected.text, list(expected.token_ids))
    events = post(live_server, "generate_stream", body | {"stream": True, "num_draft_tokens": 3})
    texts = [json.loads(line.removeprefix("data: "))["text_output"] for line in events.split("\n") if line]
    assert "".join(texts) == expected.text


def test_http_echoes_the_prompt_when_asked(live_server: Server) -> None:
    body = {"text_input": PROMPT, "max_tokens": 8, "exclude_input_in_output": False}
    assert json.loads(post(live_server, "generate", body))["text_output"].startswith(PROMPT)


@pytest.mark.parametrize("name", ["beam_width", "num_return_sequences"])
def test_http_options_that_are_not_served_are_refused(live_server: Server, name: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        post(live_server, "generate", {"text_input": PROMPT, "max_tokens": 8, name: 2})
    assert name in refused.value.read().decode()


def stub_pid(server: Server, model: str) -> int:
    """The process of a model's Python stub."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        path = str(server.repository / model / "1" / "model.py").encode()
        if b"triton_python_backend_stub" in command[0] and path in command:
            return int(folder.name)
    raise AssertionError(f"no stub of {model}")


def test_an_answer_survives_the_death_of_the_draft(built_pair: EnginePair, tmp_path: Path) -> None:
    options = RepositoryOptions(num_draft_tokens=3)
    repository = write_repository(built_pair, tmp_path / "repo", options)
    # Triton waits for a dead model's requests until its exit timeout.
    ports = replace(FREE_PORTS, stop_timeout_s=1.0)
    with serve(repository, ports) as server, Client(server.grpc_url, timeout_s=60) as client:
        whole = client.generate(PROMPT, max_tokens=32)
        os.kill(stub_pid(server, "tensorrt_llm_draft"), signal.SIGKILL)
        survived = client.generate(PROMPT, max_tokens=32)
    assert same(survived, whole)
    assert whole.speculation is not None
    assert (whole.speculation.off_reason, whole.speculation.rounds > 0) == ("", True)
    assert survived.speculation is not None
    assert survived.speculation.off_reason.startswith("the draft failed: tensorrt_llm_draft")
