"""What a user may choose from, each list once: the command offers it before what knows it is imported."""

from __future__ import annotations

from typing import Literal, get_args

# Of a pair, of a memory plan, and of what an engine computes in.
Runtime = Literal["cpu", "tensorrt", "pytorch"]
PlannedRuntime = Literal["tensorrt", "pytorch"]
EngineDtype = Literal["float32", "bfloat16", "float16"]
# What answers were computed in. fp8: FP8 products in a bfloat16 computation, as on GPUs; fp8-float32: in
# one of float32, as on the cpu runtime.
Dtype = Literal["float32", "float16", "bfloat16", "fp8", "fp8-float32"]
Placement = Literal["together", "apart"]
LaunchMode = Literal["leader", "orchestrator", "ranks"]
# The parts of a verification, in their order.
Part = Literal["reference", "fingerprint", "tokens", "greedy", "log-probs", "options", "sampling"]

RUNTIMES: tuple[Runtime, ...] = get_args(Runtime)
PLANNED_RUNTIMES: tuple[PlannedRuntime, ...] = get_args(PlannedRuntime)
ENGINE_DTYPES: tuple[EngineDtype, ...] = get_args(EngineDtype)
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
PLACEMENTS: tuple[Placement, ...] = get_args(Placement)
LAUNCH_MODES: tuple[LaunchMode, ...] = get_args(LaunchMode)
PARTS: tuple[Part, ...] = get_args(Part)

# A draft length that stands for "the server chooses".
AUTO = -1
# More than any engine is built for, and few enough to be listed.
MOST_DRAFT_TOKENS = 1024
MOST_CONCURRENT = 1024
