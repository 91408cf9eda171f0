"""What an engine needs of the GPU it runs on."""

from __future__ import annotations

# Compute capabilities as NVIDIA counts them, 89 for 8.9. FP8 matrix units came with Ada and Hopper;
# Ampere (80, 86) has none (TensorRT-LLM's support matrix).
FP8_MIN_SM = 89


def min_sm(*, fp8: bool) -> int | None:
    """Return the lowest compute capability that engines run on; None where any will do."""
    return FP8_MIN_SM if fp8 else None


def gpu_problem(needed_sm: int | None, found_sm: int) -> str | None:
    """Return why a GPU cannot run engines, in one sentence; None where it can."""
    if needed_sm is None or found_sm >= needed_sm:
        return None
    return (
        f"FP8 engines need SM{needed_sm} or newer (Ada, Hopper, Blackwell), this GPU is SM{found_sm}; build "
        "with --quantization none, or serve on another GPU"
    )
