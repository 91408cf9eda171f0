"""`trtspec doctor`: what it says of machines that are made of fake programs on PATH."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from trtspec.cli import main
from trtspec.doctor.machine import Containers, Machine, Triton, read_machine
from trtspec.doctor.report import DoctorReport, examine
from trtspec.engines.host import FoundGpu, HostFacts, Probe

H100 = FoundGpu("NVIDIA H100 80GB HBM3", 81559 * 2**20, 90)
PACKAGES = {
    "torch": "2.9.0",
    "transformers": "4.57.3",
    "tokenizers": "0.22.1",
    "safetensors": "0.6.2",
    "numba": "0.68.1",
}
SERVING = Machine(  # a host as NVIDIA's container makes it
    host=HostFacts((H100,), "580.95.05", "13.0", "10.14.1.48", "1.2.1"),
    trtllm_build="/usr/local/bin/trtllm-build",
    triton=Triton("/opt/tritonserver/bin/tritonserver", True, None, "no nvidia-pytriton"),
    containers=Containers(None, None, False, "docker: not on PATH"),
    mpi="Open MPI 4.1.7",
    mpi_problem="",
    shm_free_bytes=8 * 2**30,
    disk_free_bytes=500 * 2**30,
    folder=Path("/work"),
    taken_ports=(),
    python="3.12.3",
    processor="x86_64",
    packages={**PACKAGES, "nvidia-pytriton": None},
)
BARE = replace(  # a GPU host with Docker and nothing else
    SERVING,
    host=HostFacts((H100,), "580.95.05", "13.0"),
    trtllm_build=None,
    triton=Triton(None, False, None, "no nvidia-pytriton"),
    containers=Containers("docker", "28.5.1", True),
    mpi=None,
    mpi_problem="not on PATH",
    packages=dict.fromkeys([*PACKAGES, "nvidia-pytriton"]),
)
LAPTOP = replace(
    SERVING,
    host=HostFacts(gpu_problem="nvidia-smi: not on PATH"),
    trtllm_build=None,
    triton=Triton(None, False, "/venv/tritonserver"),
    packages={**PACKAGES, "nvidia-pytriton": "0.7.0"},
)


def abilities(report: DoctorReport) -> dict[str, str]:
    """What can be done: `tensorrt build` -> here, container or no."""
    return {
        f"{found.runtime} {what}": ability.how
        for found in report.runtimes
        for what, ability in (("build", found.build), ("serve", found.serve))
    }


def statuses(machine: Machine) -> dict[str, str]:
    return {line.id: line.status for line in examine(machine).lines}


def line(machine: Machine, name: str) -> str:
    found = next(line for line in examine(machine).lines if line.id == name)
    return f"{found.status}: {found.evidence} → {found.next_step}"


def program(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (SERVING, {"cpu": "here here", "tensorrt": "here here", "pytorch": "here here"}),
        (BARE, {"cpu": "no no", "tensorrt": "container container", "pytorch": "no container"}),
        (LAPTOP, {"cpu": "here here", "tensorrt": "no no", "pytorch": "here no"}),
    ],
    ids=["container", "bare", "laptop"],
)
def test_what_can_be_built_and_served_follows_from_what_there_is(machine, expected):
    found = abilities(examine(machine))
    assert {name: f"{found[f'{name} build']} {found[f'{name} serve']}" for name in expected} == expected


def test_each_missing_thing_is_said_and_has_a_next_step():
    for machine in (SERVING, BARE, LAPTOP):
        report = examine(machine)
        assert all(line.evidence for line in report.lines)
        assert all(line.next_step for line in report.lines if line.status != "found")
        for found in report.runtimes:
            assert found.build.because
            assert found.build.next_step
            assert found.serve.because
            assert found.serve.next_step


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tensorrt_llm": "1.3.0rc24"}, "tensorrt-llm is 1.3.0rc24, compiled engines need 1.2.1"),
        ({"gpus": (FoundGpu("Tesla T4", 2**34, 75),)}, "the GPUs are SM75, expected SM80 or newer"),
        ({"gpus": (), "gpu_problem": "nvidia-smi: ended with 9"}, "no GPU (nvidia-smi: ended with 9)"),
    ],
)
def test_the_tensorrt_runtime_needs_its_release_and_its_gpu(changes, reason):
    report = examine(replace(SERVING, host=replace(SERVING.host, **changes)))
    assert abilities(report)["tensorrt serve"] == "no"
    assert abilities(report)["tensorrt build"] == "no"
    tensorrt = next(found for found in report.runtimes if found.runtime == "tensorrt")
    assert reason in tensorrt.serve.because
    assert not report.can_serve("tensorrt")


def test_a_newer_tensorrt_llm_still_serves_the_pytorch_runtime_and_an_older_does_not():
    newer, older = (
        examine(replace(SERVING, host=replace(SERVING.host, tensorrt_llm=version)))
        for version in ("1.3.0rc24", "1.1.0")
    )
    assert newer.can_serve("pytorch")
    assert not older.can_serve("pytorch")


def test_too_little_shared_memory_stops_every_server():
    report = examine(replace(SERVING, shm_free_bytes=20 * 2**20))
    assert not any(report.can_serve(name) for name in ("cpu", "tensorrt", "pytorch"))
    assert line(replace(SERVING, shm_free_bytes=20 * 2**20), "shm") == (
        "missing: 20 MiB free in /dev/shm, a pair needs 24 → docker run --shm-size=1g"
    )
    assert statuses(replace(SERVING, shm_free_bytes=64 * 2**20))["shm"] == "warning"
    assert statuses(replace(SERVING, shm_free_bytes=None))["shm"] == "missing"


@pytest.mark.parametrize(
    ("changes", "name", "shown"),
    [
        ({"taken_ports": (8000, 8002)}, "ports", "warning: taken: 8000, 8002 → `trtspec serve` takes other"),
        ({"disk_free_bytes": 2**30}, "disk", "warning: 1.0 GiB free in /work → engines take as much again"),
        ({"mpi": "Open MPI 5.0.7"}, "mpi", "warning: Open MPI 5.0.7 → TensorRT-LLM's containers have Open"),
        (
            {"containers": Containers(None, None, False, "docker: Cannot connect to the Docker daemon")},
            "containers",
            "missing: docker: Cannot connect to the Docker daemon → start its daemon, and see that this user",
        ),
        (
            {"containers": Containers("docker", "28.5.1", False)},
            "containers",
            "warning: docker 28.5.1, which hands no GPU to containers → install NVIDIA's Container Toolkit",
        ),
        (
            {"host": replace(SERVING.host, driver="570.172.08", cuda="12.8")},
            "driver",
            "warning: 570.172.08, runs CUDA up to 12.8; the container 26.07 has CUDA 13.0 → update",
        ),
        (
            {"host": HostFacts((replace(H100, mig=True),))},
            "gpu",
            "warning: GPU 0: NVIDIA H100 80GB HBM3, 79.6 GiB, SM90, in MIG mode: a process sees one instance",
        ),
    ],
)
def test_catches_are_warnings(changes, name, shown):
    assert line(replace(SERVING, **changes), name).startswith(shown)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("bin", "dev/shm", "etc/cdi"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path


def look(root: Path, timeout_s: float = 10) -> Machine:
    return read_machine(Probe(str(root / "bin"), timeout_s), root=root, folder=root)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            """echo '{"ServerVersion":"28.5.1","Runtimes":{"nvidia":{},"runc":{}}}'""",
            Containers("docker", "28.5.1", True),
        ),
        (
            """echo 'WARNING: no swap limit' >&2; echo '{"ServerVersion":"27.0","Runtimes":{"runc":{}}}'""",
            Containers("docker", "27.0", False),
        ),
        (
            """echo '{"ID":"","ServerErrors":["Cannot connect to the Docker daemon"]}'; exit 1""",
            Containers(None, None, False, "docker: Cannot connect to the Docker daemon"),
        ),
        (
            "echo 'permission denied while trying to connect' >&2; exit 1",
            Containers(None, None, False, "docker: ended with 1: permission denied while trying to connect"),
        ),
        (
            """echo '{"ServerVersion":""}'; echo 'Cannot connect to the Docker daemon' >&2; exit 1""",
            Containers(None, None, False, "docker: Cannot connect to the Docker daemon"),
        ),
        ("exit 0", Containers(None, None, False, "docker: its daemon is silent")),
    ],
)
def test_docker_counts_where_its_daemon_answers(root, answer, expected):
    program(root / "bin", "docker", answer)
    assert look(root).containers == expected


def test_podman_hands_out_gpus_that_cdi_describes(root):
    program(root / "bin", "podman", "echo 5.4.0")
    assert look(root).containers == Containers("podman", "5.4.0", False)
    (root / "etc/cdi/nvidia.yaml").write_text("cdiVersion: 0.5.0\n")
    assert look(root).containers == Containers("podman", "5.4.0", True)


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("mpirun (Open MPI) 4.1.7\n\nReport bugs to http://www.open-mpi.org/", "Open MPI 4.1.7"),
        ("mpirun (Open MPI) 5.0.7rc2", "Open MPI 5.0.7"),
        ("HYDRA build details:\n    Version: 4.2", "HYDRA build details:"),
    ],
)
def test_mpi_is_known_by_its_first_line(root, said, version):
    program(root / "bin", "mpirun", f"printf '%s\\n' '{said}'")
    assert look(root).mpi == version


def test_a_triton_on_path_is_found_with_its_backends(root):
    prefix = root / "prefix"
    (prefix / "bin").mkdir(parents=True)
    program(prefix / "bin", "tritonserver", "exit 0")
    (root / "bin/tritonserver").symlink_to(prefix / "bin/tritonserver")
    assert look(root).triton.on_path == str(root / "bin/tritonserver")
    assert not look(root).triton.tensorrtllm_backend
    (prefix / "backends/tensorrtllm").mkdir(parents=True)
    assert look(root).triton.tensorrtllm_backend


def test_a_port_in_use_is_seen(root, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setattr("trtspec.doctor.machine.PORTS", (port,))
        assert look(root).taken_ports == (port,)


def test_programs_that_hang_cost_their_time_limit_and_no_more(root):
    for name in ("nvidia-smi", "docker", "podman", "mpirun"):
        program(root / "bin", name, "trap '' TERM; sleep 600")
    machine = look(root, timeout_s=0.2)
    assert machine.host.gpu_problem == "nvidia-smi: no answer in 0.2 s"
    assert machine.containers.problem == "docker: no answer in 0.2 s"
    assert machine.mpi_problem == "no answer in 0.2 s"


def test_the_machine_that_runs_the_tests_builds_and_serves_the_cpu_runtime(capsys):
    main(["doctor", "--for", "cpu", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["runtimes"]["cpu"]["serve"]["how"] == "here"
    assert {line["id"] for line in report["machine"]} >= {"gpu", "driver", "containers", "mpi", "shm"}


def fake_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the machine have no program but those in a folder."""
    monkeypatch.setenv("PATH", str(folder))


