"""Whether engines run on a machine: what they were built for against what it has, all at once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from trtspec.engines.host.facts import HostFacts
from trtspec.engines.manifest import MANIFEST, HostNeeds, Manifest
from trtspec.engines.versions import image_with
from trtspec.errors import EngineError


@dataclass(frozen=True)
class HostProblem:
    """Something that engines need and a machine has not."""

    needed: str
    found: str
    on: str  # "gpu", or "software", which a container can bring


def check_host(manifest: Manifest, host: HostFacts) -> list[HostProblem]:
    """Return what keeps engines from running on a machine; nothing does those of the cpu runtime."""
    needs = manifest.host_needs
    if manifest.runtime == "cpu" or needs is None:
        return []
    problems = (_gpu_problem(needs, host), *_software_problems(needs, host))
    return [problem for problem in problems if problem]


def require_host(where: Path, manifest: Manifest, host: HostFacts) -> None:
    """Raise EngineError, with every problem in one line, where the engines in `where` do not run here.

    So it does where what they need is not known.
    """
    if manifest.runtime != "cpu" and manifest.host_needs is None:
        raise EngineError(
            f"{where}: its {MANIFEST} does not say what its engines need (host_needs is null), so that this "
            "host cannot be compared with it; build or adopt the pair again, or remove the file to serve "
            "without a check"
        )
    problems = check_host(manifest, host)
    if not problems:
        return
    needed = _listed([problem.needed for problem in problems])
    found = _listed([problem.found for problem in problems])
    raise EngineError(f"{where}: built for {needed}, this host has {found}: {_advice(manifest, problems)}")


def _gpu_problem(needs: HostNeeds, host: HostFacts) -> HostProblem | None:
    if needs.sm is not None:
        wanted = f"sm_{needs.sm}"
        fitting = [gpu for gpu in host.gpus if gpu.sm == needs.sm]
    elif needs.min_sm is not None:
        wanted = f"sm_{needs.min_sm} or newer"
        fitting = [gpu for gpu in host.gpus if gpu.sm is not None and gpu.sm >= needs.min_sm]
    else:
        wanted, fitting = "any GPU", list(host.gpus)
    count = max(needs.gpus, 1)
    if len(fitting) >= count:
        return None
    return HostProblem(wanted if count == 1 else f"{count} GPUs ({wanted})", _found_gpus(host, count), "gpu")


def _found_gpus(host: HostFacts, wanted: int) -> str:
    if not host.gpus:
        return f"no GPU ({host.gpu_problem})" if host.gpu_problem else "no GPU"
    kinds = _listed([f"sm_{sm}" for sm in host.sms]) or "GPUs of a kind that the driver does not tell"
    return kinds if wanted == 1 else f"{len(host.gpus)} ({kinds})"


def _software_problems(needs: HostNeeds, host: HostFacts) -> list[HostProblem]:
    problems = []
    for name, needed, found in (
        ("TensorRT-LLM", needs.tensorrt_llm, host.tensorrt_llm),
        ("TensorRT", needs.tensorrt, host.tensorrt),
    ):
        if needed and not (found and _is_version(found, needed)):
            problems.append(HostProblem(f"{name} {needed}", found or f"no {name}", "software"))
    # Within a major version every driver runs what any toolkit has compiled (CUDA Compatibility, NVIDIA).
    if needs.cuda and host.cuda and _major(host.cuda) < _major(needs.cuda):
        problems.append(HostProblem(f"CUDA {needs.cuda}", f"a driver for CUDA {host.cuda}", "gpu"))
    return problems


def _advice(manifest: Manifest, problems: list[HostProblem]) -> str:
    needs = manifest.host_needs
    assert needs is not None
    image = needs.container or image_with(tensorrt_llm=needs.tensorrt_llm, tensorrt=needs.tensorrt)
    elsewhere = []
    if hardware := [problem.needed for problem in problems if problem.on == "gpu"]:
        elsewhere.append(f"serve on a host with {_listed(hardware)}")
    if any(problem.on == "software" for problem in problems) and image:
        elsewhere.append(f"use container {image}")
    return " or ".join(["rebuild here", *([" and ".join(elsewhere)] if elsewhere else [])])


def _is_version(found: str, needed: str) -> bool:
    """Whether a version is the one needed, which may be cut short: 10.14 for 10.14.1.48."""
    return f"{found}.".startswith(f"{needed}.")


def _major(version: str) -> int:
    digits = re.match(r"\d+", version)
    return int(digits[0]) if digits else 0


def _listed(parts: list[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
