"""γ-invariance through the live server: no option, no load and no draft, however bad, changes an answer."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tritonclient.grpc import service_pb2
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from trtspec.build.pair import build
from trtspec.client import Client, Generation
from trtspec.triton_repo.repository import write_repository
from trtspec.triton_repo.server import FREE_PORTS, Server, serve

PROMPT = "def read_lines(path):\n    "
NEW_TOKENS = 24
DRAFT_LENGTHS = range(9)
AT_ONCE = 16

# Each option of the public model, so that it makes a difference or would show one.
OPTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "one token": {"max_tokens": 1},
    "log-probs": {"return_log_probs": True},
    "a stop string": {"stop_words": ("\n\n", "lines")},
    # Two characters of different tokens, so that one round may end between them.
    "a stop string over token borders": {"stop_words": (":\n        ", "th, ")},
    "min tokens": {"min_tokens": 8, "stop_words": "string"},
    "an end id": {"end_id": 335},
    "an end id after min tokens": {"end_id": 335, "min_tokens": 12},
    "bad words": {"bad_words": ("return", "self", '"""')},
    "a bias": {"embedding_bias": {"self": 4.0, "path": -100.0}},
    "repetition penalty": {"repetition_penalty": 1.3},
    "presence penalty": {"presence_penalty": 0.8},
    "frequency penalty": {"frequency_penalty": 0.7},
    "temperature": {"temperature": 0.8, "seed": 11},
    "top-k": {"top_k": 20, "seed": 12},
    "top-p": {"top_p": 0.9, "seed": 13},
    "everything sampled": {
        "temperature": 1.1,
        "top_k": 200,
        "top_p": 0.95,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.3,
        "presence_penalty": 0.2,
        "min_tokens": 5,
        "stop_words": ("\n\n\n",),
        "bad_words": ("return",),
        "embedding_bias": {"self": 2.0},
        "return_log_probs": True,
        "seed": 13,
    },
}


class Served(NamedTuple):
    server: Server
    client: Client


