"""What this machine has of what engines need: GPUs, driver, CUDA, TensorRT, TensorRT-LLM."""

from __future__ import annotations

import re
from dataclasses import dataclass

from trtspec.engines.host.probe import Answer, Probe, package_version

QUERY = "name,memory.total,compute_cap,driver_version,mig.mode.current"
CUDA = re.compile(r"CUDA Version:\s*(\d+\.\d+)")


@dataclass(frozen=True)
class FoundGpu:
    """A GPU of this machine; None where the driver does not say."""

    name: str
    memory_bytes: int | None
    sm: int | None  # compute capability, 89 for 8.9
    mig: bool = False  # split into instances, of which a process sees one


@dataclass(frozen=True)
class HostFacts:
    """What engines can be compared with."""

    gpus: tuple[FoundGpu, ...] = ()
    driver: str | None = None
    cuda: str | None = None  # the newest that the driver runs
    tensorrt: str | None = None
    tensorrt_llm: str | None = None
    gpu_problem: str = ""  # why no GPU was found

    @property
    def sms(self) -> tuple[int, ...]:
        """The compute capabilities of the GPUs, each once."""
        return tuple(sorted({gpu.sm for gpu in self.gpus if gpu.sm is not None}))

    @property
    def sm(self) -> int | None:
        """The lowest of them; None without a GPU."""
        return min(self.sms, default=None)


def read_host_facts(probe: Probe | None = None) -> HostFacts:
    """Return what this machine has; whatever does not answer is left out."""
    probe = probe or Probe()
    query = probe.ask("nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits")
    rows = [[field.strip() for field in line.split(",")] for line in query.text.splitlines()]
    rows = [row for row in rows if len(row) == len(QUERY.split(","))] if query.ok else []
    cuda = CUDA.search(probe.ask("nvidia-smi").text) if rows else None
    return HostFacts(
        gpus=tuple(_gpu(row) for row in rows),
        driver=rows[0][3] if rows else None,
        cuda=cuda[1] if cuda else None,
        tensorrt=package_version("tensorrt"),
        tensorrt_llm=package_version("tensorrt-llm"),
        gpu_problem="" if rows else _why_none(query),
    )


def _gpu(row: list[str]) -> FoundGpu:
    name, memory, capability, _, mig = row
    return FoundGpu(
        name=name,
        # "[N/A]" on machines whose GPU shares the memory of the CPU.
        memory_bytes=int(memory) * 2**20 if memory.isdigit() else None,
        sm=int(capability.replace(".", "")) if re.fullmatch(r"\d+\.\d", capability) else None,
        mig=mig == "Enabled",
    )


def _why_none(query: Answer) -> str:
    if query.ok:
        return (
            f"nvidia-smi lists none ({query.text.splitlines()[0]})" if query.text else "nvidia-smi lists none"
        )
    return f"nvidia-smi: {query.problem}"
