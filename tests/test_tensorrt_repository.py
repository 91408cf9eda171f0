"""Repositories for TensorRT-LLM's engines: what the C++ backend reads, and what starts it.

No engine runs here: configurations are compared with the recipe, launch scripts are run against
doubles of mpirun and tritonserver that write down how they were called.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from recipe import NVIDIA_ENGINE_INPUTS, config, inputs
from tensorrt_engines import write_pair
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig, ModelInstanceGroup
from trtllm_build_double import install

from trtspec.build.options import BuildOptions
from trtspec.build.pair import build
from trtspec.build.runtimes.tensorrt.options import TensorrtOptions
from trtspec.engines.manifest import Manifest
from trtspec.engines.memory.result import MemoryPlan
from trtspec.engines.pair import EnginePair
from trtspec.errors import RepositoryError
from trtspec.triton_repo import contract
from trtspec.triton_repo.engine_config import read_engine_config
from trtspec.triton_repo.launch import LaunchOptions, container_command, launch_script, plan_launch
from trtspec.triton_repo.leaf_parameters import LEAF_PARAMETERS
from trtspec.triton_repo.lint import lint
from trtspec.triton_repo.repository import RepositoryOptions, plan_repository, write_repository
from trtspec.triton_repo.server.canary import ask_for_tokens
from trtspec.triton_repo.server.endpoints import Endpoints, choose_endpoints
from trtspec.triton_repo.server.environment import server_environment
from trtspec.triton_repo.server.installation import find_installation
from trtspec.triton_repo.tensorrt_repository import read_memory_plan

LEAVES = ("tensorrt_llm", "tensorrt_llm_draft")
# What the recipe of draft-target decoding sets, and the keys that must exist though nothing uses them.
RECIPE = {
    "gpt_model_type": "inflight_fused_batching",
    "max_beam_width": "1",
    "batch_scheduler_policy": "guaranteed_no_evict",
    "enable_kv_cache_reuse": "true",
    "exclude_input_in_output": "false",
    "executor_worker_path": "/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker",
    "tokenizer_dir": "",
    "guided_decoding_backend": "",
    "xgrammar_tokenizer_info_path": "",
}
FAST = LaunchOptions(fast_logits=True)
# Writes down its name, its arguments and what TensorRT-LLM reads of the environment.
RECORDER = """#!{python}
import json, os, pathlib, sys
call = {{"command": pathlib.Path(sys.argv[0]).name, "arguments": sys.argv[1:], "folder": os.getcwd(),
        "environment": {{k: v for k, v in os.environ.items() if k.startswith("TRTLLM_")}}}}
