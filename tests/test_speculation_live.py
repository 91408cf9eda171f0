"""What the public model does beyond answering, through the real Triton server: adapt, chat, tell, count."""

from __future__ import annotations

import json
import re
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from template_zoo import TEMPLATES
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from trtspec.client import Client
from trtspec.client.verify import DEFAULT_PROMPTS
from trtspec.engines.pair import EnginePair
from trtspec.triton_repo.repository import RepositoryOptions, write_repository
from trtspec.triton_repo.server import FREE_PORTS, Server, serve
from trtspec.triton_repo.speculation.draft_table import DraftTable
from trtspec.triton_repo.speculation.metrics import HAND_OVER_S
from trtspec.triton_repo.speculation.request import ADAPTIVE

MESSAGES = [{"role": "system", "content": "Write Python."}, {"role": "user", "content": "def main("}]


@pytest.fixture(scope="module")
def adaptive_server(built_pair: EnginePair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The demo pair with a chat template, and a draft for a request that is alone."""
    folder = tmp_path_factory.mktemp("adaptive")
    (folder / "template.jinja").write_text(TEMPLATES["Llama 3"])
    table = DraftTable(((1, 2), (2, 0)))
    options = RepositoryOptions(num_draft_tokens=table, chat_template=folder / "template.jinja")
    with serve(write_repository(built_pair, folder / "repo", options), FREE_PORTS) as server:
        yield server


@pytest.fixture(scope="module")
def client(adaptive_server: Server) -> Iterator[Client]:
    with Client(adaptive_server.grpc_url, timeout_s=60) as client:
        yield client


@pytest.fixture(scope="module")
def reference(demo_pair: Path, tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    folder = tmp_path_factory.mktemp("reference")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(demo_pair / "target" / name, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATES["Llama 3"])
    return AutoTokenizer.from_pretrained(folder)


def ask(server: Server, **inputs: Any) -> dict[str, Any]:
    """One answer over HTTP, each tensor as JSON."""
    request = urllib.request.Request(
        f"{server.http_url}/v2/models/tensorrt_llm_bls/generate",
        json.dumps(inputs).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            answer: dict[str, Any] = json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            raise AssertionError(error.read().decode()) from error
    return answer


def values(answer: dict[str, Any], name: str) -> list[int]:
    """The elements of a tensor; a list of one comes as the element."""
    found = answer[name]
    return found if isinstance(found, list) else [found]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.9, "seed": 3, "return_log_probs": True},
        {"stop_words": ("\n\n", "lines"), "repetition_penalty": 1.2},
        {"min_tokens": 60, "frequency_penalty": 0.3, "presence_penalty": 0.2},
    ],
)
def test_answers_do_not_depend_on_adapting(client: Client, options: dict[str, Any]) -> None:
    prompts = DEFAULT_PROMPTS[:6]

    def both(prompt: str) -> tuple[Any, Any]:
        fixed = client.generate(prompt, max_tokens=64, num_draft_tokens=0, **options)
        return client.generate(prompt, max_tokens=64, num_draft_tokens=ADAPTIVE, **options), fixed

    with ThreadPoolExecutor(8) as threads:
        for adapted, fixed in threads.map(both, prompts):
            assert (adapted.text, adapted.token_ids, adapted.finish_reason, adapted.stop_reason) == (
                fixed.text,
                fixed.token_ids,
                fixed.finish_reason,
                fixed.stop_reason,
            )
            assert adapted.log_probs == pytest.approx(fixed.log_probs, abs=1e-4)


def test_counts_by_position_add_up(adaptive_server: Server) -> None:
    answer = ask(adaptive_server, text_input=DEFAULT_PROMPTS[3], max_tokens=64, num_draft_tokens=4)
    proposed, accepted = values(answer, "proposed_per_position"), values(answer, "accepted_per_position")
    assert len(proposed) == len(accepted) == 4
    assert (sum(proposed), sum(accepted)) == (
        answer["total_draft_tokens"],
        answer["total_accepted_draft_tokens"],
    )
    assert proposed[0] == answer["num_rounds"]
    assert all(kept <= tried for kept, tried in zip(accepted, proposed, strict=True))


def test_an_answer_says_when_it_came_and_went(adaptive_server: Server) -> None:
    before = time.monotonic_ns()
    answer = ask(adaptive_server, text_input="def main(", max_tokens=24)
    names = ("arrival", "first_scheduled", "first_token", "last_token")
    times = [answer[f"{name}_time_ns"] for name in names]
    assert before < times[0]
    assert times == sorted(times)
    assert times[3] < time.monotonic_ns()
    assert times[0] < times[2] < times[3]


def test_a_conversation_becomes_the_prompt_of_transformers(
    adaptive_server: Server, client: Client, reference: PreTrainedTokenizerBase
) -> None:
    answer = ask(adaptive_server, messages=json.dumps(MESSAGES), max_tokens=16, return_prompt_ids=True)
    expected = reference.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)
    assert answer["prompt_ids"] == expected
    assert answer["num_input_tokens"] == len(expected)
    assert tuple(values(answer, "output_ids")) == client.generate(expected, max_tokens=16).token_ids


def test_no_tokens_are_generated_where_none_are_asked_for(adaptive_server: Server) -> None:
    answer = ask(adaptive_server, text_input="def main(", max_tokens=0, return_prompt_ids=True)
    assert (answer["text_output"], answer["finish_reason"], answer["num_output_tokens"]) == ("", "length", 0)
    assert len(answer["prompt_ids"]) == answer["num_input_tokens"] > 0
    # Even for a prompt that the engines could not hold.
    answer = ask(adaptive_server, text_input="def main(" * 4000, max_tokens=0)
    assert answer["num_input_tokens"] > 4000
    assert "prompt_ids" not in answer


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"messages": "[]"}, "messages: found 0, expected a JSON list"),
        ({"messages": "{"}, "messages: not JSON"),
        ({"messages": "[]", "text_input": "a"}, "exactly one of text_input, input_ids and messages"),
        ({"text_input": "a", "num_draft_tokens": -2}, "num_draft_tokens is -2; .* and -1 adapts"),
        ({"text_input": "a", "max_tokens": -1}, 'max_tokens is -1; it must be at least 0"'),
        ({"text_input": "a", "top_k": -1}, 'top_k is -1, expected a finite number, at least 0"'),
        ({"text_input": "a", "presence_penalty": 1e39}, 'presence_penalty is inf, expected a finite number"'),
        (
            {"text_input": "a", "top_p": 2},
            'top_p is 2.0, expected a finite number, at least 1e-06, at most 1"',
        ),
    ],
)
def test_what_cannot_be_served_is_refused(
    adaptive_server: Server, inputs: dict[str, Any], message: str
) -> None:
    with pytest.raises(AssertionError, match=f"refused: {message}"):
        ask(adaptive_server, **{"max_tokens": 4, **inputs})


def test_a_request_that_does_not_say_how_many_tokens_is_refused(adaptive_server: Server) -> None:
    with pytest.raises(AssertionError, match="refused: max_tokens is missing"):
        ask(adaptive_server, text_input="def main(")


def test_without_a_template_a_conversation_is_refused_with_what_to_do(live_server: Server) -> None:
    with pytest.raises(AssertionError, match=r"refused: messages: .* `trtspec repo --chat-template FILE`"):
        ask(live_server, messages=json.dumps(MESSAGES), max_tokens=4)


def metrics(server: Server) -> dict[str, float]:
    with urllib.request.urlopen(server.metrics_url, timeout=10) as response:
        text = response.read().decode()
    found = re.findall(r'^(trtspec_\w+)\{model="tensorrt_llm_bls"(?:,position="(\d+)")?\} (\S+)$', text, re.M)
    return {f"{name}{position}": float(value) for name, position, value in found}


def growth(server: Server, since: dict[str, float], expected: dict[str, float]) -> dict[str, float]:
    """How far metrics have grown once all have that are expected to: they are handed over one by one."""

    def grown() -> dict[str, float]:
        now = metrics(server)
        return {name: now.get(name, 0) - since.get(name, 0) for name in expected}

    for _ in range(400):
        found = grown()
        if all(found[name] >= amount for name, amount in expected.items()):
            break
        time.sleep(0.05)
    time.sleep(2 * HAND_OVER_S)  # what is counted twice shows
    return grown()


def told(answers: list[dict[str, Any]]) -> dict[str, float]:
    """What the metrics should have counted of answers."""
    counters = {
        "trtspec_rounds_total": "num_rounds",
        "trtspec_output_tokens_total": "num_output_tokens",
        "trtspec_proposed_draft_tokens_total": "total_draft_tokens",
        "trtspec_accepted_draft_tokens_total": "total_accepted_draft_tokens",
    }
    found: dict[str, float] = {"trtspec_answers_total": len(answers)}
    found |= {name: sum(answer[output] for answer in answers) for name, output in counters.items()}
    for kind in ("proposed", "accepted"):
        for i in range(3):
            counts = (values(answer, f"{kind}_per_position")[i] for answer in answers)
            found[f"trtspec_{kind}_at_position_total{i + 1}"] = sum(counts)
    return found


def test_the_server_counts_what_answers_tell(adaptive_server: Server) -> None:
    # Answers of before may be handed over during the first pass.
    for _ in range(3):
        before = metrics(adaptive_server)
        answers = [
            ask(adaptive_server, text_input=DEFAULT_PROMPTS[i], max_tokens=48, num_draft_tokens=3)
            for i in range(2)
        ]
        grown = growth(adaptive_server, before, told(answers))
        if grown["trtspec_answers_total"] == 2:
            break
    assert grown == told(answers)
    now = metrics(adaptive_server)
    assert now["trtspec_draft_length"] >= 0
    assert now["trtspec_draft_failures_total"] == now["trtspec_rejected_busy_total"] == 0


def test_the_requests_in_flight_set_the_draft_length(client: Client) -> None:
    alone = client.generate(DEFAULT_PROMPTS[3], max_tokens=24)
    assert alone.speculation
    assert len(alone.speculation.proposed_per_position) == 2
    # Again where its neighbour had ended before it.
    for _ in range(20):
        with client.stream(DEFAULT_PROMPTS[3], max_tokens=1000, min_tokens=1000) as neighbour:
            next(iter(neighbour))
            answer = client.generate(DEFAULT_PROMPTS[3], max_tokens=24)
        assert answer.token_ids == alone.token_ids
        assert answer.speculation
        if not answer.speculation.rounds:
            break
    assert answer.speculation.rounds == 0
    assert "no draft tokens with 2 in flight (1:2,2:0)" in answer.speculation.off_reason
