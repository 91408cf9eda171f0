"""What the machine has, a line each: the evidence, and the next step where something is missing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from trtspec.doctor.machine import PORTS, Machine
from trtspec.engines.host.facts import FoundGpu
from trtspec.engines.versions import ENGINE_RELEASE, newest_container
from trtspec.triton_repo.server.preflight import SHARED_MEMORY_PER_MODEL_BYTES

GIB = 2**30
OWN_MODELS = 3  # target, draft and the public one
# TensorRT-LLM's ranks hand each other requests through shared memory; Docker gives a container 64 MiB.
SHM_BYTES = GIB
DISK_BYTES = 20 * GIB  # an 8B and a 1B model, converted
SPAWNING_MPI = "4"  # TensorRT-LLM's containers have Open MPI 4; release candidates of 5 broke its spawning

# found: there. missing: not there, or of no use. warning: there, with a catch.
Status = Literal["found", "missing", "warning"]


@dataclass(frozen=True)
class Line:
    """One fact about the machine."""

    id: str  # stable; scripts may rely on it
    status: Status
    evidence: str
    next_step: str = ""


def machine_lines(machine: Machine) -> tuple[Line, ...]:
    """Return what there is to say of a machine."""
    return (
        *_gpus(machine),
        _driver(machine),
        _tensorrt_llm(machine),
        _tensorrt(machine),
        *_tritons(machine),
        _containers(machine),
        _mpi(machine),
        _shared_memory(machine),
        _disk(machine),
        _ports(machine),
        _python(machine),
        _torch(machine),
    )


def _gpus(machine: Machine) -> Iterator[Line]:
    if not machine.host.gpus:
        yield Line("gpu", "missing", machine.host.gpu_problem, "the cpu runtime needs none")
        return
    for i, gpu in enumerate(machine.host.gpus):
        shown = f"GPU {i}: {gpu.name}, {_memory(gpu)}, {f'SM{gpu.sm}' if gpu.sm else 'SM unknown'}"
        if gpu.mig:
            yield Line(
                "gpu",
                "warning",
                f"{shown}, in MIG mode: a process sees one instance, which has less memory",
                "plan with the size of the instance: `trtspec plan --gpu 20GB`",
            )
        else:
            yield Line("gpu", "found", shown)


def _memory(gpu: FoundGpu) -> str:
    return "memory shared with the CPU" if gpu.memory_bytes is None else f"{gpu.memory_bytes / GIB:.1f} GiB"


def _driver(machine: Machine) -> Line:
    if machine.host.driver is None:
        return Line("driver", "missing", machine.host.gpu_problem, "install NVIDIA's driver, on a GPU host")
    cuda, container = machine.host.cuda, newest_container()
    shown = f"{machine.host.driver}, runs CUDA up to {cuda or 'an unknown version'}"
    if cuda is not None and _release(cuda) < _release(container.cuda):
        return Line(
            "driver",
            "warning",
            f"{shown}; the container {container.tag} has CUDA {container.cuda}",
            "update the driver; on data-centre GPUs the container's own compatibility libraries do",
        )
    return Line("driver", "found", shown)


def _release(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _tensorrt_llm(machine: Machine) -> Line:
    version = machine.host.tensorrt_llm
    image = newest_container().image
    if version is None:
        return Line(
            "tensorrt_llm",
            "missing",
            f"no tensorrt-llm in Python {machine.python}",
            f"work inside {image}, or pip install 'trtspec[tensorrt]' from NVIDIA's index",
        )
    if version != ENGINE_RELEASE:
        return Line(
            "tensorrt_llm",
            "warning",
            f"{version}; compiled engines need {ENGINE_RELEASE} exactly",
            f"--runtime pytorch, or work inside {image}",
        )
    return Line("tensorrt_llm", "found", version)


def _tensorrt(machine: Machine) -> Line:
    version = machine.host.tensorrt
    if version is None:
        return Line(
            "tensorrt", "missing", f"no tensorrt in Python {machine.python}", "comes with TensorRT-LLM"
        )
    return Line("tensorrt", "found", version)


def _tritons(machine: Machine) -> Iterator[Line]:
    triton = machine.triton
    if triton.on_path is None:
        yield Line("triton_path", "missing", "no tritonserver on PATH", "is there inside a Triton container")
    else:
        backend = "with" if triton.tensorrtllm_backend else "without"
        yield Line("triton_path", "found", f"{triton.on_path}, {backend} the tensorrtllm backend")
    if triton.bundled is None:
        yield Line("triton_bundled", "missing", triton.bundled_problem, "pip install 'trtspec[local]'")
    else:
        version = machine.packages["nvidia-pytriton"]
        yield Line("triton_bundled", "found", f"{triton.bundled}, of nvidia-pytriton {version}")


def _containers(machine: Machine) -> Line:
    found = machine.containers
    if found.program is None:
        there = not found.problem.endswith("not on PATH")
        step = "start its daemon, and see that this user may use it" if there else "install Docker"
        return Line("containers", "missing", found.problem, f"{step}, or work inside a Triton container")
    shown = f"{found.program} {found.version}"
    if not found.gpus:
        return Line(
            "containers",
            "warning",
            f"{shown}, which hands no GPU to containers",
            "install NVIDIA's Container Toolkit and configure it with `nvidia-ctk`",
        )
    return Line("containers", "found", f"{shown}, with GPUs")


def _mpi(machine: Machine) -> Line:
    if machine.mpi is None:
        problem = f"mpirun: {machine.mpi_problem}"
        return Line(
            "mpi",
            "missing",
            problem,
            "TensorRT-LLM's containers have it; several ranks or two compiled engines need it",
        )
    if machine.mpi.startswith("Open MPI ") and not machine.mpi.startswith(f"Open MPI {SPAWNING_MPI}."):
        return Line("mpi", "warning", machine.mpi, f"TensorRT-LLM's containers have Open MPI {SPAWNING_MPI}")
    return Line("mpi", "found", machine.mpi)


def _shared_memory(machine: Machine) -> Line:
    free = machine.shm_free_bytes
    if free is None:
        return Line("shm", "missing", "no /dev/shm", "mount a tmpfs there; Triton's Python models live by it")
    shown = f"{free / 2**20:,.0f} MiB free in /dev/shm"
    if free < OWN_MODELS * SHARED_MEMORY_PER_MODEL_BYTES:
        needed = OWN_MODELS * SHARED_MEMORY_PER_MODEL_BYTES // 2**20
        return Line("shm", "missing", f"{shown}, a pair needs {needed}", "docker run --shm-size=1g")
    if free < SHM_BYTES:
        return Line(
            "shm", "warning", f"{shown}, little for many requests at once", "docker run --shm-size=1g"
        )
    return Line("shm", "found", shown)


def _disk(machine: Machine) -> Line:
    shown = f"{machine.disk_free_bytes / GIB:,.1f} GiB free in {machine.folder}"
    if machine.disk_free_bytes < DISK_BYTES:
        return Line("disk", "warning", shown, "engines take as much again as their checkpoints: make room")
    return Line("disk", "found", shown)


def _ports(machine: Machine) -> Line:
    if machine.taken_ports:
        taken = ", ".join(map(str, machine.taken_ports))
        return Line("ports", "warning", f"taken: {taken}", "`trtspec serve` takes other ports as options")
    return Line("ports", "found", f"{PORTS[0]} to {PORTS[-1]} are free")


def _python(machine: Machine) -> Line:
    return Line("python", "found", f"{machine.python} on {machine.processor}")


def _torch(machine: Machine) -> Line:
    version = machine.packages["torch"]
    if version is None:
        return Line(
            "torch", "missing", f"no torch in Python {machine.python}", "pip install 'trtspec[build]'"
        )
    return Line("torch", "found", version)
