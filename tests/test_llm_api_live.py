"""The public model over the LLM API through the real Triton server; TensorRT-LLM is a double."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from trtspec.build.options import BuildOptions
from trtspec.build.pair import build
from trtspec.build.runtimes.pytorch.options import PytorchOptions
from trtspec.client import Client, RequestRefused, ServerFailed
from trtspec.engines.manifest import MANIFEST
from trtspec.engines.pair import EnginePair
from trtspec.errors import ServerError
from trtspec.triton_repo.repository import RepositoryOptions, write_repository
from trtspec.triton_repo.server import FREE_PORTS, Server, serve
from trtspec.triton_repo.speculation.metrics import HAND_OVER_S

DOUBLE = Path(__file__).parent / "tensorrt_llm_double" / "tensorrt_llm"
PROMPT = "def main(argv):\n    return parse(argv) + 1\n"
LENGTH = 4
# What the double says that the target keeps of each round's drafts.
ACCEPTED = [2, 0, 4, 1]


@dataclass(frozen=True)
class Running:
    """A server over a double of TensorRT-LLM."""

    server: Server
    client: Client
    double: Path

    def events(self) -> list[str]:
        return (self.double / "double.log").read_text().splitlines()

    def requests(self) -> list[dict[str, Any]]:
        """The keywords of SamplingParams, by request."""
        return [json.loads(e.removeprefix("request ")) for e in self.events() if e.startswith("request ")]

    @contextmanager
    def acting(self, **settings: Any) -> Iterator[None]:
        """Let the double act differently for a while."""
        file = self.double / "double.json"
        before = file.read_text()
        file.write_text(json.dumps(json.loads(before) | settings))
        yield
        file.write_text(before)

    def count(self, event: str) -> int:
        return sum(line.startswith(event) for line in self.events())

    def wait_for(self, event: str, number: int) -> None:
        until = time.monotonic() + 20
        while self.count(event) < number and time.monotonic() < until:
            time.sleep(0.02)
        assert self.count(event) >= number


@pytest.fixture(scope="module")
def make_pair(demo_pair: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., EnginePair]:
    def make(**options: Any) -> EnginePair:
        wanted = BuildOptions(
            runtime="pytorch", max_draft_len=LENGTH, pytorch=PytorchOptions(**options), max_seq_len=1024
        )
        output = tmp_path_factory.mktemp("pytorch") / "pair"
        return build(
            demo_pair / "target", demo_pair / "draft", output, wanted, cache="none", report=lambda line: None
        )

    return make


@contextmanager
def running(
    pair: EnginePair, folder: Path, options: RepositoryOptions | None = None, **double: Any
) -> Iterator[Running]:
    repository = write_repository(pair, folder / "repo", options)
    # This machine has neither a GPU nor TensorRT-LLM, and would be refused.
    (repository / MANIFEST).unlink()
    place = repository / "tensorrt_llm_bls" / "1" / "tensorrt_llm"
    shutil.copytree(DOUBLE, place, ignore=shutil.ignore_patterns("__pycache__"))
    settings = {"version": pair.manifest.versions["tensorrt_llm"], "accepted": ACCEPTED, **double}
    (place / "double.json").write_text(json.dumps(settings))
    with (
        serve(repository, FREE_PORTS) as server,
        Client(server.grpc_url, timeout_s=60, metrics_url=server.metrics_url) as client,
    ):
        yield Running(server, client, place)


@pytest.fixture(scope="module")
def served(
    make_pair: Callable[..., EnginePair], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    with running(make_pair(), tmp_path_factory.mktemp("served"), round_s=0.005) as found:
        yield found


@pytest.fixture(scope="module")
def tokenizer(demo_pair: Path) -> Tokenizer:
    return Tokenizer.from_file(str(demo_pair / "target" / "tokenizer.json"))


def repeated(tokenizer: Tokenizer, count: int) -> list[int]:
    """What the double answers: the prompt's ids again and again."""
    ids = tokenizer.encode(PROMPT).ids
    return [ids[i % len(ids)] for i in range(count)]


def test_an_answer_comes_with_ids_text_and_reason(served: Running, tokenizer: Tokenizer) -> None:
    answer = served.client.generate(PROMPT, max_tokens=20)
    ids = repeated(tokenizer, 20)
    assert list(answer.token_ids) == ids
    assert answer.text == tokenizer.decode(ids)
    assert answer.finish_reason == "length"


