"""The parts a server is started from: ports, environment, installation, log, what is left behind."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtspec.errors import RepositoryError, ServerError
from trtspec.triton_repo.repository_files import configurations
from trtspec.triton_repo.server import FREE_PORTS, Server, leftovers, serve
from trtspec.triton_repo.server.command_line import server_arguments
from trtspec.triton_repo.server.cores_awake import cores_awake
from trtspec.triton_repo.server.endpoints import Endpoints, choose_endpoints
from trtspec.triton_repo.server.environment import server_environment
from trtspec.triton_repo.server.installation import Installation, bundled_installation, find_installation
from trtspec.triton_repo.server.preflight import require_shared_memory
from trtspec.triton_repo.server.server_log import (
    ServerLog,
    complaints,
    load_failures,
    says_why,
    still_loading,
    termination,
)

LOOPBACK = Endpoints("127.0.0.1", http_port=8000, grpc_port=8001, metrics_port=8002)

# What tritonserver 2.51 wrote, shortened.
LOADING = 'I1129 17:18:48.575869 10250 model_lifecycle.cc:472] "loading: broken:1"\n'
LOADED = "I1129 17:18:48.722506 10250 model_lifecycle.cc:839] \"successfully loaded 'broken'\"\n"
FAILED = (
    "E1129 17:18:48.938414 10250 model_lifecycle.cc:642] \"failed to load 'broken' version 1: Internal: "
    "ValueError: no engine;\\nsecond line\\n\\nAt:\\n  /repo/broken/1/model.py(5): deep\\n"
    '  <frozen importlib._bootstrap>(241): _call\\n"\n'
)
CHATTER = (
    'E1129 17:18:48.574640 10250 server.cc:241] "CudaDriverHelper has not been initialized."\n'
    "+-------+\n| Model |\n+-------+\n\n"
)


# Ports


def test_every_port_that_clashes_is_named():
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        http, metrics = first.getsockname()[1], second.getsockname()[1]
        with pytest.raises(
            ServerError, match=rf"http port {http}: .* in use; metrics port {metrics}: .* in use"
        ):
            choose_endpoints("127.0.0.1", http_port=http, grpc_port=0, metrics_port=metrics)


def test_one_port_cannot_be_given_twice():
    free = choose_endpoints("127.0.0.1", http_port=0, grpc_port=0, metrics_port=0)
    with pytest.raises(ServerError, match=f"grpc port {free.http_port}"):
        choose_endpoints("127.0.0.1", http_port=free.http_port, grpc_port=free.http_port, metrics_port=0)


def test_port_0_becomes_a_free_port_each():
    chosen = choose_endpoints("localhost", http_port=0, grpc_port=0, metrics_port=0)
    assert chosen.host == "127.0.0.1"
    assert len({chosen.http_port, chosen.grpc_port, chosen.metrics_port, 0}) == 4


@pytest.mark.parametrize("host", ["", "::1", "gpu-7.internal", "256.0.0.1"])
def test_a_host_that_is_no_ipv4_address_is_refused(host: str):
    with pytest.raises(ServerError, match="found neither an IPv4 address"):
        choose_endpoints(host, http_port=0, grpc_port=0, metrics_port=0)


def test_an_address_of_another_machine_is_refused():
    with pytest.raises(ServerError, match=r"192\.0\.2\.1: http port 0: Cannot assign"):
        choose_endpoints("192.0.2.1", http_port=0, grpc_port=0, metrics_port=0)


def test_a_server_on_every_interface_is_reached_through_loopback():
    assert Endpoints("0.0.0.0", 1, 2, 3).grpc_url == "127.0.0.1:2"
    assert Endpoints("0.0.0.0", 1, 2, 3).metrics_url == "http://127.0.0.1:3/metrics"


# Arguments and environment


def test_the_arguments_hold_what_the_server_must_not_be_left_to_default():
    arguments = server_arguments(
        Path("/repo"), LOOPBACK, marker="mark_", exit_timeout_s=7, backend_directory=None
    )
    assert "--disable-auto-complete-config" in arguments
    values = dict(argument.removeprefix("--").partition("=")[::2] for argument in arguments)
    assert {values[f"{name}-address"] for name in ("http", "grpc", "metrics")} == {"127.0.0.1"}
    assert [values[f"{name}-port"] for name in ("http", "grpc", "metrics")] == ["8000", "8001", "8002"]
    assert values["backend-config"] == "python,shm-region-prefix-name=mark_"
    assert values["exit-timeout-secs"] == "7"
    assert values["model-control-mode"] == "none"
    assert values["strict-readiness"] == "true"
    assert "backend-directory" not in values


def test_the_key_of_the_closed_apis_is_another_one_each_time():
    made = [
        server_arguments(Path("/r"), LOOPBACK, marker="m", exit_timeout_s=1, backend_directory=None)
        for _ in range(2)
    ]
    assert made[0] != made[1]


def test_models_see_neither_proxies_nor_secrets():
    outer = {
        "https_proxy": "http://p",
        "AWS_SECRET_ACCESS_KEY": "k",
        "HF_TOKEN": "t",
        "HOME": "/h",
        "PATH": "/bin",
    }
    inner = server_environment(Installation(Path("/t")), "m_", outer)
    assert {k: v for k, v in inner.items() if k in outer} == {"HOME": "/h", "PATH": "/bin"}


def test_models_keep_what_they_compile_where_the_user_said():
    inner = server_environment(Installation(Path("/t")), "m_", {"XDG_CACHE_HOME": "/caches"})
    assert inner["XDG_CACHE_HOME"] == "/caches"


def test_waiting_threads_of_models_do_not_spin():
    inner = server_environment(Installation(Path("/t")), "m_", {"OMP_WAIT_POLICY": "ACTIVE"})
    assert (inner["OMP_WAIT_POLICY"], inner["KMP_BLOCKTIME"]) == ("PASSIVE", "0")


def test_devices_ranks_and_libraries_reach_the_models():
    outer = {
        "CUDA_VISIBLE_DEVICES": "1",
        "TRTLLM_ORCHESTRATOR": "1",
        "LD_LIBRARY_PATH": "/theirs",
        "PATH": "/bin",
    }
    wheel = Installation(Path("/t"), library_folders=(Path("/libs"),), python_folder=Path("/venv/bin"))
    inner = server_environment(wheel, "m_", outer)
    assert inner["CUDA_VISIBLE_DEVICES"] == inner["TRTLLM_ORCHESTRATOR"] == "1"
    assert inner["LD_LIBRARY_PATH"] == "/libs:/theirs"
    assert inner["PATH"] == "/venv/bin:/bin"


# Installation


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A double of the installed wheel's folder: names only, with a stub for Python 3.9 and 3.12."""
    for version in ("3.9", "3.12"):
        stub = tmp_path / f"pytriton/tritonserver/python_backend_stubs/{version}/triton_python_backend_stub"
        stub.parent.mkdir(parents=True)
        stub.touch()
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libpython3.12.so.1.0").touch()
    return tmp_path / "pytriton"


