"""A real Triton server, started, asked, broken and stopped; after each test nothing of it is left."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner
from tritonclient.grpc import service_pb2
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from trtspec.cli.serve import command
from trtspec.errors import ServerError
from trtspec.triton_repo.server import FREE_PORTS, Server, serve
from trtspec.triton_repo.server.canary import ask_for_tokens, generation_request, models_are_loaded
from trtspec.triton_repo.server.endpoints import Endpoints
from trtspec.triton_repo.server.installation import Installation
from trtspec.triton_repo.server.server_log import still_loading

GONE_WITHIN_S = 15.0
# Far above what anything here takes.
PATIENCE_S = 60.0
SECRET_PROMPT = "the patient's name is Ada"

CONFIGURATION = """
backend: "python"
max_batch_size: 1
model_transaction_policy { decoupled: true }
input [
  { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "max_tokens" data_type: TYPE_INT32 dims: [ 1 ] },
  { name: "num_draft_tokens" data_type: TYPE_INT32 dims: [ 1 ] optional: true }
]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
parameters: { key: "max_draft_len" value: { string_value: "4" } }
parameters: { key: "engine_runtime" value: { string_value: "cpu" } }
"""

# A double of the public model: answers with its own text and notes what it was asked.
ECHO = """
import os, numpy, triton_python_backend_utils as pb
class TritonPythonModel:
    def initialize(self, args):
        self.notes = os.path.join(args["model_repository"], "asked")
    def execute(self, requests):
        for request in requests:
            def value(name):
                return pb.get_input_tensor_by_name(request, name).as_numpy().item()
            with open(self.notes, "a") as notes:
                print(value("num_draft_tokens"), value("max_tokens"), file=notes)
            text = numpy.array([[value("text_input")]], dtype=object)
            sender = request.get_response_sender()
            sender.send(pb.InferenceResponse([pb.Tensor("text_output", text)]))
            sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

MODEL = """
import os, signal, subprocess, sys, time
class TritonPythonModel:
    def initialize(self, args):
        {initialize}
    def execute(self, requests):
        {execute}
    def finalize(self):
        {finalize}
"""


def model(*, initialize: str = "pass", execute: str = "pass", finalize: str = "pass") -> str:
    return MODEL.format(initialize=initialize, execute=execute, finalize=finalize)


def write_repository(folder: Path, **models: str) -> Path:
    for name, code in models.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(CONFIGURATION)
        (folder / name / "1" / "model.py").write_text(code)
    return folder