def test_deltas_join_to_the_whole(served: Running) -> None:
    whole = served.client.generate(PROMPT, max_tokens=40)
    with served.client.stream(PROMPT, max_tokens=40) as stream:
        deltas = list(stream)
    assert len(deltas) > 5
    assert "".join(delta.text for delta in deltas) == whole.text
    assert [i for delta in deltas for i in delta.token_ids] == list(whole.token_ids)


def test_acceptance_is_that_of_tensorrt_llm(served: Running) -> None:
    """After the prompt's own token, rounds keep 2, 0, 4, 1 and add one each: 1 + 3 + 1 + 5 + 2."""
    speculation = served.client.generate(PROMPT, max_tokens=12).speculation
    assert (speculation.rounds, speculation.proposed, speculation.accepted) == (4, 4 * LENGTH, sum(ACCEPTED))
    assert speculation.proposed_per_position == (4, 4, 4, 4)
    assert speculation.accepted_per_position == (3, 2, 1, 1)


def test_the_answer_says_when_things_happened(served: Running) -> None:
    timings = served.client.generate(PROMPT, max_tokens=12).timings
    assert timings is not None
    times = timings.server
    assert times is not None
    assert times.arrival_ns <= times.first_scheduled_ns <= times.first_token_ns <= times.last_token_ns


def test_a_stop_string_ends_the_answer_and_the_request(served: Running) -> None:
    aborted = served.count("abort")
    answer = served.client.generate(PROMPT, max_tokens=500, stop_words="parse(")
    assert answer.text == "def main(argv):\n    return "
    assert (answer.finish_reason, answer.stop_reason) == ("stop", "parse(")
    served.wait_for("abort", aborted + 1)


@pytest.mark.parametrize("returns_end", [True, False])
def test_an_end_token_ends_the_answer_whether_it_is_returned_or_not(
    returns_end: bool, served: Running, tokenizer: Tokenizer
) -> None:
    ids = tokenizer.encode(PROMPT).ids
    finished, aborted = served.count("finished stop"), served.count("abort")
    with served.acting(returns_end=returns_end):
        answer = served.client.generate(PROMPT, max_tokens=50, end_id=ids[7])
    assert answer.text == tokenizer.decode(ids[:7])
    assert answer.finish_reason == "stop"
    assert (served.count("finished stop"), served.count("abort")) == (finished + 1, aborted)


def test_a_caller_who_hangs_up_ends_the_request(served: Running) -> None:
    aborted = served.count("abort")
    for _ in range(5):
        with served.client.stream(PROMPT, max_tokens=900) as stream:
            next(iter(stream))
    served.wait_for("abort", aborted + 5)


def test_many_requests_are_in_flight_at_once(served: Running, tokenizer: Tokenizer) -> None:
    answers = list(served.client.generate_many([PROMPT] * 16, max_tokens=60, concurrency=16))
    assert all(list(answer.token_ids) == repeated(tokenizer, 60) for answer in answers)


def test_nothing_to_generate_is_no_request(served: Running, tokenizer: Tokenizer) -> None:
    before = served.count("request")
    assert list(served.client.tokenize(PROMPT)) == tokenizer.encode(PROMPT).ids
    assert served.count("request") == before


def test_log_probs_belong_to_their_tokens(served: Running) -> None:
    answer = served.client.generate(PROMPT, max_tokens=9, return_log_probs=True)
    assert answer.log_probs == pytest.approx([-i / 1000 for i in answer.token_ids])


def test_sampling_reaches_tensorrt_llm_with_nothing_left_to_the_checkpoint(served: Running) -> None:
    served.client.generate(PROMPT, max_tokens=3, temperature=0.7, seed=5)
    served.client.generate(PROMPT, max_tokens=3)
    sampled, greedy = served.requests()[-2:]
    assert sampled["temperature"] == pytest.approx(0.7)
    assert (sampled["top_k"], sampled["top_p"], sampled["seed"]) == (0, 1.0, 5)
    assert greedy["top_k"] == 1
    assert "temperature" not in greedy
    assert greedy["repetition_penalty"] == 1.0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"num_draft_tokens": 2}, "drafts 4 tokens in every round here, as the pair was built; leave it out"),
        ({"num_draft_tokens": 0}, "num_draft_tokens is 0"),
        ({"num_draft_tokens": "auto"}, "num_draft_tokens is -1"),
        ({"bad_words": ["main"]}, "not supported over the LLM API while it speculates: bad_words"),
        ({"embedding_bias": {"main": 3.0}}, "embedding_bias_words"),
        ({"use_draft_logits": True, "temperature": 1.0}, "use_draft_logits"),
        ({"min_tokens": 3}, "min_tokens"),
        ({"repetition_penalty": 1.2}, "the pair was built without --penalties"),
        ({"max_tokens": 5000}, "the engine holds 1024"),
    ],
)
def test_what_would_be_ignored_is_refused_by_its_name(
    options: dict[str, Any], reason: str, served: Running
) -> None:
    before = served.count("request")
    with pytest.raises(RequestRefused, match=reason):
        served.client.generate(PROMPT, **{"max_tokens": 8, **options})
    assert served.count("request") == before


