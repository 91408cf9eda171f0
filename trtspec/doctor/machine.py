"""Look at the machine. Nothing here decides; every question has a limit in time and none needs root."""

from __future__ import annotations

import json
import platform
import re
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtspec.engines.host import HostFacts, Probe, read_host_facts
from trtspec.engines.host.probe import package_version
from trtspec.errors import ServerError

PORTS = (8000, 8001, 8002)  # HTTP, gRPC, metrics
PACKAGES = ("numpy", "numba", "safetensors", "tokenizers", "torch", "transformers", "nvidia-pytriton")
OPEN_MPI = re.compile(r"Open MPI\)?\D*(\d+(?:\.\d+)*)")
CDI_FOLDERS = ("etc/cdi", "var/run/cdi")


@dataclass(frozen=True)
class Triton:
    """Where Triton servers are; a `problem` where none of a kind can run."""

    on_path: str | None
    tensorrtllm_backend: bool  # beside the one on PATH
    bundled: str | None  # the binary inside the nvidia-pytriton wheel
    bundled_problem: str = ""


@dataclass(frozen=True)
class Containers:
    """The container program that answers, or why none does."""

    program: str | None
    version: str | None
    gpus: bool  # it hands GPUs to containers
    problem: str = ""


@dataclass(frozen=True)
class Machine:
    """What was found."""

    host: HostFacts
    trtllm_build: str | None
    triton: Triton
    containers: Containers
    mpi: str | None  # version of Open MPI, or the first line of another
    mpi_problem: str
    shm_free_bytes: int | None
    disk_free_bytes: int
    folder: Path  # the disk that was looked at
    taken_ports: tuple[int, ...]
    python: str
    processor: str
    packages: Mapping[str, str | None]


def read_machine(
    probe: Probe | None = None, *, root: Path = Path("/"), folder: Path | None = None
) -> Machine:
    """Return what this machine has.

    Args:
        root: where /dev, /etc and /opt are.
        folder: on the disk that engines would be written to; by default the current one.
    """
    probe, folder = probe or Probe(), folder or Path.cwd()
    mpi = probe.ask("mpirun", "--version")
    open_mpi = OPEN_MPI.search(mpi.text)
    return Machine(
        host=read_host_facts(probe),
        trtllm_build=probe.find("trtllm-build"),
        triton=_triton(probe, root),
        containers=_containers(probe, root),
        mpi=(f"Open MPI {open_mpi[1]}" if open_mpi else mpi.text.partition("\n")[0]) if mpi.ok else None,
        mpi_problem=mpi.problem,
        shm_free_bytes=shutil.disk_usage(root / "dev/shm").free if (root / "dev/shm").is_dir() else None,
        disk_free_bytes=shutil.disk_usage(folder).free,
        folder=folder,
        taken_ports=tuple(port for port in PORTS if _is_taken(port)),
        python=platform.python_version(),
        processor=platform.machine(),
        packages={name: package_version(name) for name in PACKAGES},
    )


def _triton(probe: Probe, root: Path) -> Triton:
    from trtspec.triton_repo.server.installation import find_installation

    on_path = probe.find("tritonserver")
    # A container's server lies in <prefix>/bin, its backends in <prefix>/backends.
    prefixes = [root / "opt/tritonserver", *([Path(on_path).resolve().parents[1]] if on_path else [])]
    backend = any((prefix / "backends/tensorrtllm").is_dir() for prefix in prefixes)
    try:
        bundled, problem = str(find_installation("").binary), ""
    except ServerError as error:
        bundled, problem = None, str(error)
    return Triton(on_path, bool(on_path) and backend, bundled, problem)


def _containers(probe: Probe, root: Path) -> Containers:
    """Return docker where it answers, else podman."""
    docker = _docker(probe)
    if docker.problem and probe.find("podman"):
        podman = _podman(probe, root)
        return podman if not podman.problem else docker
    return docker


def _docker(probe: Probe) -> Containers:
    answer = probe.ask("docker", "info", "--format", "{{json .}}")
    found = _object(answer.text)
    # The client answers without its daemon: then there is no server version.
    if not answer.ok or not found.get("ServerVersion"):
        said = "; ".join(map(str, found.get("ServerErrors") or ())) or (
            _error_in(answer.text) if found else ""
        )
        return Containers(None, None, False, f"docker: {said or answer.problem or 'its daemon is silent'}")
    # Without a runtime of that name, --gpus goes through NVIDIA's hook.
    gpus = "nvidia" in (found.get("Runtimes") or {}) or bool(probe.find("nvidia-container-runtime-hook"))
    return Containers("docker", str(found["ServerVersion"]), gpus)


def _error_in(text: str) -> str:
    """Return the first line that is no answer in JSON, which the client prints without its daemon too."""
    return next((line for line in text.splitlines() if line.strip() and not line.startswith(("{", "["))), "")


def _podman(probe: Probe, root: Path) -> Containers:
    answer = probe.ask("podman", "version", "--format", "{{.Client.Version}}")
    if not answer.ok:
        return Containers(None, None, False, f"podman: {answer.problem}")
    gpus = any(any((root / folder).glob("*nvidia*")) for folder in CDI_FOLDERS)
    return Containers("podman", answer.text, gpus)


def _object(text: str) -> dict[str, Any]:
    """Return the JSON object among the lines of a text, {} where there is none."""
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict):
                return found
    return {}


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False