def test_a_tritonserver_on_path_comes_before_the_wheel(tmp_path: Path):
    binary = tmp_path / "tritonserver"
    binary.touch(mode=0o755)
    assert find_installation(str(tmp_path)) == Installation(binary)


def test_without_any_tritonserver_the_extra_is_named(tmp_path: Path):
    with pytest.raises(ServerError, match=r"found none on PATH.*trtspec\[local\]"):
        find_installation(str(tmp_path), wheel="no_such_package")


def test_a_wheel_that_fits_is_taken(wheel: Path):
    lib = wheel.parent / "lib"
    found = bundled_installation(wheel, python_version="3.12", numpy_version="1.26.4", library_folders=[lib])
    assert found.library_folders == (wheel.parent / "nvidia_pytriton.libs", lib)
    assert [file.parent.name for file in found.backend_files] == ["python", "python", "3.12"]


def test_everything_that_stands_in_the_wheels_way_is_named_at_once(wheel: Path):
    with pytest.raises(ServerError) as caught:
        bundled_installation(wheel, python_version="3.14", numpy_version="2.1.0", library_folders=[wheel])
    message = str(caught.value)
    assert "found no stub for Python 3.14, expected one of 3.9, 3.12" in message
    assert f"found no libpython3.14.so.1.0 in {wheel}" in message
    assert "found numpy 2.1.0" in message
    assert "numpy<2" in message