pathlib.Path("{record}").write_text(json.dumps(call))
"""


@pytest.fixture(scope="module")
def tokenizer(demo_pair: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    shutil.copyfile(demo_pair / "target" / "tokenizer.json", folder / "tokenizer.json")
    return folder


@pytest.fixture(scope="module")
def pair(tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> EnginePair:
    return write_pair(tmp_path_factory.mktemp("compiled") / "pair", tokenizer)


@pytest.fixture(scope="module")
def repository(pair: EnginePair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_repository(pair, tmp_path_factory.mktemp("repository") / "repo")


def parameters(config: ModelConfig) -> dict[str, str]:
    return {key: entry.string_value for key, entry in config.parameters.items()}


@pytest.mark.parametrize("model", LEAVES)
def test_engines_have_exactly_the_tensors_of_the_recipe(repository: Path, model: str) -> None:
    found = config(repository, model)
    assert {name: inputs(found)[name] for name in NVIDIA_ENGINE_INPUTS} == NVIDIA_ENGINE_INPUTS
    # The C++ model knows none of ours.
    assert inputs(found).keys() == {tensor.name for tensor in contract.LEAF_INPUTS}
    assert {output.name for output in found.output} == {tensor.name for tensor in contract.LEAF_OUTPUTS}


@pytest.mark.parametrize("model", LEAVES)
def test_engines_have_the_parameters_of_the_recipe(repository: Path, model: str) -> None:
    found = config(repository, model)
    assert (found.backend, found.max_batch_size) == ("tensorrtllm", 4)
    assert found.model_transaction_policy.decoupled
    assert [(group.count, group.kind) for group in found.instance_group] == [(1, ModelInstanceGroup.KIND_CPU)]
    written = parameters(found)
    assert {key: written.get(key) for key in RECIPE} == RECIPE
    assert written.keys() <= {parameter.name for parameter in LEAF_PARAMETERS}


def test_the_backend_understands_every_value(pair: EnginePair) -> None:
    known = {parameter.name: parameter for parameter in LEAF_PARAMETERS}
    for options in (RepositoryOptions(), RepositoryOptions(launch=FAST)):
        for model in plan_repository(pair, options).models[1:]:
            written = {key: value for key, value in parameters(model.config).items() if value}
            assert {
                key: known[key].fault(value) for key, value in written.items() if known[key].fault(value)
            } == {}


def test_engines_lie_where_their_configuration_says(repository: Path, pair: EnginePair) -> None:
    for model, engine in zip(LEAVES, (pair.target, pair.draft), strict=True):
        path = parameters(config(repository, model))["gpt_model_path"]
        assert not Path(path).is_absolute()
        assert os.path.samefile(repository / path / "rank0.engine", engine / "rank0.engine")


def test_the_loop_is_told_what_is_behind_it(repository: Path) -> None:
    written = parameters(config(repository, "tensorrt_llm_bls"))
    assert written["engine_runtime"] == "tensorrt"
    # What was asked for: the engine's own max_seq_len has room for drafted tokens on top.
    assert (written["max_seq_len"], written["draft_max_seq_len"], written["max_draft_len"]) == (
        "2048",
        "2048",
        "8",
    )


def test_logits_have_the_dtype_that_the_engine_gives(tokenizer: Path, tmp_path: Path) -> None:
    half = write_pair(tmp_path / "pair", tokenizer, logits_dtype="float16")
    target = config(write_repository(half, tmp_path / "repo"), "tensorrt_llm")
    tensors = [*target.input, *target.output]
    found = {t.name: DataType.Name(t.data_type) for t in tensors if t.name.endswith("_logits")}
    flags = {"return_context_logits": "TYPE_BOOL", "return_generation_logits": "TYPE_BOOL"}
    logits = dict.fromkeys(("draft_logits", "context_logits", "generation_logits"), "TYPE_FP16")
    assert found == logits | flags


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"logits_dtype": "bfloat16"}, "logits_dtype is bfloat16, expected float32 or float16"),
        ({"version": "0.19.0"}, r"built with TensorRT-LLM 0\.19\.0, which no known container has"),
    ],
)
def test_engines_that_nothing_serves_are_refused(
    tokenizer: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    pair = write_pair(tmp_path / "pair", tokenizer, **changes)
    with pytest.raises(RepositoryError, match=message):
        write_repository(pair, tmp_path / "repo")
    assert not (tmp_path / "repo").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"compiled": False}, "not compiled; compile them on a GPU host"),
        ({"runtime": "cpu"}, None),
    ],
)
def test_what_is_for_another_runtime_is_refused(
    pair: EnginePair, changes: dict[str, Any], message: str | None
) -> None:
    other = replace(pair, manifest=Manifest.model_validate(pair.manifest.model_dump() | changes))
    options = RepositoryOptions(launch=FAST)
    with pytest.raises(RepositoryError, match=message or "fast logits and memory plans are for"):
        plan_repository(other, options)


@pytest.mark.parametrize(
    ("ranks", "options", "shares"),
    [
        ((1, 1), LaunchOptions(), ("0.6", "0.2")),
        ((2, 1), LaunchOptions(), ("0.6", "0.2")),
        ((1, 1), LaunchOptions(target_gpus=(0,), draft_gpus=(1,)), ("0.9", "0.9")),
    ],
)
def test_without_a_memory_plan_a_shared_gpu_is_shared(
    tokenizer: Path, tmp_path: Path, ranks: tuple[int, int], options: LaunchOptions, shares: tuple[str, str]
) -> None:
    pair = write_pair(tmp_path / "pair", tokenizer, target_tp=ranks[0], draft_tp=ranks[1])
    models = plan_repository(pair, RepositoryOptions(launch=options)).models[1:]
    assert [parameters(m.config)["kv_cache_free_gpu_mem_fraction"] for m in models] == list(shares)


def memory_plan(**changes: Any) -> MemoryPlan:
    def model(gpu: int, tokens: int, fraction: float) -> dict[str, Any]:
        return {
            "gpus": (gpu,),
            "ranks": (),
            "max_tokens": tokens,
            "fraction_loaded_first": fraction / 2,
            "fraction_loaded_second": fraction,
        }

    values = {
        "gpu": "H100",
        "gpu_memory_bytes": 80 << 30,
        "runtime": "tensorrt",
        "placement": "apart",
        "max_seq_len": 2048,
        "max_batch_size": 4,
        "max_draft_len": 8,
        "max_num_tokens": 8192,
        "target": model(1, 70000, 0.75),
        "draft": model(0, 60000, 0.5),
        "shared_fraction": None,
        "gpus": (),
        "concurrency": (),
    }
    return MemoryPlan.model_validate(values | changes)


def test_a_memory_plan_sets_gpus_and_caches(pair: EnginePair, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(memory_plan().model_dump_json())
    models = plan_repository(pair, RepositoryOptions(memory=read_memory_plan(file))).models[1:]
    keys = ("gpu_device_ids", "kv_cache_free_gpu_mem_fraction", "max_tokens_in_paged_kv_cache")
    found = [[parameters(model.config)[key] for key in keys] for model in models]
    assert found == [["1", "0.75", "70000"], ["0", "0.5", "60000"]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            RepositoryOptions(memory=memory_plan(max_seq_len=64, max_batch_size=1)),
            "plan is for max_seq_len 64, the engine has 2048; max_batch_size 1, the engine has 4",
        ),
        (RepositoryOptions(memory=memory_plan(runtime="pytorch")), "memory plan is for --runtime pytorch"),
        (
            RepositoryOptions(memory=memory_plan(), launch=LaunchOptions(draft_gpus=(3,))),
            r"draft: GPUs \(3,\) asked for, the memory plan has \(0,\)",
        ),
    ],
)
def test_a_memory_plan_that_contradicts_is_refused(
    pair: EnginePair, options: RepositoryOptions, message: str
) -> None:
    with pytest.raises(RepositoryError, match=message):
        plan_repository(pair, options)


def test_a_file_that_is_no_memory_plan_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"gpu": "H100"}')
    with pytest.raises(RepositoryError, match=r"plan\.json: gpu_memory_bytes: Field required, expected what"):
        read_memory_plan(tmp_path / "plan.json")
    (tmp_path / "plan.json").write_text('{"reason": "too large", "would_fit": ["--tp 2"]}')
    with pytest.raises(RepositoryError, match=r"plan\.json: says that nothing fits; plan again"):
        read_memory_plan(tmp_path / "plan.json")


@pytest.mark.parametrize(
    ("ranks", "options", "mode", "participants", "world_size"),
    [
        ((1, 1), LaunchOptions(), "leader", ((), ()), 1),
        ((4, 1), LaunchOptions(), "orchestrator", ((), ()), 1),
        ((1, 1), FAST, "ranks", ((2,), (1,)), 3),
        ((4, 2), FAST, "ranks", ((3, 4, 5, 6), (1, 2)), 7),
        ((2, 1), LaunchOptions(mode="ranks"), "ranks", ((2, 3), (1,)), 4),
        ((1, 1), LaunchOptions(mode="orchestrator"), "orchestrator", ((), ()), 1),
    ],
)
def test_ranks_are_placed_as_the_recipe_places_them(
    ranks: tuple[int, int],
    options: LaunchOptions,
    mode: str,
    participants: tuple[tuple[int, ...], tuple[int, ...]],
    world_size: int,
) -> None:
    plan = plan_launch(*ranks, options)
    found = (plan.mode, (plan.target_participants, plan.draft_participants), plan.world_size)
    assert found == (mode, participants, world_size)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (LaunchOptions(mode="orchestrator", fast_logits=True), "need launch mode ranks, not orchestrator"),
        (LaunchOptions(mode="leader"), "leader is for engines of one rank; these have 2 and 1"),
        (LaunchOptions(target_gpus=(0,)), "target: 1 GPUs given, its engine has 2 ranks"),
        (LaunchOptions(target_gpus=(1, 1)), "target: a GPU is given twice"),
        (LaunchOptions(draft_gpus=()), "draft: 0 GPUs given, its engine has 1 ranks"),
    ],
)
def test_placements_that_do_not_fit_are_refused(options: LaunchOptions, message: str) -> None:
    with pytest.raises(RepositoryError, match=message):
        plan_launch(2, 1, options)


def run_script(script: str, tmp_path: Path, *arguments: str, **environment: str) -> dict[str, Any]:
    """Run a launch script from another folder and return how the server would have been started."""
    folder = tmp_path / "a repository"
    for name in (folder, tmp_path / "bin"):
        name.mkdir(exist_ok=True)
    (folder / "launch.sh").write_text(script)
    record = tmp_path / "call.json"
    for command in ("mpirun", "tritonserver"):
        double = tmp_path / "bin" / command
        double.write_text(RECORDER.format(python=sys.executable, record=record))
        double.chmod(0o755)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    subprocess.run(
        ["sh", str(folder / "launch.sh"), *arguments],
        env={"PATH": path} | environment,
        check=True,
        cwd=tmp_path,
    )
    call: dict[str, Any] = json.loads(record.read_text())
    assert call["folder"] == str(folder)
    return call


def test_engines_of_one_rank_are_started_by_triton_alone(tmp_path: Path) -> None:
    call = run_script(launch_script(plan_launch(1, 1, LaunchOptions()), "image"), tmp_path, "--log-verbose=1")
    assert (call["command"], call["environment"]) == ("tritonserver", {})
    options = dict(argument.lstrip("-").partition("=")[::2] for argument in call["arguments"])
    assert options["model-repository"] == "."
    assert {options[f"{name}-address"] for name in ("http", "grpc", "metrics")} == {"127.0.0.1"}
    assert (options["http-port"], options["grpc-port"], options["metrics-port"]) == ("8000", "8001", "8002")
    assert "disable-auto-complete-config" in options
    assert options["log-verbose"] == "1"
    assert options["backend-config"].startswith("python,shm-region-prefix-name=")


def test_apis_that_serving_does_not_need_are_closed_with_a_new_secret(tmp_path: Path) -> None:
    script = launch_script(plan_launch(1, 1, LaunchOptions()), "image")
    closed = []
    for _ in range(2):
        call = run_script(script, tmp_path)
        (value,) = (a for a in call["arguments"] if a.startswith("--http-restricted-api="))
        apis, _, secret = value.partition("=")[2].rpartition("=")
        assert apis == "model-repository,shared-memory,trace,logging:closed"
        closed.append(secret)
    assert len(set(closed)) == 2
    assert all(len(secret) == 32 and int(secret, 16) for secret in closed)


def test_where_it_listens_is_up_to_the_environment(tmp_path: Path) -> None:
    script = launch_script(plan_launch(1, 1, LaunchOptions()), "image")
    call = run_script(script, tmp_path, HOST="0.0.0.0", GRPC_PORT="9001")
    assert {"--http-address=0.0.0.0", "--grpc-port=9001"} <= set(call["arguments"])


def test_an_orchestrator_that_spawns_is_one_process_that_leaves_gpu_memory_alone(tmp_path: Path) -> None:
    call = run_script(launch_script(plan_launch(2, 1, LaunchOptions()), "image"), tmp_path)
    assert call["environment"] == {"TRTLLM_ORCHESTRATOR": "1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "1"}
    assert call["command"] == "mpirun"
    assert call["arguments"][:4] == ["--allow-run-as-root", "-n", "1", "tritonserver"]
    assert ":" not in call["arguments"]
    memory = {
        "--pinned-memory-pool-byte-size=0",
        "--cuda-memory-pool-byte-size=0:0",
        "--cuda-memory-pool-byte-size=1:0",
    }
    assert memory | {"--enable-peer-access=false"} <= set(call["arguments"])


def test_every_rank_gets_a_process_and_only_the_first_the_loop(tmp_path: Path) -> None:
    plan = plan_launch(2, 1, FAST)
    call = run_script(launch_script(plan, "image"), tmp_path)
    assert call["environment"] == {"TRTLLM_ORCHESTRATOR": "1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "0"}
    arguments = call["arguments"][1:]
    processes: list[list[str]] = [[]]
    for argument in arguments:
        processes.append([]) if argument == ":" else processes[-1].append(argument)
    assert len(processes) == plan.world_size == 4
    assert all(process[:3] == ["-n", "1", "tritonserver"] for process in processes)
    loaded = [[a for a in process if a.startswith("--load-model=")] for process in processes]
    assert loaded == [[], *[["--load-model=tensorrt_llm", "--load-model=tensorrt_llm_draft"]] * 3]
    assert ["--model-control-mode=explicit" in process for process in processes] == [False, True, True, True]
    prefixes = {a for process in processes for a in process if "shm-region-prefix-name" in a}
    assert len(prefixes) == 4


def test_a_container_is_started_with_room_and_reads_only() -> None:
    words = container_command(Path("/srv/my repo"), "image:tag").split("'")
    assert words[1] == "/srv/my repo:/repository:ro"
    assert words[0].startswith("docker run --rm --gpus all")
    assert "--shm-size=1g" in words[0]
    assert words[2].split() == ["image:tag", "sh", "/repository/launch.sh"]


def test_the_newest_container_with_the_engines_release_is_named(pair: EnginePair) -> None:
    contents = plan_repository(pair, RepositoryOptions())
    assert contents.image == "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"
    assert contents.image in contents.scripts["launch.sh"]


def test_what_the_pair_was_built_in_goes_before_the_newest_container(pair: EnginePair) -> None:
    image = "nvcr.io/nvidia/tritonserver:26.04-trtllm-python-py3"
    needs = {"host_needs": {"container": image}}
    built = replace(pair, manifest=Manifest.model_validate(pair.manifest.model_dump() | needs))
    assert plan_repository(built, RepositoryOptions()).image == image


def test_the_launch_script_starts_a_server_that_answers(built_pair: EnginePair, tmp_path: Path) -> None:
    """With engines of the cpu runtime, which the script knows nothing about."""
    repository = write_repository(built_pair, tmp_path / "repo")
    (repository / "launch.sh").write_text(launch_script(plan_launch(1, 1, LaunchOptions()), "image"))
    installation = find_installation()
    backends = installation.link_backends(tmp_path / "backends")
    command = tmp_path / "bin" / "tritonserver"
    command.parent.mkdir()
    option = f" --backend-directory={backends}" if backends else ""
    command.write_text(f'#!/bin/sh\nexec {installation.binary} "$@"{option}\n')
    command.chmod(0o755)
    endpoints = choose_endpoints("127.0.0.1", http_port=0, grpc_port=0, metrics_port=0)
    environment = server_environment(installation, f"trtspec-test-{os.getpid()}-")
    ports = {
        "HTTP_PORT": endpoints.http_port,
        "GRPC_PORT": endpoints.grpc_port,
        "METRICS_PORT": endpoints.metrics_port,
    }
    environment |= {name: str(port) for name, port in ports.items()}
    environment["PATH"] = f"{command.parent}:{environment['PATH']}"
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(
            ["sh", str(repository / "launch.sh")], env=environment, cwd=tmp_path, stdout=log, stderr=log
        )
        try:
            wait_until(lambda: is_ready(endpoints), server, tmp_path / "log")
            ask_for_tokens(endpoints)
        finally:
            server.terminate()
            code = server.wait(60)
    assert code == 0


def wait_until(done: Callable[[], bool], server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(1200):
        if done():
            return
        assert server.poll() is None, log.read_text()[-2000:]
        time.sleep(0.1)
    raise AssertionError(log.read_text()[-2000:])


def is_ready(endpoints: Endpoints) -> bool:
    connection = HTTPConnection(endpoints.host, endpoints.http_port, timeout=2)
    with closing(connection):
        try:
            connection.request("GET", "/v2/health/ready")
            return connection.getresponse().status == 200
        except OSError:
            return False


@pytest.mark.parametrize("draft_tp", [1, 2])
def test_a_pair_as_it_is_compiled_becomes_a_repository_without_a_finding(
    demo_pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, draft_tp: int
) -> None:
    for name, value in install(tmp_path / "tools").items():
        monkeypatch.setenv(name, value)
    options = BuildOptions(
        runtime="tensorrt", dtype="bfloat16", tp=2, tensorrt=TensorrtOptions(draft_tp=draft_tp)
    )
    pair = build(
        demo_pair / "target", demo_pair / "draft", tmp_path / "pair", options, report=lambda line: None
    )
    repository = write_repository(pair, tmp_path / "repo")
    assert lint(repository) == ()
    engines = [read_engine_config(repository / model / "1" / "engine") for model in LEAVES]
    assert [engine.ranks for engine in engines] == [2, draft_tp]
    gpus = [parameters(config(repository, model))["gpu_device_ids"] for model in LEAVES]
    assert gpus == ["0,1", "0,1" if draft_tp == 2 else "0"]
