"""The served answer, through the real Triton server: it is the target's, whatever the draft length."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trtspec.client import Client, RequestRefused
from trtspec.client.verify import DEFAULT_PROMPTS, HuggingFaceReference, Settings, verify
from trtspec.triton_repo.server import Server

PROMPT = "def read_lines(path):\n    "
SOME_PROMPTS = (PROMPT, DEFAULT_PROMPTS[2], DEFAULT_PROMPTS[17])


@pytest.fixture(scope="module")
def client(live_server: Server) -> Iterator[Client]:
    with Client(live_server.grpc_url, timeout_s=60) as client:
        yield client


def test_greedy_answers_are_hugging_faces_for_every_draft_length(client: Client, demo_pair: Path) -> None:
    reference = HuggingFaceReference(demo_pair / "target")
    settings = Settings(SOME_PROMPTS, range(9), max_tokens=32, parts=("greedy",), alone=0)
    report = verify(client, reference, settings)
    assert report.ok, report.mismatches[0]
    assert len(report.cases) == 9 * len(SOME_PROMPTS)


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
    # At most five tokens a round; without a draft a response has what a twentieth of a second brings.
    assert len(deltas) > (5 if num_draft_tokens else 0)
    assert "".join(delta.text for delta in deltas) == whole.text
    assert sum((delta.token_ids for delta in deltas), ()) == whole.token_ids
    assert sum((delta.log_probs for delta in deltas), ()) == pytest.approx(whole.log_probs, abs=1e-4)


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
    assert sum(spec.accepted_per_position) == spec.accepted
    assert spec.rounds + spec.accepted <= 40
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(answer.token_ids)


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        (PROMPT, {"max_tokens": -1}, "max_tokens is -1"),
        (PROMPT, {"max_tokens": 5000}, "the engine holds 2048"),
        ([5] * 2048, {"max_tokens": 1}, "the engine holds 2048"),
        ([4096], {}, "outside the vocabulary of 4096"),
        ("", {}, "no tokens"),
        (PROMPT, {"num_draft_tokens": 9}, "built for 0 to 8"),
        (PROMPT, {"stop_words": ""}, "empty string"),
        (PROMPT, {"temperature": -1.0}, "temperature is -1"),
        (PROMPT, {"top_p": 1.5}, "top_p is 1.5"),
        ("x" * 140_000, {}, r"text_input has 140000 bytes.*131072"),
        (PROMPT, {"stop_words": [f"{i}" for i in range(40)]}, "stop_words has 40 entries.*32"),
        (PROMPT, {"stop_words": "long" * 100}, "stop_words has one of 400 bytes.*256"),
        (PROMPT, {"bad_words": ["b"] * 300}, "bad_words has 300 entries.*256"),
        (PROMPT, {"end_id": 4096}, r"end_id is outside the vocabulary of 4096: \[4096\]"),
        (PROMPT, {"embedding_bias": {"x": 3e38, "x x": 3e38}}, "embedding_bias_weights add up to"),
    ],
)
def test_what_cannot_be_served_is_refused_with_the_reason(
    client: Client, prompt: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(RequestRefused, match=message):
        client.generate(prompt, **options)


def test_a_request_at_fault_takes_the_draft_from_no_other(client: Client) -> None:
    for fault in ({"end_id": 99_999}, {"embedding_bias": {"x": 3e38, "x x": 3e38}}):
        with pytest.raises(RequestRefused):
            client.generate(PROMPT, max_tokens=8, num_draft_tokens=4, **fault)
        speculation = client.generate(PROMPT, max_tokens=8, num_draft_tokens=4).speculation
        assert speculation
        assert (speculation.off_reason, speculation.rounds > 0) == ("", True)


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


def test_the_cumulative_log_prob_of_a_stream_is_that_of_all_tokens_so_far(live_server: Server) -> None:
    body = {"text_input": PROMPT, "max_tokens": 12, "stream": True, "return_log_probs": True}
    events = [line for line in post(live_server, "generate_stream", body).split("\n") if line]
    total = 0.0
    for event in (json.loads(line.removeprefix("data: ")) for line in events):
        total += float(np.sum(event["output_log_probs"]))
        assert event["cum_log_probs"] == pytest.approx(total, abs=1e-4)
    assert len(events) > 1


def test_http_requests_may_have_what_is_no_option(live_server: Server) -> None:
    beside = {"id": "7", "priority": 1, "parameters": {"num_draft_tokens": 2}, "x-tenant": "somebody"}
    answer = json.loads(post(live_server, "generate", {"text_input": PROMPT, "max_tokens": 4, **beside}))
    assert answer["num_output_tokens"] == 4


def test_http_echoes_the_prompt_when_asked(live_server: Server) -> None:
    body = {"text_input": PROMPT, "max_tokens": 8, "exclude_input_in_output": False}
    assert json.loads(post(live_server, "generate", body))["text_output"].startswith(PROMPT)


@pytest.mark.parametrize("name", ["beam_width", "num_return_sequences", "n", "temperatur"])
def test_http_options_that_are_not_served_are_refused(live_server: Server, name: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        post(live_server, "generate", {"text_input": PROMPT, "max_tokens": 8, name: 2})
    with refused.value as response:
        assert name in response.read().decode()
