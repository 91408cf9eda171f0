"""Which runtimes can be built and served on a machine, and what stands in the way of the others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from trtspec.choices import Runtime
from trtspec.doctor.lines import OWN_MODELS
from trtspec.doctor.machine import Machine
from trtspec.engines.versions import ENGINE_RELEASE, newest_container
from trtspec.triton_repo.server.preflight import SHARED_MEMORY_PER_MODEL_BYTES

TRTLLM_MIN_SM = 80  # draft-target on TensorRT-LLM: Ampere and newer
PYTORCH_FROM = (1, 2)  # draft-target in the LLM API as it is packaged here
BUILD_PACKAGES = ("safetensors", "tokenizers", "torch", "transformers")
CPU_PACKAGES = (*BUILD_PACKAGES, "numba")


@dataclass(frozen=True)
class Ability:
    """Whether one thing can be done: here, in a container, or not."""

    how: Literal["here", "container", "no"]
    because: str
    next_step: str

    @property
    def possible(self) -> bool:
        """Whether it can be done at all."""
        return self.how != "no"


@dataclass(frozen=True)
class RuntimeReport:
    """One runtime on one machine."""

    runtime: Runtime
    build: Ability
    serve: Ability


def runtime_reports(machine: Machine) -> tuple[RuntimeReport, ...]:
    """Return what can be done with each runtime."""
    return (
        RuntimeReport("cpu", _build_cpu(machine), _serve_cpu(machine)),
        RuntimeReport("tensorrt", _build_tensorrt(machine), _serve_tensorrt(machine)),
        RuntimeReport("pytorch", _build_pytorch(machine), _serve_pytorch(machine)),
    )


def _build_cpu(machine: Machine) -> Ability:
    return _ability(
        _missing_packages(machine, CPU_PACKAGES), "torch and transformers are installed", "trtspec build"
    )


def _serve_cpu(machine: Machine) -> Ability:
    triton = machine.triton
    faults = [*_missing_packages(machine, CPU_PACKAGES), *_shared_memory(machine)]
    if not (triton.on_path or triton.bundled):
        faults.append(triton.bundled_problem)
    return _ability(faults, f"Triton is {triton.on_path or triton.bundled}", "trtspec serve")


def _build_tensorrt(machine: Machine) -> Ability:
    faults = [*_no_gpu(machine), *_wrong_release(machine)]
    if machine.trtllm_build is None:
        faults.append("no trtllm-build on PATH")
    command = "trtspec build --runtime tensorrt"
    return _here_or_in_container(machine, faults, f"TensorRT-LLM {ENGINE_RELEASE} is installed", command)


def _serve_tensorrt(machine: Machine) -> Ability:
    faults = [*_no_gpu(machine), *_wrong_release(machine), *_shared_memory(machine)]
    if not machine.triton.tensorrtllm_backend:
        faults.append("no tritonserver with the tensorrtllm backend on PATH")
    because = f"Triton with TensorRT-LLM {ENGINE_RELEASE} is installed"
    return _here_or_in_container(machine, faults, because, "trtspec serve")


def _build_pytorch(machine: Machine) -> Ability:
    because = "it is packed from checkpoints, without a GPU"
    return _ability(_missing_packages(machine, BUILD_PACKAGES), because, "trtspec build --runtime pytorch")


def _serve_pytorch(machine: Machine) -> Ability:
    version = machine.host.tensorrt_llm
    faults = [*_no_gpu(machine), *_shared_memory(machine)]
    if version is None:
        faults.append("no tensorrt-llm in this Python")
    elif _release(version) < PYTORCH_FROM:
        faults.append(f"tensorrt-llm is {version}, expected 1.2 or newer")
    if machine.triton.on_path is None:
        faults.append("no tritonserver on PATH")
    return _here_or_in_container(machine, faults, f"tensorrt-llm {version} is installed", "trtspec serve")


def _ability(faults: list[str], because: str, command: str) -> Ability:
    if faults:
        return Ability("no", "; ".join(faults), "pip install 'trtspec[build,local]'")
    return Ability("here", because, f"`{command}`")


def _here_or_in_container(machine: Machine, faults: list[str], because: str, command: str) -> Ability:
    """Return whether something for a GPU can be done: here, else in TensorRT-LLM's container."""
    if not faults:
        return Ability("here", because, f"`{command}`")
    image, containers = newest_container().image, machine.containers
    no_gpu = list(_no_gpu(machine))
    if not no_gpu and containers.gpus:
        found = f"{containers.program} {containers.version} hands out the GPU; not here: {'; '.join(faults)}"
        return Ability("container", found, f"work inside {image}")
    if no_gpu:
        return Ability("no", "; ".join(faults), f"move to a host with a GPU of SM{TRTLLM_MIN_SM} or newer")
    return Ability("no", "; ".join(faults), f"start trtspec inside {image}")


def _no_gpu(machine: Machine) -> Iterator[str]:
    host = machine.host
    if not host.gpus:
        yield f"no GPU ({host.gpu_problem})"
    elif host.sms and max(host.sms) < TRTLLM_MIN_SM:
        yield f"the GPUs are SM{max(host.sms)}, expected SM{TRTLLM_MIN_SM} or newer"


def _wrong_release(machine: Machine) -> Iterator[str]:
    version = machine.host.tensorrt_llm
    if version is None:
        yield "no tensorrt-llm in this Python"
    elif version != ENGINE_RELEASE:
        yield f"tensorrt-llm is {version}, compiled engines need {ENGINE_RELEASE}"


def _missing_packages(machine: Machine, needed: tuple[str, ...]) -> list[str]:
    missing = [name for name in needed if machine.packages[name] is None]
    return [f"not installed: {', '.join(missing)}"] if missing else []


def _shared_memory(machine: Machine) -> Iterator[str]:
    free, needed = machine.shm_free_bytes or 0, OWN_MODELS * SHARED_MEMORY_PER_MODEL_BYTES
    if free < needed:
        yield f"{free >> 20} MiB of shared memory free, expected {needed >> 20}"


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