def test_the_length_that_was_built_may_be_asked_for(served: Running) -> None:
    assert len(served.client.generate(PROMPT, max_tokens=8, num_draft_tokens=LENGTH).token_ids) == 8


def test_counters_count_what_the_answers_say(served: Running) -> None:
    names = ("trtspec_answers_total", "trtspec_accepted_draft_tokens_total")

    def counts() -> list[float]:
        metrics = served.client.metrics()
        return [metrics.total(name) for name in names]

    # Answers of before may be handed over during the first pass.
    for _ in range(3):
        before = counts()
        accepted = served.client.generate(PROMPT, max_tokens=30).speculation.accepted
        expected = [before[0] + 1, before[1] + accepted]
        until = time.monotonic() + 20
        while any(map(float.__lt__, counts(), expected)) and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(2 * HAND_OVER_S)  # what is counted twice shows
        found = counts()
        if found[0] == expected[0]:
            break
    assert accepted > 0
    assert found == expected


def test_missing_log_probs_are_an_error_and_not_a_silence(served: Running) -> None:
    aborted = served.count("abort")
    with served.acting(scores=False), pytest.raises(ServerFailed, match="gave no log-probs for some tokens"):
        served.client.generate(PROMPT, max_tokens=4, return_log_probs=True)
    served.wait_for("abort", aborted + 1)


def test_a_failure_inside_tensorrt_llm_reaches_the_caller_and_no_other(served: Running) -> None:
    with served.acting(fail_after=3):
        with pytest.raises(ServerFailed, match="RuntimeError: CUDA error: an illegal memory access"):
            served.client.generate(PROMPT, max_tokens=100)
        assert len(served.client.generate(PROMPT, max_tokens=2).token_ids) == 2


def test_a_request_that_tensorrt_llm_refuses_fails_with_its_words(served: Running) -> None:
    with (
        served.acting(refuse="prompt length exceeds"),
        pytest.raises(ServerFailed, match="TensorRT-LLM: ValueError: prompt length exceeds"),
    ):
        served.client.generate(PROMPT, max_tokens=4)


def test_a_caller_who_hangs_up_ends_a_request_of_which_nothing_comes(served: Running) -> None:
    aborted = served.count("abort")
    with served.acting(hang_after=2), served.client.stream(PROMPT, max_tokens=100) as stream:
        next(iter(stream))
    served.wait_for("abort", aborted + 1)


def test_tensorrt_llm_that_says_nothing_is_given_up(
    make_pair: Callable[..., EnginePair], tmp_path: Path
) -> None:
    """On the older release, whose arguments and penalties are other ones."""
    options = RepositoryOptions(target_timeout_s=4)  # longer than a busy machine holds a process up
    with running(make_pair(tensorrt_llm="1.2.1"), tmp_path, options) as found:
        found.client.generate(
            PROMPT, max_tokens=6, repetition_penalty=1.2, presence_penalty=0.5, min_tokens=2, end_id=-1
        )
        sent = found.requests()[-1]
        assert sent["prompt_ignore_length"] > 5
        assert (sent["min_tokens"], sent["end_id"]) == (2, -1)
        with found.acting(hang_after=1), pytest.raises(ServerFailed, match="gave no answer within 4 s"):
            found.client.generate(PROMPT, max_tokens=6)
        found.wait_for("abort", 1)
        assert found.count("abort") == 1
    assert found.count("shutdown") == 1


def test_a_server_that_would_refuse_its_arguments_does_not_start(
    make_pair: Callable[..., EnginePair], tmp_path: Path
) -> None:
    pair = make_pair(tensorrt_llm="1.2.1")
    with (
        pytest.raises(ServerError, match="Extra inputs are not permitted"),
        running(pair, tmp_path, version="1.4.0rc4"),
    ):
        pass
