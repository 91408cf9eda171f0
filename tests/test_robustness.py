"""A live server whose callers leave and whose engines stop, stall and die."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from trtspec.client import CallFailed, Client, Generation, ServerBusy
from trtspec.engines.pair import EnginePair
from trtspec.triton_repo.repository import RepositoryOptions, write_repository
from trtspec.triton_repo.server import FREE_PORTS, Server, serve
from trtspec.triton_repo.speculation.metrics import HAND_OVER_S

PROMPT = "def read_lines(path):\n    "
CAPACITY = 8
# Longer than a busy machine holds a process up.
DRAFT_TIMEOUT_S = 4.0
TARGET_TIMEOUT_S = 6.0
# Far above what anything here takes, below what a test may hang.
PATIENCE_S = 60.0


# Seeds of requests that both engines fail at, or refuse.
FAILING_SEED, REFUSED_SEED = 13, 14

# The cpu engine, but it takes no request while a file is there, and some seeds are too much for it.
WEDGING_ENGINE = """
import os, time
from cpu_engine.errors import RequestError
from cpu_engine.serving import TritonPythonModel as Engine

class TritonPythonModel(Engine):
    def execute(self, requests):
        while os.path.exists({flag!r}):
            time.sleep(0.02)
        super().execute(requests)

    def _submit(self, request, rows):
        seeds = [row["seed"].item() for row in rows if "seed" in row]
        if {failing} in seeds:
            raise RuntimeError("an unlucky seed")
        if {refused} in seeds:
            raise RequestError("not with that seed")
        super()._submit(request, rows)
"""


@pytest.fixture(scope="module")
def server(built_pair: EnginePair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = RepositoryOptions(
        num_draft_tokens=3,
        max_inflight_requests=CAPACITY,
        draft_timeout_s=DRAFT_TIMEOUT_S,
        target_timeout_s=TARGET_TIMEOUT_S,
    )
    repository = write_repository(built_pair, tmp_path_factory.mktemp("robust") / "repo", options)
    for model in ("tensorrt_llm", "tensorrt_llm_draft"):
        flag = str(repository / model / "wedged")
        engine = WEDGING_ENGINE.format(flag=flag, failing=FAILING_SEED, refused=REFUSED_SEED)
        (repository / model / "1" / "model.py").write_text(engine)
    # Triton waits for a dead model's requests until its exit timeout.
    with serve(repository, replace(FREE_PORTS, stop_timeout_s=1.0)) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Client]:
    with Client(server.grpc_url, timeout_s=PATIENCE_S, metrics_url=server.metrics_url) as client:
        yield client


def stub_pid(server: Server, model: str) -> int:
    """The process of a model's Python stub."""
    path = str(server.repository / model / "1" / "model.py").encode()
    for pid in Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split():
        if path in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
            return int(pid)
    raise AssertionError(f"no stub of {model}")


