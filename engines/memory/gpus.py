"""GPUs by name: how much memory each has, and what it can compute."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches

from trtspec.engines.host import FP8_MIN_SM, HostFacts
from trtspec.errors import PlanError

MIB, GIB = 2**20, 2**30
# What nvidia-smi shows of a GPU is a little more than a program may have: 79.1 GiB of an H100's 79.6.
DRIVER_BYTES = GIB
# Smaller is no GPU that serves models, but a size without its unit.
FEWEST_BYTES = 2 * GIB

SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[KMGT]i?B|B)?", re.IGNORECASE)
UNITS = {
    "b": 1,
    **{f"{sign}b": 1000**power for power, sign in enumerate("kmgt", 1)},
    **{f"{sign}ib": 1024**power for power, sign in enumerate("kmgt", 1)},
}


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU; `sm` is its compute capability, 89 for 8.9, None where only a size was given."""

    name: str
    memory_bytes: int  # as nvidia-smi shows it
    sm: int | None

    @property
    def has_fp8(self) -> bool:
        """Whether it multiplies FP8 matrices; an unknown GPU is taken to."""
        return self.sm is None or self.sm >= FP8_MIN_SM

    @property
    def usable_bytes(self) -> int:
        """What programs on it can have together."""
        return self.memory_bytes - DRIVER_BYTES


# memory.total of nvidia-smi with ECC as it is delivered.
GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("L4", 23034 * MIB, 89),
        Gpu("A10", 23028 * MIB, 86),
        Gpu("A30", 24576 * MIB, 80),
        Gpu("RTX4090", 24564 * MIB, 89),
        Gpu("RTX5090", 32607 * MIB, 120),
        Gpu("A100-40GB", 40960 * MIB, 80),
        Gpu("L40S", 46068 * MIB, 89),
        Gpu("RTX6000-Ada", 49140 * MIB, 89),
        Gpu("H100", 81559 * MIB, 90),
        Gpu("A100-80GB", 81920 * MIB, 80),
        Gpu("H200", 143771 * MIB, 90),
        Gpu("B200", 183359 * MIB, 100),
    )
}


def gpu_of(host: HostFacts) -> Gpu:
    """Return the GPU of a machine, that with the least memory where they differ.

    Raises:
        PlanError: it has none, or its driver does not say how large it is.
    """
    sizes = [(gpu.memory_bytes, gpu) for gpu in host.gpus if gpu.memory_bytes is not None and not gpu.mig]
    if not sizes:
        why = host.gpu_problem or "the driver does not say how much memory it has, or MIG splits it"
        raise PlanError(
            f"no GPU to plan for on this machine ({why}); name one with --gpu, such as H100 or 80GB"
        )
    size, gpu = min(sizes, key=lambda item: item[0])
    return Gpu(gpu.name, size, gpu.sm)


def find_gpu(text: str) -> Gpu:
    """Return the GPU of a name, or one of a size: `H100`, `80GB`, `79.6GiB`, a number of bytes.

    Raises:
        PlanError: neither a known name nor a size.
    """
    by_name = {name.lower(): gpu for name, gpu in GPUS.items()}
    if gpu := by_name.get(text.strip().lower().replace(" ", "-")) or _as_nvidia_smi_says(text):
        return gpu
    if found := SIZE.fullmatch(text.strip()):
        size = round(float(found["number"]) * UNITS[(found["unit"] or "B").lower()])
        if size < FEWEST_BYTES:
            raise PlanError(
                f"--gpu {text}: {size:,} bytes of memory; give the size with its unit, as in 80GB"
            )
        return Gpu(text, size, None)
    close = get_close_matches(text.lower(), by_name, n=1)
    meant = f"did you mean {by_name[close[0]].name}? " if close else ""
    raise PlanError(f"--gpu {text}: unknown; {meant}known are {', '.join(GPUS)}, or give a size such as 80GB")


def _as_nvidia_smi_says(text: str) -> Gpu | None:
    """Return the GPU of a name such as `NVIDIA A100-SXM4-80GB`, None where it is not the name of just one."""
    words = set(re.split(r"[\s-]+", text.strip().lower()))
    if "nvl" in words:  # of another size than the GPU it is named after
        return None
    found = [gpu for name, gpu in GPUS.items() if set(name.lower().split("-")) <= words]
    return found[0] if len(found) == 1 else None
