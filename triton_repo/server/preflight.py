"""What must hold before a server is started: the host that the engines want, and shared memory."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from trtspec.engines.host import HostFacts, read_host_facts
from trtspec.engines.host_check import require_host
from trtspec.engines.manifest import MANIFEST
from trtspec.engines.pair import read_manifest
from trtspec.errors import ServerError
from trtspec.triton_repo.server import leftovers

# A model's region starts at 1 MiB and grows by what is in flight. The largest tensor of the loop is
# the float32 logits of 9 rows (8 drafted tokens and one) over a vocabulary of 152k: 5.2 MiB.
# Docker's default of 64 MiB is room for eight models, we serve three.
SHARED_MEMORY_PER_MODEL_BYTES = 8 * 2**20


def require_host_of(repository: Path, facts: Callable[[], HostFacts] = read_host_facts) -> None:
    """Refuse engines that were built for another GPU or other software than this host has.

    A repository of ours carries the manifest of its pair; of another nothing is known.

    Raises:
        EngineError: with every mismatch.
    """
    file = repository / MANIFEST
    if not file.is_file():
        return
    manifest = read_manifest(file)
    if manifest.runtime != "cpu":
        require_host(repository, manifest, facts())


def require_shared_memory(models: int, folder: Path = leftovers.SHARED_MEMORY) -> None:
    """Refuse to start where Python models would die of a bus error later.

    Raises:
        ServerError: the free space in `folder` is under 8 MiB a model.
    """
    needed = models * SHARED_MEMORY_PER_MODEL_BYTES
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ServerError(
            f"{folder}: {free / 2**20:.0f} MiB free, {models} models need {needed / 2**20:.0f} MiB "
            f"({SHARED_MEMORY_PER_MODEL_BYTES // 2**20} each); "
            "remove what is left there, or give the container more (docker run --shm-size=1g)"
        )