@contextmanager
def wedged(server: Server, model: str) -> Iterator[None]:
    """A model that answers nothing for a while, though its process is well."""
    flag = server.repository / model / "wedged"
    flag.touch()
    try:
        yield
    finally:
        flag.unlink()


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not (holds := condition()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return holds


def rounds(answer: Generation) -> int:
    assert answer.speculation
    return answer.speculation.rounds


def off_reason(answer: Generation) -> str:
    assert answer.speculation
    return answer.speculation.off_reason


def storm(server: Server, client: Client, disconnects: int) -> None:
    """Callers who leave, at once, after the first words or at their deadline; there is a queue of them."""

    def leave(i: int) -> None:
        how = i % 3
        options = {"max_tokens": 1500, "num_draft_tokens": 3 * (i % 2)}
        try:
            if how == 2:
                hurried.generate(PROMPT, **options)
            else:
                with client.stream(PROMPT, **options) as stream:
                    if how:
                        next(stream)
        except CallFailed as error:
            if "busy" in str(error):
                time.sleep(0.02)
                leave(i)

    with Client(server.grpc_url, timeout_s=0.2) as hurried, ThreadPoolExecutor(CAPACITY) as threads:
        list(threads.map(leave, range(disconnects)))


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def shared_memory(server: Server) -> int:
    return sum(path.stat().st_size for path in Path("/dev/shm").glob(f"{server.marker}*"))


def engines_rest(server: Server) -> bool:
    """Whether neither engine has a sequence left: each would be stepping through it."""
    pids = [stub_pid(server, name) for name in ("tensorrt_llm", "tensorrt_llm_draft")]
    before = [cpu_ticks(pid) for pid in pids]
    time.sleep(0.3)
    return [cpu_ticks(pid) for pid in pids] == before


def test_a_storm_of_disconnects_leaves_nothing(server: Server, client: Client) -> None:
    sizes = []
    # A storm may find more at once than the one before and need more room; it does not each time.
    while len(sizes) < 2 or (sizes[-1] > sizes[-2] and len(sizes) < 8):
        storm(server, client, 100)
        assert eventually(lambda: engines_rest(server))
        sizes.append(shared_memory(server))
    assert sizes[-1] <= sizes[-2], sizes
    # As many at once as there is room for: nobody who left has kept a place.
    answers: list[Generation] = []

    def all_have_room() -> bool:
        with suppress(ServerBusy), ThreadPoolExecutor(CAPACITY) as threads:
            answers[:] = threads.map(lambda i: client.generate(PROMPT, max_tokens=16), range(CAPACITY))
        return bool(answers)

    assert eventually(all_have_room)
    assert len({answer.token_ids for answer in answers}) == 1


def test_one_more_than_there_is_room_for_is_told_so(server: Server, client: Client) -> None:
    streams = [client.stream(PROMPT, max_tokens=1500) for _ in range(CAPACITY)]
    try:
        for stream in streams:
            next(stream)
        with pytest.raises(CallFailed, match=f"busy: {CAPACITY} requests are in flight; try again later"):
            client.generate(PROMPT, max_tokens=4)
    finally:
        for stream in streams:
            stream.close()
    assert eventually(lambda: has_room(client))


def has_room(client: Client) -> bool:
    try:
        return bool(client.generate(PROMPT, max_tokens=4).token_ids)
    except CallFailed:
        return False


def test_answers_go_on_without_a_wedged_draft_and_take_it_up_again(server: Server, client: Client) -> None:
    whole = client.generate(PROMPT, max_tokens=24)
    assert rounds(whole) > 0
    with wedged(server, "tensorrt_llm_draft"):
        with ThreadPoolExecutor(4) as threads:
            answers = list(threads.map(lambda i: client.generate(PROMPT, max_tokens=24), range(4)))
        after = client.generate(PROMPT, max_tokens=24)
        assert eventually(lambda: client.metrics().total("trtspec_draft_failing") == 1)
    assert {answer.token_ids for answer in (*answers, after)} == {whole.token_ids}
    expected = f"the draft failed: the draft engine gave no answer within {DRAFT_TIMEOUT_S:g} s"
    assert {off_reason(answer) for answer in (*answers, after)} == {expected}
    assert rounds(after) == 0
    assert eventually(lambda: rounds(client.generate(PROMPT, max_tokens=24)) > 0)
    assert eventually(lambda: client.metrics().total("trtspec_draft_failing") == 0)


@pytest.mark.parametrize(
    ("seed", "error"),
    [
        (FAILING_SEED, "the server failed: tensorrt_llm: .*an unlucky seed"),
        (REFUSED_SEED, "refused: tensorrt_llm: not with that seed"),
    ],
)
def test_a_request_that_both_engines_fail_at_takes_the_draft_from_no_other(
    client: Client, seed: int, error: str
) -> None:
    before = client.metrics().total("trtspec_draft_failures_total")
    with pytest.raises(CallFailed, match=error):
        client.generate(PROMPT, max_tokens=8, temperature=1.0, seed=seed)
    assert rounds(client.generate(PROMPT, max_tokens=8)) > 0
    time.sleep(2 * HAND_OVER_S)
    assert client.metrics().total("trtspec_draft_failures_total") == before


def test_a_wedged_target_ends_answers_and_is_asked_again(server: Server, client: Client) -> None:
    message = f"the target engine gave no answer within {TARGET_TIMEOUT_S:g} s"
    with wedged(server, "tensorrt_llm"):
        for num_draft_tokens in (0, 3):
            with pytest.raises(CallFailed, match=message):
                client.generate(PROMPT, max_tokens=24, num_draft_tokens=num_draft_tokens)
    assert client.generate(PROMPT, max_tokens=24).token_ids


# Last: nothing brings a dead process back.
def test_an_answer_survives_the_death_of_the_draft(server: Server, client: Client) -> None:
    whole = client.generate(PROMPT, max_tokens=32, num_draft_tokens=0)
    os.kill(stub_pid(server, "tensorrt_llm_draft"), signal.SIGKILL)
    survived = client.generate(PROMPT, max_tokens=32)
    assert survived.token_ids == whole.token_ids
    assert off_reason(survived).startswith("the draft failed: tensorrt_llm_draft")
