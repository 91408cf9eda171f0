"""What a round of speculation costs when the engines cost nothing: the loop, Triton and the client.

    python benchmarks/orchestration.py [--seconds 6] [--runs 3] [--json]

The public model that ships, in front of two scripted engines that answer at once: γ = 4, each draft
token accepted with probability 0.8, answers of 128 tokens, streamed over gRPC. A round is one draft
call and one target call. The client reads responses without decoding them, so that it takes as
little as it can of the cores it shares with the server. Beside it, in the same run, a model that makes the
two calls, sends a response and does nothing else: what Triton itself costs on this machine. Memory is
what the models' processes hold when all is done, shared pages counted in each.
"""

from __future__ import annotations

import json
import platform
import shutil
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import click
import grpc
import numpy as np
from tritonclient.grpc import service_pb2

from trtspec.build.pair import build
from trtspec.triton_repo.contract import DRAFT_MODEL, PUBLIC_MODEL, TARGET_MODEL
from trtspec.triton_repo.repository import write_repository
from trtspec.triton_repo.server import FREE_PORTS, Server, serve

IN_FLIGHT = (1, 8, 32)
NEW_TOKENS = 128
NUM_DRAFT_TOKENS = 4

# A double of TensorRT-LLM's model: its tensors and its rules for drafts, and tokens from a formula.
# The draft's formula differs from the target's at a fifth of all positions.
SCRIPTED_ENGINE = '''
import numpy as np
import triton_python_backend_utils as pb

FINAL = pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL
IS_DRAFT = {is_draft}


def token(position):
    mixed = (position * 2654435761 + 12345) % 2**32
    return 300 + mixed % 3000 + (IS_DRAFT and (mixed >> 16) % 5 == 0)


def rows(request, name, default):
    tensor = pb.get_input_tensor_by_name(request, name)
    return default if tensor is None else tensor.as_numpy()


def answer(length, count, drafted):
    """Return the new ids of one call."""
    ids = [token(length + i) for i in range(count)]
    if not len(drafted):
        return ids
    accepted = 0
    while accepted < len(drafted) and ids[accepted] == drafted[accepted]:
        accepted += 1
    return ids[: accepted + 1]


def response(answers):
    ids = np.zeros((len(answers), 1, max(map(len, answers))), np.int32)
    for row, found in zip(ids, answers):
        row[0, : len(found)] = found
    lengths = np.array([[len(found)] for found in answers], np.int32)
    return pb.InferenceResponse([pb.Tensor("output_ids", ids), pb.Tensor("sequence_length", lengths)])


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            lengths = rows(request, "input_lengths", None).reshape(-1).tolist()
            counts = rows(request, "request_output_len", None).reshape(-1).tolist()
            drafted = rows(request, "draft_input_ids", [()] * len(lengths))
            answers = [answer(*row) for row in zip(lengths, counts, map(list, drafted))]
            request.get_response_sender().send(response(answers), flags=FINAL)
'''