def test_a_runtime_that_cannot_run_exits_with_3_after_the_whole_report(tmp_path, monkeypatch, capsys):
    fake_path(tmp_path, monkeypatch)
    with pytest.raises(SystemExit) as stopped:
        main(["doctor", "--for", "tensorrt"])
    assert stopped.value.code == 3
    shown = " ".join(capsys.readouterr().out.split())
    assert "nvidia-smi: not on PATH" in shown
    assert "move to a host with a GPU of SM80 or newer" in shown


def test_without_for_a_machine_that_can_do_little_is_no_failure(tmp_path, monkeypatch, capsys):
    fake_path(tmp_path, monkeypatch)
    main(["doctor"])
    assert "what it can do" in capsys.readouterr().out


def test_wrong_usage_is_2_and_help_has_an_example(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["doctor", "--for", "cuda"])
    assert stopped.value.code == 2
    capsys.readouterr()
    main(["doctor", "--help"])
    shown = capsys.readouterr().out
    assert "trtspec doctor --for tensorrt --json" in shown
    assert "Exit codes: 0 looked, 3 the runtime of --for cannot run here." in shown


def test_a_disk_that_cannot_be_read_is_one_line(tmp_path):
    """The current folder may be gone: then there is no disk to look at."""
    gone = tmp_path / "gone"
    gone.mkdir()
    code = f"import os, sys; os.chdir({str(gone)!r}); os.rmdir({str(gone)!r}); "
    code += "from trtspec.cli import main; main(['doctor'])"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("trtspec: [Errno 2]")


def test_looking_imports_no_model_code():
    code = (
        "import sys; from trtspec.cli import main; main(['doctor', '--json']); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'tokenizers')))"
    )
    ended = subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False)
    assert ended.returncode == 0


def test_the_cpu_runtime_needs_its_compiler_and_the_pytorch_one_does_not() -> None:
    found = abilities(examine(replace(LAPTOP, packages={**LAPTOP.packages, "numba": None})))
    assert (found["cpu build"], found["cpu serve"], found["pytorch build"]) == ("no", "no", "here")
