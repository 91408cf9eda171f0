"""How a repository with two TensorRT-LLM engines is started, and which process gets which rank.

From `triton_backend/scripts/launch_triton_server.py` and `examples/draft_target_model` of
TensorRT-LLM 1.2. There are three ways:

leader        one process; each engine has one rank
orchestrator  one process that spawns the ranks of both engines (MPI)
ranks         mpirun starts a process for each rank, 0 being the orchestrator; the only way in which
              the draft's logits go from GPU to GPU ("fast logits")
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trtspec.choices import LaunchMode
from trtspec.errors import RepositoryError
from trtspec.triton_repo.contract import DRAFT_MODEL, TARGET_MODEL
from trtspec.triton_repo.server.command_line import CLOSED_APIS

SCRIPT = "launch.sh"
# Set where the script is called.
ADDRESS = "${HOST:-127.0.0.1}"
PORTS = {"http": "${HTTP_PORT:-8000}", "grpc": "${GRPC_PORT:-8001}", "metrics": "${METRICS_PORT:-8002}"}


@dataclass(frozen=True)
class LaunchOptions:
    """How the engines are placed; None means what suits their ranks."""

    mode: LaunchMode | None = None
    target_gpus: tuple[int, ...] | None = None
    draft_gpus: tuple[int, ...] | None = None
    fast_logits: bool = False


@dataclass(frozen=True)
class LaunchPlan:
    """Which GPUs and MPI ranks each engine has."""

    mode: LaunchMode
    target_gpus: tuple[int, ...]
    draft_gpus: tuple[int, ...]
    fast_logits: bool

    @property
    def draft_participants(self) -> tuple[int, ...]:
        """MPI ranks of the draft; none where they are spawned."""
        return tuple(range(1, 1 + len(self.draft_gpus))) if self.mode == "ranks" else ()

    @property
    def target_participants(self) -> tuple[int, ...]:
        """MPI ranks of the target, after the draft's."""
        first = 1 + len(self.draft_gpus)
        return tuple(range(first, first + len(self.target_gpus))) if self.mode == "ranks" else ()

    @property
    def world_size(self) -> int:
        """Processes that are started by hand."""
        return 1 + len(self.draft_participants) + len(self.target_participants)

    @property
    def shares_gpus(self) -> bool:
        return not set(self.target_gpus).isdisjoint(self.draft_gpus)


def plan_launch(target_ranks: int, draft_ranks: int, options: LaunchOptions) -> LaunchPlan:
    """Return how two engines of so many ranks are started.

    By default both begin at GPU 0: NVIDIA's recipe found two models on one GPU faster than on two.

    Raises:
        RepositoryError: the options do not fit the ranks or each other.
    """
    mode = options.mode
    if mode is None:
        several = max(target_ranks, draft_ranks) > 1
        mode = "ranks" if options.fast_logits else "orchestrator" if several else "leader"
    target_gpus = tuple(range(target_ranks)) if options.target_gpus is None else options.target_gpus
    draft_gpus = tuple(range(draft_ranks)) if options.draft_gpus is None else options.draft_gpus
    faults = (
        (options.fast_logits and mode != "ranks", f"fast logits need launch mode ranks, not {mode}"),
        (
            mode == "leader" and max(target_ranks, draft_ranks) > 1,
            f"launch mode leader is for engines of one rank; these have {target_ranks} and {draft_ranks}",
        ),
        *_gpu_faults("target", target_gpus, target_ranks),
        *_gpu_faults("draft", draft_gpus, draft_ranks),
    )
    if found := [message for wrong, message in faults if wrong]:
        raise RepositoryError("; ".join(found))
    return LaunchPlan(mode, target_gpus, draft_gpus, options.fast_logits)


def launch_script(plan: LaunchPlan, image: str) -> str:
    """Return the shell script that starts the server from the repository it lies in."""
    environment = {
        "leader": [],
        "orchestrator": ["TRTLLM_ORCHESTRATOR=1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES=1"],
        "ranks": ["TRTLLM_ORCHESTRATOR=1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES=0"],
    }[plan.mode]
    apis = ",".join(CLOSED_APIS)
    lines = [
        "#!/bin/sh",
        f"# Starts the server in {image}; arguments are handed on to tritonserver.",
        "# HOST, HTTP_PORT, GRPC_PORT and METRICS_PORT say where it listens.",
        "set -eu",
        "# The configurations name the engines from here.",
        'cd -- "$(dirname -- "$0")"',
        "# Nobody knows the value, so these APIs are closed to everyone.",
        "closed=\"$(od -An -N16 -tx1 /dev/urandom | tr -d ' \\n')\"",
        "set -- --model-repository=. --disable-auto-complete-config \\",
        *(f'  --{name}-address="{ADDRESS}" --{name}-port="{port}" \\' for name, port in PORTS.items()),
        f'  --http-restricted-api="{apis}:closed=$closed" \\',
        f'  --grpc-restricted-protocol="{apis}:closed=$closed" "$@"',
        *(f"export {setting}" for setting in environment),
        f"exec {' '.join(_command(plan))}",
    ]
    return "\n".join(lines) + "\n"


def container_command(repository: Path, image: str) -> str:
    """Return the command line that serves a repository in a container."""
    command = [
        *("docker", "run", "--rm", "--gpus", "all", "--net", "host"),
        *("--shm-size=1g", "--ulimit", "memlock=-1"),
        *("--volume", f"{repository.absolute()}:/repository:ro"),
        *(image, "sh", f"/repository/{SCRIPT}"),
    ]
    return shlex.join(command)


def _gpu_faults(role: str, gpus: Sequence[int], ranks: int) -> Iterator[tuple[bool, str]]:
    yield len(gpus) != ranks, f"{role}: {len(gpus)} GPUs given, its engine has {ranks} ranks"
    yield len(gpus) != len(set(gpus)), f"{role}: a GPU is given twice; each rank needs its own"


def _command(plan: LaunchPlan) -> Iterator[str]:
    """Yield the words of the command, a process a line."""
    if plan.mode == "leader":
        yield from _server(plan, 0)
        return
    yield "mpirun --allow-run-as-root"
    for rank in range(plan.world_size):
        yield ": \\\n  -n 1" if rank else "\\\n  -n 1"
        yield from _server(plan, rank)


def _server(plan: LaunchPlan, rank: int) -> Iterator[str]:
    yield f'tritonserver "$@" --backend-config="python,shm-region-prefix-name=trtspec_$$_{rank}_"'
    if rank:
        # Only the orchestrator has the loop; the other ranks work for their engine.
        yield "\\\n    --model-control-mode=explicit"
        yield from (f"--load-model={name}" for name in (TARGET_MODEL, DRAFT_MODEL))
    if plan.mode == "orchestrator":
        # The memory belongs to the processes it spawns.
        yield "\\\n    --pinned-memory-pool-byte-size=0 --enable-peer-access=false"
        for gpu in sorted({*plan.target_gpus, *plan.draft_gpus}):
            yield f"--cuda-memory-pool-byte-size={gpu}:0"