BARE = "bare_calls"
BARE_ROUNDS = 40
BARE_CONFIG = """
backend: "python"
max_batch_size: 1
model_transaction_policy { decoupled: true }
instance_group [ { count: 1 kind: KIND_CPU } ]
input [ { name: "max_tokens" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "num_rounds" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
BARE_MODEL = '''
import numpy as np
import triton_python_backend_utils as pb

ROUNDS = {rounds}
FINAL = pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def call(model, count, **inputs):
    """Make one call; the responses have to outlive it."""
    arrays = {{"input_lengths": [[16]], "request_output_len": [[count]], "input_ids": [[5] * 16], **inputs}}
    tensors = [pb.Tensor(name, np.array(array, np.int32)) for name, array in arrays.items()]
    outputs = ["output_ids", "sequence_length"]
    responses = pb.InferenceRequest(model_name=model, inputs=tensors, requested_output_names=outputs).exec(
        decoupled=True
    )
    for response in responses:
        pass
    return responses


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender, ended = request.get_response_sender(), []
            for number in range(1, ROUNDS + 1):
                ended.append(call("tensorrt_llm_draft", 4))
                ended.append(call("tensorrt_llm", 5, draft_input_ids=[[5] * 4]))
                tensor = pb.Tensor("num_rounds", np.array([[number]], np.int32))
                if number == ROUNDS:
                    sender.is_cancelled()
                sender.send(pb.InferenceResponse([tensor]), flags=FINAL if number == ROUNDS else 0)
'''


def scripted_repository(folder: Path) -> Path:
    """Return a repository of the demo pair whose engines have been replaced."""
    source = Path(str(files("trtspec") / "demo_pair"))
    pair = build(source / "target", source / "draft", folder / "pair", report=lambda line: None)
    repository = write_repository(pair, folder / "repo")
    for name in (TARGET_MODEL, DRAFT_MODEL):
        version = repository / name / "1"
        shutil.rmtree(version / "engine")
        (version / "model.py").write_text(SCRIPTED_ENGINE.replace("{is_draft}", str(name == DRAFT_MODEL)))
    bare = repository / BARE
    (bare / "1").mkdir(parents=True)
    (bare / "config.pbtxt").write_text(BARE_CONFIG)
    (bare / "1" / "model.py").write_text(BARE_MODEL.format(rounds=BARE_ROUNDS))
    return repository


def request_bytes(model: str) -> bytes:
    request = service_pb2.ModelInferRequest(model_name=model)

    def add(name: str, datatype: str, value: bytes) -> None:
        request.inputs.add(name=name, datatype=datatype, shape=[1, 1])
        request.raw_input_contents.append(value)

    if model == BARE:
        add("max_tokens", "INT32", np.int32(NEW_TOKENS).tobytes())
        return bytes(request.SerializeToString())
    add("text_input", "BYTES", len(b"def main(").to_bytes(4, "little") + b"def main(")
    add("max_tokens", "INT32", np.int32(NEW_TOKENS).tobytes())
    add("num_draft_tokens", "INT32", np.int32(NUM_DRAFT_TOKENS).tobytes())
    add("stream", "BOOL", b"\1")
    return bytes(request.SerializeToString())


def rounds_of(last_response: bytes) -> int:
    response = service_pb2.ModelStreamInferResponse.FromString(last_response)
    if response.error_message:
        raise click.ClickException(response.error_message)
    outputs = zip(response.infer_response.outputs, response.infer_response.raw_output_contents, strict=True)
    values = {output.name: content for output, content in outputs}
    return int(np.frombuffer(values["num_rounds"], np.int32)[0])


class Load:
    """Requests without pause, so many at a time."""

    def __init__(self, channel: grpc.Channel, model: str) -> None:
        # No deserialiser: a response stays the bytes it is.
        self._ask = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        self._request = request_bytes(model)

    def run(self, in_flight: int, seconds: float) -> tuple[int, float, float]:
        """Return rounds, seconds, and responses a round."""
        started = time.perf_counter()
        until = started + seconds
        with ThreadPoolExecutor(in_flight) as threads:
            counts = list(threads.map(lambda _: self._repeat(until), range(in_flight)))
        rounds = sum(count for count, _ in counts)
        return rounds, time.perf_counter() - started, sum(count for _, count in counts) / rounds

    def _repeat(self, until: float) -> tuple[int, int]:
        rounds = responses = 0
        while time.perf_counter() < until:
            last = b""
            for response in self._ask(iter([self._request])):
                last = response
                responses += 1
            rounds += rounds_of(last)
        return rounds, responses


def resident_mb(server: Server) -> dict[str, float]:
    """Return the resident memory of each model's process."""
    found = {}
    for pid in Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split():
        command = Path(f"/proc/{pid}/cmdline").read_text()
        for name in (PUBLIC_MODEL, TARGET_MODEL, DRAFT_MODEL):
            if f"/{name}/" in command:
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                found[name] = pages * 4096 / 1e6
    return found


@click.command(help=__doc__)
@click.option("--seconds", type=click.FloatRange(min=0.1), default=6.0, show_default=True, help="Each point.")
@click.option("--runs", type=click.IntRange(1), default=3, show_default=True)
@click.option("--keep-awake", is_flag=True, help="As of `trtspec serve`.")
@click.option("--json", "as_json", is_flag=True)
def main(seconds: float, runs: int, keep_awake: bool, as_json: bool) -> None:
    measured: dict[int, list[tuple[float, float]]] = {in_flight: [] for in_flight in IN_FLIGHT}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        repository = scripted_repository(folder)
        server = stack.enter_context(serve(repository, replace(FREE_PORTS, keep_awake=keep_awake)))
        channel = stack.enter_context(grpc.insecure_channel(server.grpc_url))
        load, bare = Load(channel, PUBLIC_MODEL), Load(channel, BARE)
        bare_ms: list[float] = []
        load.run(max(IN_FLIGHT), 1.0)
        for _ in range(runs):
            rounds, elapsed, _ = bare.run(1, seconds)
            bare_ms.append(elapsed / rounds * 1e3)
            for in_flight in IN_FLIGHT:
                rounds, elapsed, responses = load.run(in_flight, seconds)
                measured[in_flight].append((rounds / elapsed, responses))
        memory = resident_mb(server)
    result = {
        in_flight: {
            "rounds_per_s": statistics.median(rate for rate, _ in points),
            "responses_per_round": statistics.median(responses for _, responses in points),
        }
        for in_flight, points in measured.items()
    }
    if as_json:
        click.echo(
            json.dumps(
                {
                    "bare_ms": statistics.median(bare_ms),
                    "in_flight": result,
                    "resident_mb": memory,
                    "runs": runs,
                }
            )
        )
        return
    click.echo(f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}; {runs} runs")
    click.echo("in flight  rounds/s  ms a round each  responses a round")
    for in_flight, point in result.items():
        rate, responses = point["rounds_per_s"], point["responses_per_round"]
        click.echo(f"{in_flight:9}  {rate:8.0f}  {in_flight / rate * 1e3:15.2f}  {responses:17.2f}")
    click.echo(f"two bare calls and a response: {statistics.median(bare_ms):.2f} ms")
    click.echo("resident: " + ", ".join(f"{name} {size:.0f} MB" for name, size in memory.items()))


if __name__ == "__main__":
    main()