@pytest.fixture(scope="module")
def adversary(demo_pair: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The demo pair with a draft that says the least likely token, and three ends of an answer."""
    folder = tmp_path_factory.mktemp("adversary")
    shutil.copytree(demo_pair / "draft", folder / "draft")
    weights = load_file(folder / "draft" / "model.safetensors")
    weights["model.norm.weight"] = -weights["model.norm.weight"]
    save_file(weights, folder / "draft" / "model.safetensors", metadata={"format": "pt"})
    pair = build(demo_pair / "target", folder / "draft", folder / "pair", report=lambda line: None)
    repository = write_repository(pair, folder / "repo")
    config = repository / "tensorrt_llm_bls" / "config.pbtxt"
    one_end = 'key: "eos_token_ids"\n  value {\n    string_value: "2"\n'
    assert one_end in config.read_text()
    config.write_text(config.read_text().replace(one_end, one_end.replace('"2"', '"2,335,310"')))
    with serve(repository, FREE_PORTS) as server:
        yield server
    assert server.stopped_cleanly


@pytest.fixture(scope="module", params=["live_server", "adversary"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    server: Server = request.getfixturevalue(request.param)
    with Client(server.grpc_url, timeout_s=120) as client:
        yield Served(server, client)


@pytest.fixture(scope="module")
def plain(served: Served) -> dict[str, Generation]:
    """The answers without a draft, one after the other."""
    return {name: ask(served.client, name, 0) for name in OPTIONS}


def ask(client: Client, name: str, num_draft_tokens: int) -> Generation:
    options: dict[str, Any] = {"max_tokens": NEW_TOKENS, **OPTIONS[name]}
    return client.generate(PROMPT, num_draft_tokens=num_draft_tokens, **options)


def same(left: Generation, right: Generation) -> bool:
    """Whether two answers are one, up to what speculation did for them."""
    scores = pytest.approx(right.log_probs, abs=1e-4)
    return (left.text, left.token_ids, left.finish_reason, left.stop_reason) == (
        right.text,
        right.token_ids,
        right.finish_reason,
        right.stop_reason,
    ) and left.log_probs == scores


def test_no_option_depends_on_the_draft_length_or_on_others(
    served: Served, plain: dict[str, Generation]
) -> None:
    cases = list(product(DRAFT_LENGTHS, OPTIONS))
    with ThreadPoolExecutor(AT_ONCE) as threads:
        answers = list(threads.map(lambda case: ask(served.client, case[1], case[0]), cases))
    found = zip(cases, answers, strict=True)
    assert [case for case, answer in found if not same(answer, plain[case[1]])] == []
    rounds = [answer.speculation.rounds for answer in answers if answer.speculation]
    asked = [min(length, OPTIONS[name].get("max_tokens", NEW_TOKENS) - 1) for length, name in cases]
    assert [count > 0 for count in rounds] == [length > 0 for length in asked]


@pytest.mark.parametrize("served", ["live_server"], indirect=True)
def test_every_option_makes_a_difference(plain: dict[str, Generation]) -> None:
    unlike = [name for name, answer in plain.items() if not same(answer, plain["nothing"])]
    assert unlike == [name for name in OPTIONS if name != "nothing"]


def test_the_bad_draft_is_bad(adversary: Server) -> None:
    with Client(adversary.grpc_url, timeout_s=60) as client:
        answer = client.generate(PROMPT, max_tokens=NEW_TOKENS, num_draft_tokens=4)
    assert answer.speculation
    assert answer.speculation.accepted <= 0.05 * answer.speculation.proposed


def test_answers_end_at_each_of_several_end_tokens(adversary: Server) -> None:
    with Client(adversary.grpc_url, timeout_s=60) as client, ThreadPoolExecutor(8) as threads:
        answers = threads.map(
            lambda seed: client.generate(PROMPT, max_tokens=60, temperature=1.0, seed=seed), range(8)
        )
        ends = {answer.token_ids[-1] for answer in answers}
    assert {335, 310} <= ends


def test_generation_logits_do_not_depend_on_the_draft_length(live_server: Server) -> None:
    with grpc.insecure_channel(live_server.grpc_url) as channel:
        stub = GRPCInferenceServiceStub(channel)
        plain_TV, *others = [generation_logits(stub, length) for length in DRAFT_LENGTHS]
    assert plain_TV.shape == (8, 4096)
    for logits_TV in others:
        np.testing.assert_allclose(logits_TV, plain_TV, atol=1e-4)


def generation_logits(stub: GRPCInferenceServiceStub, num_draft_tokens: int) -> np.ndarray:
    request = service_pb2.ModelInferRequest(model_name="tensorrt_llm_bls")
    text = PROMPT.encode()
    values = {
        "text_input": ("BYTES", len(text).to_bytes(4, "little") + text),
        "max_tokens": ("INT32", np.int32(8).tobytes()),
        "num_draft_tokens": ("INT32", np.int32(num_draft_tokens).tobytes()),
        "return_generation_logits": ("BOOL", b"\1"),
    }
    for name, (datatype, content) in values.items():
        request.inputs.add(name=name, datatype=datatype, shape=[1, 1])
        request.raw_input_contents.append(content)
    (reply,) = stub.ModelStreamInfer(iter([request]))
    assert not reply.error_message
    response = reply.infer_response
    outputs = zip(response.outputs, response.raw_output_contents, strict=True)
    (content,) = [content for output, content in outputs if output.name == "generation_logits"]
    return np.frombuffer(content, np.float32).reshape(-1, 4096)


@pytest.mark.parametrize("excludes", [True, False])
def test_the_echo_of_the_prompt_does_not_depend_on_the_draft_length(
    live_server: Server, excludes: bool
) -> None:
    texts = set()
    for num_draft_tokens in (0, 1, 4, 8):
        body = {
            "text_input": PROMPT,
            "max_tokens": 8,
            "num_draft_tokens": num_draft_tokens,
            "exclude_input_in_output": excludes,
        }
        url = f"{live_server.http_url}/v2/models/tensorrt_llm_bls/generate"
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode())) as response:
            texts.add(json.loads(response.read())["text_output"])
    assert len(texts) == 1
    assert texts.pop().startswith(PROMPT) != excludes


def test_streams_at_once_join_to_the_answers_alone(served: Served, plain: dict[str, Generation]) -> None:
    cases = [(name, length) for name in OPTIONS for length in (0, 3)]

    def stream(case: tuple[str, int]) -> Generation:
        name, length = case
        options: dict[str, Any] = {"max_tokens": NEW_TOKENS, **OPTIONS[name]}
        with ExitStack() as stack:
            deltas = stack.enter_context(served.client.stream(PROMPT, num_draft_tokens=length, **options))
            parts = list(deltas)
            whole = deltas.result
        assert "".join(part.text for part in parts) == whole.text
        assert sum((part.token_ids for part in parts), ()) == whole.token_ids
        return whole

    with ThreadPoolExecutor(AT_ONCE) as threads:
        answers = list(threads.map(stream, cases))
    found = zip(cases, answers, strict=True)
    assert [case for case, answer in found if not same(answer, plain[case[0]])] == []