def test_the_backend_folder_is_links_and_the_wheel_stays_as_it_was(wheel: Path, tmp_path: Path):
    installation = Installation(Path("/t"), backend_files=(tmp_path / "a.so", tmp_path / "3.12/stub"))
    backends = installation.link_backends(tmp_path / "backends")
    assert backends is not None
    assert {link.name: link.readlink() for link in (backends / "python").iterdir()} == {
        "a.so": tmp_path / "a.so",
        "stub": tmp_path / "3.12/stub",
    }


# Before the start


def test_a_folder_without_models_is_refused(tmp_path: Path):
    with pytest.raises(RepositoryError, match=r"found no MODEL/config\.pbtxt"):
        configurations(tmp_path)
    with pytest.raises(RepositoryError, match="found no folder"):
        configurations(tmp_path / "nowhere")


def test_the_folder_of_one_model_is_refused_with_its_repository(tmp_path: Path):
    (tmp_path / "repo" / "model").mkdir(parents=True)
    (tmp_path / "repo" / "model" / "config.pbtxt").touch()
    with pytest.raises(RepositoryError, match=f"model: is one model, .*; give {tmp_path / 'repo'}$"):
        configurations(tmp_path / "repo" / "model")


def test_a_configuration_that_is_no_file_is_refused_before_the_server_starts(tmp_path: Path):
    (tmp_path / "model" / "config.pbtxt").mkdir(parents=True)
    with pytest.raises(RepositoryError, match=r"config\.pbtxt: is no regular file"):
        configurations(tmp_path)


def test_too_little_shared_memory_is_refused_with_both_sizes(tmp_path: Path):
    with pytest.raises(ServerError, match=r"MiB free, 1000000000 models need 8000000000 MiB \(8 each\)"):
        require_shared_memory(10**9, tmp_path)
    require_shared_memory(0, tmp_path)


# The log


def test_a_models_failure_is_its_own_traceback_without_import_machinery():
    (failure,) = load_failures(CHATTER + LOADING + FAILED + CHATTER)
    assert failure.model == "broken"
    assert failure.reason == "ValueError: no engine;\nsecond line\n\nAt:\n  /repo/broken/1/model.py(5): deep"


def test_a_message_that_triton_does_not_quote_is_read_too():
    line = "E1129 17:18:48.9 1 model_lifecycle.cc:642] failed to load 'm' version 1: Internal: no engine\n"
    assert [(f.model, f.reason) for f in load_failures(line)] == [("m", "no engine")]


def test_a_model_that_died_is_reported_with_its_last_output():
    died = (
        "E1129 17:18:55.1 1 model_lifecycle.cc:642] \"failed to load 'm' version 1: Internal: "
        "Stub process 'm_0_0' is not healthy.\"\n"
    )
    (failure,) = load_failures(CHATTER + LOADING + "Fatal Python error: Bus error\n" + died)
    assert failure.reason.endswith("the last output of the models:\nFatal Python error: Bus error")
    (silent,) = load_failures(CHATTER + LOADING + died)
    assert silent.reason.endswith("wrote nothing")


def test_a_line_that_is_being_written_says_nothing_yet():
    assert load_failures(FAILED[: FAILED.index("engine")]) == []
    assert load_failures(FAILED.removesuffix("\n")) == []


@pytest.mark.parametrize(
    ("log", "expected"), [(LOADING, ["broken"]), (LOADING + LOADED, []), (LOADING + FAILED, [])]
)
def test_a_model_is_loading_until_it_loaded_or_failed(log: str, expected: list[str]):
    assert still_loading(log) == expected


def test_complaints_are_the_errors_if_there_are_any():
    assert (
        complaints(CHATTER + LOADING + "error: creating server: Internal\n")
        == "error: creating server: Internal"
    )
    assert complaints(CHATTER + LOADING) == LOADING.strip()