def command_lines(needle: str) -> list[str]:
    """Command lines of live processes that contain the needle, other than our own."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if needle in line:
                found.append(line)
    return found


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class Traces:
    """What a test's servers can leave: processes that name its folder, shared memory, files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        self.markers: set[str] = set()

    def note(self, server: Server) -> None:
        self.markers.add(server.marker)

    def left(self) -> list[str]:
        """Whatever is still there after the time in which a guard must have acted."""
        deadline = time.monotonic() + GONE_WITHIN_S
        while (left := self._now()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left

    def _now(self) -> list[str]:
        regions = [name for name in os.listdir("/dev/shm") if name.startswith(tuple(self.markers) or "\0")]
        folders = [str(path) for path in self.temporary.iterdir() if path.is_dir()]
        return command_lines(str(self.folder)) + regions + folders


@pytest.fixture
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Traces]:
    noted = Traces(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(noted.temporary))
    monkeypatch.setenv("TMPDIR", str(noted.temporary))
    yield noted
    assert noted.left() == []


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server of the echo model for all tests that only look at it."""
    noted = Traces(tmp_path_factory.mktemp("healthy"))
    repository = write_repository(noted.folder / "repo", tensorrt_llm_bls=ECHO)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(noted.temporary))
        patch.setenv("HTTPS_PROXY", "http://proxy.invalid:1")
        patch.setenv("HF_TOKEN", "secret")
        with serve(repository, FREE_PORTS, on_launch=noted.note) as server:
            yield server
    assert noted.left() == []
    assert list(noted.temporary.iterdir()) == []


# Ready


def test_its_shared_memory_can_be_told_from_others(healthy: Server):
    regions = [name for name in os.listdir("/dev/shm") if name.startswith(healthy.marker)]
    assert len(regions) == 1  # one model process


def test_ready_means_that_it_answered_without_and_with_a_draft(healthy: Server):
    first, second, *_ = (healthy.repository / "tensorrt_llm_bls" / "asked").read_text().splitlines()
    assert (first, second) == ("0 6", "4 6")


def test_the_answer_to_a_request_comes_back_and_is_not_in_the_log(healthy: Server):
    with grpc.insecure_channel(healthy.grpc_url) as channel:
        stub = GRPCInferenceServiceStub(channel)
        (reply,) = stub.ModelStreamInfer(iter([generation_request(SECRET_PROMPT, 1, 0)]))
    assert reply.infer_response.raw_output_contents[0][4:].decode() == SECRET_PROMPT
    assert SECRET_PROMPT not in healthy.log.read_text()


def test_it_listens_on_loopback_only(healthy: Server):
    endpoints = healthy.endpoints
    for port in (endpoints.http_port, endpoints.grpc_port, endpoints.metrics_port):
        socket.create_connection(("127.0.0.1", port)).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port))


def test_metrics_are_on(healthy: Server):
    with urllib.request.urlopen(healthy.metrics_url) as response:
        assert b'nv_inference_request_success{model="tensorrt_llm_bls"' in response.read()


@pytest.mark.parametrize(
    "path", ["repository/index", "logging", "trace/setting", "systemsharedmemory/region/x/register"]
)
def test_interfaces_that_reach_into_the_machine_are_closed_over_http(healthy: Server, path: str):
    request = urllib.request.Request(f"{healthy.http_url}/v2/{path}", data=b"{}")
    with pytest.raises(urllib.error.HTTPError, match="403") as caught:
        urllib.request.urlopen(request)
    caught.value.close()


@pytest.mark.parametrize(
    ("method", "request_type"),
    [
        ("RepositoryIndex", service_pb2.RepositoryIndexRequest),
        ("LogSettings", service_pb2.LogSettingsRequest),
        ("TraceSetting", service_pb2.TraceSettingRequest),
        ("SystemSharedMemoryStatus", service_pb2.SystemSharedMemoryStatusRequest),
    ],
)
def test_interfaces_that_reach_into_the_machine_are_closed_over_grpc(
    healthy: Server, method: str, request_type: type
):
    with grpc.insecure_channel(healthy.grpc_url) as channel, pytest.raises(grpc.RpcError, match="restricted"):
        getattr(GRPCInferenceServiceStub(channel), method)(request_type())


def test_models_are_started_without_proxies_and_secrets(healthy: Server):
    (stub,) = Path(f"/proc/{healthy.pid}/task/{healthy.pid}/children").read_text().split()
    environment = Path(f"/proc/{stub}/environ").read_bytes().split(b"\0")
    names = {entry.partition(b"=")[0] for entry in environment}
    assert b"OMP_WAIT_POLICY=PASSIVE" in environment
    assert b"KMP_BLOCKTIME=0" in environment
    assert names.isdisjoint({b"HTTPS_PROXY", b"HF_TOKEN"})


def test_a_check_asks_again(healthy: Server):
    notes = healthy.repository / "tensorrt_llm_bls" / "asked"
    before = len(notes.read_text().splitlines())
    healthy.check()
    assert len(notes.read_text().splitlines()) == before + 2


def test_ports_in_use_are_refused_before_anything_is_started(healthy: Server, traces: Traces):
    used = healthy.endpoints
    options = replace(FREE_PORTS, grpc_port=used.grpc_port, http_port=used.http_port)
    with (
        pytest.raises(ServerError, match=rf"http port {used.http_port}.*grpc port {used.grpc_port}"),
        serve(healthy.repository, options),
    ):
        pass
    assert list(traces.temporary.iterdir()) == []


# Not ready


def test_another_server_on_the_port_is_not_taken_for_ours(healthy: Server):
    assert models_are_loaded(healthy.endpoints, healthy.marker)
    assert not models_are_loaded(healthy.endpoints, "trtspec_other_")


def test_a_binary_that_cannot_be_run_is_named(tmp_path: Path, traces: Traces):
    repository = write_repository(tmp_path / "repo", tensorrt_llm_bls=ECHO)
    with (
        pytest.raises(ServerError, match=r"no_such: cannot be started: No such file"),
        serve(repository, FREE_PORTS, installation=Installation(tmp_path / "no_such")),
    ):
        pass


def test_a_server_that_ends_at_once_is_shown_with_its_complaint(tmp_path: Path, traces: Traces):
    double = tmp_path / "tritonserver"
    double.write_text("#!/bin/sh\necho 'libdcgm.so.3: version `GLIBC_2.35 not found' >&2\nexit 3\n")
    double.chmod(0o755)
    repository = write_repository(tmp_path / "repo", tensorrt_llm_bls=ECHO)
    with (
        pytest.raises(ServerError, match=r"exit code 3\n  libdcgm.*GLIBC_2.35 not found\nwhole log: "),
        serve(repository, FREE_PORTS, installation=Installation(double)),
    ):
        pass


def test_a_model_that_raises_is_shown_with_its_traceback_and_little_else(tmp_path: Path, traces: Traces):
    broken = model(initialize="raise ValueError('no engine here')")
    repository = write_repository(tmp_path / "repo", tensorrt_llm_bls=ECHO, broken=broken)
    with pytest.raises(ServerError) as caught, serve(repository, FREE_PORTS, on_launch=traces.note):
        pass
    message = str(caught.value)
    assert "repo: did not load: broken\n  broken: ValueError: no engine here" in message
    assert re.search(r"broken/1/model\.py\(\d+\): initialize", message)
    assert len(message.splitlines()) < 10
    (log,) = traces.temporary.glob("*.log")
    assert str(log) in message


def test_a_model_that_dies_is_shown_with_its_last_words(tmp_path: Path, traces: Traces):
    dies = model(initialize="print('out of luck', flush=True); os._exit(7)")
    repository = write_repository(tmp_path / "repo", tensorrt_llm_bls=dies)
    with (
        pytest.raises(
            ServerError, match=r"tensorrt_llm_bls: its process died while it loaded.*\n.*out of luck"
        ),
        serve(repository, FREE_PORTS, on_launch=traces.note),
    ):
        pass


def test_a_configuration_that_cannot_be_read_is_quoted(tmp_path: Path, traces: Traces):
    repository = write_repository(tmp_path / "repo", tensorrt_llm_bls=ECHO)
    with (repository / "tensorrt_llm_bls" / "config.pbtxt").open("a") as file:
        file.write("max_batchsize: 1")
    with (
        pytest.raises(ServerError, match='has no field named "max_batchsize"'),
        serve(repository, FREE_PORTS, on_launch=traces.note),
    ):
        pass


def test_a_model_that_hangs_is_named_when_the_time_is_over(tmp_path: Path, traces: Traces):
    # It also has a child in another session, which no signal to the server's group would reach.
    child = f"subprocess.Popen(['tail', '-f', {str(tmp_path / 'child')!r}], start_new_session=True)"
    (tmp_path / "child").touch()
    hangs = model(initialize=f"{child}; time.sleep(1000)")
    repository = write_repository(tmp_path / "repo", tensorrt_llm_bls=ECHO, hangs=hangs)
    options = replace(FREE_PORTS, start_timeout_s=1.0)

    def let_the_other_load(server: Server) -> None:
        traces.note(server)
        wait_until(lambda: "successfully loaded 'tensorrt_llm_bls'" in server.log.read_text())
        wait_until(lambda: still_loading(server.log.read_text()) == ["hangs"])

    with (
        pytest.raises(
            ServerError, match=r"not ready after 1 s, still loading hangs; pass a longer --start-timeout"
        ),
        serve(repository, options, on_launch=let_the_other_load),
    ):
        pass


def test_a_server_that_dies_while_loading_is_noticed_at_once(tmp_path: Path, traces: Traces):
    kills = model(initialize="os.kill(os.getppid(), signal.SIGKILL); time.sleep(1000)")
    repository = write_repository(tmp_path / "repo", tensorrt_llm_bls=kills)
    with pytest.raises(ServerError, match="signal 9"), serve(repository, FREE_PORTS, on_launch=traces.note):
        pass


def test_a_server_whose_model_cannot_answer_is_not_ready(tmp_path: Path, traces: Traces):
    repository = write_repository(
        tmp_path / "repo", tensorrt_llm_bls=model(execute="raise KeyError('cache')")
    )
    with (
        pytest.raises(ServerError, match=r"did not answer with num_draft_tokens 0: .*KeyError: 'cache'"),
        serve(repository, FREE_PORTS, on_launch=traces.note),
    ):
        pass


def test_a_server_whose_answer_depends_on_the_draft_is_not_ready(tmp_path: Path, traces: Traces):
    lies = ECHO.replace('value("text_input")', 'str(value("num_draft_tokens"))')
    repository = write_repository(tmp_path / "repo", tensorrt_llm_bls=lies)
    with (
        pytest.raises(ServerError, match=r"answered '0' with num_draft_tokens 0 and '4' with 4; .*equal"),
        serve(repository, FREE_PORTS, on_launch=traces.note),
    ):
        pass


def test_a_canary_that_never_comes_back_ends_the_start(tmp_path: Path, traces: Traces):
    repository = write_repository(tmp_path / "repo", tensorrt_llm_bls=model(execute="time.sleep(1000)"))
    asked: list[Endpoints] = []

    def canary(endpoints: Endpoints) -> None:
        asked.append(endpoints)
        ask_for_tokens(endpoints)

    def let_it_load(server: Server) -> None:
        traces.note(server)
        wait_until(lambda: models_are_loaded(server.endpoints, server.marker))

    options = replace(FREE_PORTS, start_timeout_s=1.0)
    with (
        pytest.raises(ServerError, match="not ready after 1 s, the canary has not come back"),
        serve(repository, options, canary=canary, on_launch=let_it_load),
    ):
        pass
    wait_until(lambda: bool(asked))  # in a thread of its own
    assert len(asked) == 1


def test_a_canary_that_does_not_come_back_later_is_not_called_a_slow_start(tmp_path: Path, traces: Traces):
    repository = write_repository(tmp_path / "repo", tensorrt_llm_bls=ECHO)
    asked: list[Endpoints] = []
    over = threading.Event()

    def canary(endpoints: Endpoints) -> None:
        asked.append(endpoints)
        if len(asked) > 1:
            over.wait()

    with (
        serve(repository, FREE_PORTS, canary=canary, on_launch=traces.note) as server,
        pytest.raises(ServerError, match=r": the canary has not come back within 0\.1 s\nwhole log"),
    ):
        server.check(timeout_s=0.1)
    over.set()


def test_a_process_that_an_exception_of_cpp_ends_fails_the_start_at_once(tmp_path: Path, traces: Traces):
    double = tmp_path / "tritonserver"
    words = "terminate called after throwing an instance of 'std::invalid_argument'"
    double.write_text(
        f'#!/bin/sh\necho "{words}"\nsleep 1.5\nprintf "  what():  "\nsleep 0.3\necho stol\nexec sleep 1000\n'
    )
    double.chmod(0o755)
    repository = write_repository(tmp_path / "repo", tensorrt_llm_bls=ECHO)
    options = replace(FREE_PORTS, start_timeout_s=20.0)
    with (
        pytest.raises(ServerError, match=rf"did not load: .*\n  {words}\n    what\(\):  stol\nwhole log"),
        serve(repository, options, installation=Installation(double), on_launch=traces.note),
    ):
        pass


# Serving and stopping


def test_white_space_in_the_paths_does_not_reach_the_models(
    tmp_path: Path, traces: Traces, monkeypatch: pytest.MonkeyPatch
):
    temporary = tmp_path / "temporary files"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("TMPDIR", str(temporary))
    repository = write_repository(tmp_path / "my models" / "repo", tensorrt_llm_bls=ECHO)
    options = replace(FREE_PORTS, start_timeout_s=60.0)
    with serve(repository, options, on_launch=traces.note) as server:
        run_directories = list(Path("/tmp").glob(f"{server.marker}*"))
        server.check()
    assert len(run_directories) == 1
    assert not run_directories[0].exists()
    assert (repository / "tensorrt_llm_bls" / "1" / "model.py").read_text() == ECHO
    assert list(temporary.iterdir()) == []


def test_a_model_process_that_dies_ends_the_serving_though_health_stays_good(tmp_path: Path, traces: Traces):
    repository = write_repository(tmp_path / "repo", tensorrt_llm_bls=ECHO)
    with serve(repository, FREE_PORTS, on_launch=traces.note) as server:
        (stub,) = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        os.kill(int(stub), signal.SIGKILL)
        with pytest.raises(ServerError, match="did not answer"):
            server.wait()
        with urllib.request.urlopen(f"{server.http_url}/v2/health/ready") as response:
            assert response.status == 200


def test_a_server_that_dies_ends_the_serving(tmp_path: Path, traces: Traces):
    repository = write_repository(tmp_path / "repo", tensorrt_llm_bls=ECHO)
    with serve(repository, FREE_PORTS, on_launch=traces.note) as server:
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(ServerError, match="the server ended with signal 9"):
            server.wait()


def test_a_model_that_does_not_stop_is_killed(tmp_path: Path, traces: Traces):
    slow = ECHO + "    def finalize(self):\n        import time; time.sleep(1000)\n"
    repository = write_repository(tmp_path / "repo", tensorrt_llm_bls=slow)
    options = replace(FREE_PORTS, stop_timeout_s=1.0)
    with serve(repository, options, on_launch=traces.note) as server:
        pass
    assert server.stopped_cleanly is False
    assert server.log.exists()


def test_an_error_in_the_block_stops_the_server_and_comes_through(tmp_path: Path, traces: Traces):
    repository = write_repository(tmp_path / "repo", tensorrt_llm_bls=ECHO)
    options = replace(FREE_PORTS, log=tmp_path / "kept.log")
    with pytest.raises(LookupError), serve(repository, options, on_launch=traces.note) as server:
        raise LookupError
    assert server.stopped_cleanly
    assert "Started GRPCInferenceService" in (tmp_path / "kept.log").read_text()


# The command


class Serving:
    """`trtspec serve` in a process of its own."""

    def __init__(self, repository: Path, *options: str) -> None:
        ports = [argument for name in ("http", "grpc", "metrics") for argument in (f"--{name}-port", "0")]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "trtspec", "serve", str(repository), *ports, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def first_line_of_stderr(self) -> str:
        assert self.process.stderr
        return self.process.stderr.readline()

    def first_line_of_stdout(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline()

    def end(self, number: signal.Signals) -> tuple[int, str, str]:
        """Send the signal; return the exit code and what else was written."""
        self.process.send_signal(number)
        out, err = self.process.communicate()
        return self.process.returncode, out, err


@pytest.fixture
def processes() -> Iterator[ExitStack]:
    """Ends what a failed test would leave running."""
    with ExitStack() as stack:
        yield stack


def serving(stack: ExitStack, traces: Traces, repository: Path, *options: str) -> Serving:
    started = Serving(repository, *options)
    stack.callback(started.process.communicate)
    stack.callback(started.process.kill)
    found = re.search(r"trtspec_[0-9a-f]+_", started.first_line_of_stderr())
    assert found
    traces.markers.add(found[0])
    return started


def test_serve_prints_one_object_when_ready_and_sigterm_is_a_clean_end(
    tmp_path: Path, traces: Traces, processes: ExitStack
):
    repository = write_repository(tmp_path / "repo", tensorrt_llm_bls=ECHO)
    started = serving(processes, traces, repository, "--json")
    ready = json.loads(started.first_line_of_stdout())
    assert ready["models"] == ["tensorrt_llm_bls"]
    with urllib.request.urlopen(f"{ready['http_url']}/v2/health/live") as response:
        assert response.status == 200
    assert started.end(signal.SIGTERM) == (0, "", "")
    assert traces.left() == []
    assert list(traces.temporary.iterdir()) == []


def test_ctrl_c_while_serving_exits_130(tmp_path: Path, traces: Traces, processes: ExitStack):
    repository = write_repository(tmp_path / "repo", tensorrt_llm_bls=ECHO)
    started = serving(processes, traces, repository)
    assert started.first_line_of_stderr().startswith("ready: gRPC 127.0.0.1:")
    assert started.end(signal.SIGINT) == (130, "", "\ntrtspec: interrupted\n")


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [
        (signal.SIGINT, 130, "trtspec: interrupted"),
        (signal.SIGTERM, 1, "stopped by SIGTERM before it was ready"),
        (signal.SIGHUP, 1, "stopped by SIGHUP before it was ready"),
    ],
)
def test_a_signal_while_models_load_leaves_nothing(
    tmp_path: Path, traces: Traces, processes: ExitStack, number: signal.Signals, code: int, words: str
):
    repository = write_repository(tmp_path / "repo", hangs=model(initialize="time.sleep(1000)"))
    started = serving(processes, traces, repository)
    ended, out, err = started.end(number)
    assert (ended, out) == (code, "")
    assert words in err
    assert traces.left() == []
    assert list(traces.temporary.iterdir()) == []


def test_a_killed_trtspec_takes_its_server_along(tmp_path: Path, traces: Traces, processes: ExitStack):
    repository = write_repository(tmp_path / "repo", tensorrt_llm_bls=ECHO)
    started = serving(processes, traces, repository)
    assert started.first_line_of_stderr().startswith("ready")
    assert len(command_lines(str(repository))) == 3  # trtspec, tritonserver, one stub
    started.end(signal.SIGKILL)
    assert traces.left() == []


def test_serve_without_a_repository_is_our_error(tmp_path: Path):
    result = subprocess.run(
        [sys.executable, "-m", "trtspec", "serve", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout) == (1, "")
    assert "expected a Triton model repository" in result.stderr


def test_serve_refuses_a_port_that_is_none():
    result = CliRunner().invoke(command, ["repo", "--http-port", "70000"])
    assert result.exit_code == 2
    assert "--http-port" in result.output


def test_serve_helps_with_an_example():
    result = CliRunner().invoke(command, ["--help"])
    assert result.exit_code == 0
    assert "Example:\n    trtspec serve work/repo\n" in result.output
