"""Every client against the real Triton server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from four_clients import PATIENCE_S, WAYS, client_for

from trtspec.client import Client, DeadlineExceeded, InvalidArgument, RequestRefused
from trtspec.triton_repo.server import Server

pytestmark = pytest.mark.parametrize("way", WAYS)

PROMPT = "def read_lines(path):\n    "
OPTIONS: dict[str, Any] = {
    "max_tokens": 24,
    "num_draft_tokens": 3,
    "seed": 2**64 - 1,
    "temperature": 0.8,
    "top_p": 0.9,
    "stop_words": ["ß", "\n\n\n"],
    "bad_words": "self",
    "embedding_bias": {"path": 1.5},
    "min_tokens": 4,
    "return_log_probs": True,
}


@pytest.fixture
def client(way: str, live_server: Server) -> Iterator[Any]:
    url = live_server.http_url if "http" in way else live_server.grpc_url
    with client_for(way, url, metrics_url=live_server.metrics_url, timeout_s=60) as client:
        yield client


def test_all_ways_bring_the_same_answer(client: Any, live_server: Server) -> None:
    with Client(live_server.grpc_url, timeout_s=60) as plain:
        expected = plain.generate(PROMPT, **OPTIONS)
    answer = client.generate(PROMPT, **OPTIONS)
    assert (answer.text, answer.token_ids, answer.finish_reason) == (
        expected.text,
        expected.token_ids,
        expected.finish_reason,
    )
    assert answer.log_probs == pytest.approx(expected.log_probs, abs=1e-4)
    assert answer.usage == expected.usage
    assert len(answer.log_probs) == len(answer.token_ids) == answer.usage.completion_tokens
    assert answer.speculation.accepted <= answer.speculation.proposed


def test_a_stream_adds_up_to_the_whole_answer(client: Any) -> None:
    whole = client.generate(PROMPT, **OPTIONS)
    with client.stream(PROMPT, **OPTIONS) as stream:
        deltas = list(stream)
        assert stream.result == whole.__class__(**{**vars(whole), "request_id": stream.request_id})
    assert len(deltas) > 1
    assert "".join(delta.text for delta in deltas) == whole.text


def test_logits_come_over_grpc_with_a_row_for_each_token(client: Any, way: str) -> None:
    options = {"max_tokens": 6, "num_draft_tokens": 3, "return_log_probs": True}
    if "http" in way:
        with pytest.raises(InvalidArgument, match=r"^return_generation_logits: found it with an http://"):
            client.generate(PROMPT, **options, return_generation_logits=True)
        assert client.generate(PROMPT, **options, return_generation_logits=False).generation_logits is None
        return
    whole = client.generate(PROMPT, **options, return_generation_logits=True)
    with client.stream(PROMPT, **options, return_generation_logits=True) as stream:
        streamed_TV = np.concatenate([delta.generation_logits for delta in stream])
    logits_TV = whole.generation_logits.astype(np.float64)
    assert logits_TV.shape == (len(whole.token_ids), 4096)
    np.testing.assert_allclose(streamed_TV, logits_TV, atol=1e-4)
    chosen = logits_TV[np.arange(len(logits_TV)), list(whole.token_ids)]
    assert whole.log_probs == pytest.approx(chosen - np.log(np.exp(logits_TV).sum(-1)), abs=1e-4)


def test_token_ids_go_in_place_of_text(client: Any) -> None:
    assert client.generate([5, 6, 7], max_tokens=3).usage.prompt_tokens == 3


def test_a_text_is_tokenized_as_it_is_read(client: Any) -> None:
    ids = client.tokenize(PROMPT)
    answer = client.generate(PROMPT, max_tokens=4, return_prompt_ids=True)
    assert ids == answer.prompt_ids
    assert len(ids) == answer.usage.prompt_tokens
    assert client.generate(ids, max_tokens=4).token_ids == answer.token_ids


def test_a_conversation_needs_a_chat_template_which_the_demo_pair_has_not(client: Any) -> None:
    with pytest.raises(RequestRefused, match="no chat template"):
        client.chat([{"role": "user", "content": "x"}], max_tokens=2)


def test_the_server_may_choose_the_draft_length_and_says_what_it_did_when(client: Any) -> None:
    answer = client.generate(PROMPT, max_tokens=24, num_draft_tokens="auto")
    assert answer.token_ids == client.generate(PROMPT, max_tokens=24, num_draft_tokens=0).token_ids
    speculation = answer.speculation
    assert sum(speculation.proposed_per_position) == speculation.proposed
    assert sum(speculation.accepted_per_position) == speculation.accepted
    times = answer.timings.server
    assert 0 <= times.queued_s <= times.first_token_s <= times.total_s <= answer.timings.total_s


def test_a_refusal_says_what_the_server_says(client: Any) -> None:
    with pytest.raises(RequestRefused, match=r"refused: top_p is 2\.0, expected"):
        client.generate(PROMPT, top_p=2.0)


def test_deadlines_and_early_closing_leave_nothing_running(client: Any, way: str) -> None:
    # Over HTTP the deadline must not fall before the first response: Triton would not let go of it.
    if "grpc" in way:
        with pytest.raises(DeadlineExceeded):
            client.generate(PROMPT, max_tokens=1500, end_id=-1, timeout_s=0.3)
    with client.stream(PROMPT, max_tokens=1500, end_id=-1) as stream:
        next(stream)
    assert stream.result.finish_reason == "cancelled"
    # The server's fixture checks that it stops without waiting for requests in flight.
    assert client.health().healthy


def test_the_server_says_what_it_is_and_counts(client: Any) -> None:
    metadata = client.metadata()
    assert (metadata.model, metadata.is_trtspec, metadata.decoupled) == ("tensorrt_llm_bls", True, True)

    def count() -> float:
        total: float = client.metrics().total("nv_inference_request_success", model="tensorrt_llm_bls")
        return total

    before = count()
    client.generate_many([PROMPT] * 3, max_tokens=2, concurrency=3)
    until = time.monotonic() + PATIENCE_S
    # Both are counted after the answers have come: Triton's own at once, ours a few times a second.
    while count() < before + 3 or client.metrics().total("trtspec_answers_total") < 3:
        assert time.monotonic() < until
        time.sleep(0.05)