def test_the_last_words_of_cpp_are_found_where_they_begin_a_line():
    words = "terminate called without an active exception"
    assert termination(f"{CHATTER}{words}\n{LOADING}") == words
    assert termination(f"{CHATTER}{LOADING}the model says: {words}\n") == ""


def test_the_last_words_of_cpp_are_whole_with_the_end_of_the_second_line():
    pieces = ["terminate called after throwing an instance of '", "std::invalid_argument", "'\n"]
    pieces += ["  what():  ", "stol", "\n"]
    written = [CHATTER + "".join(pieces[:count]) + LOADING * (count > 5) for count in range(7)]
    assert [says_why(text) for text in written] == [False] * 6 + [True]
    assert termination(written[-1]) == "".join(pieces).strip()


@given(st.text())
def test_no_log_breaks_its_reader(text: str):
    assert load_failures(text) == []
    assert still_loading(text) == []
    assert len(complaints(text).splitlines()) <= len(text.splitlines())


def test_a_log_that_is_appended_to_begins_where_this_server_does(tmp_path: Path):
    (tmp_path / "log").write_text(FAILED)
    log = ServerLog(tmp_path / "log")
    with log.file:
        log.file.write(b"now")
    assert log.text() == "now"


def test_a_log_that_cannot_be_written_is_refused(tmp_path: Path):
    with pytest.raises(ServerError, match="No such file or directory; pass a file"):
        ServerLog(tmp_path / "nowhere" / "log")


# What is left behind


def test_only_processes_that_carry_the_marker_are_ended():
    marker, other = leftovers.new_marker(), leftovers.new_marker()
    mine, theirs = (
        subprocess.Popen(
            ["sleep", "1000"], env={leftovers.VARIABLE: m, "PATH": os.environ["PATH"]}, start_new_session=True
        )
        for m in (marker, other)
    )
    try:
        until = time.monotonic() + 20
        # A process shows no environment in the moment of its exec.
        while not all(map(leftovers.carries, (mine.pid, theirs.pid), (marker, other))):
            assert time.monotonic() < until
            time.sleep(0.01)
        assert leftovers.processes(marker) == [mine.pid]
        leftovers.end_processes(marker)
        assert mine.wait() == -9
        assert theirs.poll() is None
    finally:
        for process in (mine, theirs):
            process.kill()
            process.wait()


def test_only_shared_memory_with_the_prefix_is_removed():
    marker, other = leftovers.new_marker(), leftovers.new_marker()
    regions = [leftovers.SHARED_MEMORY / f"{m}region" for m in (marker, other)]
    for region in regions:
        region.touch()
    leftovers.remove_shared_memory(marker)
    assert [region.exists() for region in regions] == [False, True]
    regions[1].unlink()


def open_files() -> set[str]:
    return {os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()}


def test_cores_are_kept_awake_by_a_file_that_says_zero_and_is_held_open(tmp_path: Path) -> None:
    device = tmp_path / "cpu_dma_latency"
    device.touch()
    with cores_awake(device):
        assert device.read_bytes() == bytes(4)
        assert str(device) in open_files()
    assert str(device) not in open_files()


def test_a_machine_whose_cores_cannot_be_kept_awake_is_told_what_to_do(tmp_path: Path) -> None:
    device = tmp_path / "none"
    message = f"^{device}: keeps cores awake, .*No such file.*; serve as a user .* without --keep-awake"
    with pytest.raises(ServerError, match=message), cores_awake(device):
        pass


def test_nothing_is_started_where_cores_are_to_be_kept_awake_and_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.pbtxt").touch()
    none = partial(cores_awake, tmp_path / "none")
    monkeypatch.setattr("trtspec.triton_repo.server.server.cores_awake", none)
    launched: list[Server] = []
    options = replace(FREE_PORTS, keep_awake=True)
    with (
        pytest.raises(ServerError, match="keeps cores awake"),
        serve(tmp_path, options, on_launch=launched.append),
    ):
        pass
    assert not launched
