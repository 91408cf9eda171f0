"""The environment of a server and of the model processes it starts: what is needed, nothing else."""

from __future__ import annotations

import os
from collections.abc import Mapping

from trtspec.triton_repo.server import leftovers
from trtspec.triton_repo.server.installation import Installation

# Proxies, tokens and cloud credentials of the shell that started us are no business of a model.
PASSED = frozenset(
    {
        *("HOME", "XDG_CACHE_HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR"),
        *("LD_LIBRARY_PATH", "LD_PRELOAD", "PATH"),
    }
)
PASSED_PREFIXES = (
    *("LC_", "CUDA_", "NVIDIA_", "NCCL_", "OMP_", "MKL_", "KMP_"),
    *("TRTLLM_", "TLLM_", "OMPI_", "OPAL_", "PMIX_", "UCX_"),
)

FIXED = {
    # Threads that spin while they wait take the cores from the client, the server and each other.
    "OMP_WAIT_POLICY": "PASSIVE",
    "KMP_BLOCKTIME": "0",
    # A model that is served is complete on disk.
    "HF_HUB_OFFLINE": "1",
}


def server_environment(
    installation: Installation, marker: str, outer: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the variables a server starts with, picked out of the `outer` ones."""
    passed = {k: v for k, v in outer.items() if k in PASSED or k.startswith(PASSED_PREFIXES)}
    environment = passed | FIXED | {leftovers.VARIABLE: marker}
    _prepend(environment, "LD_LIBRARY_PATH", [str(folder) for folder in installation.library_folders])
    if installation.python_folder:
        _prepend(environment, "PATH", [str(installation.python_folder)])
    return environment


def _prepend(environment: dict[str, str], name: str, folders: list[str]) -> None:
    existing = environment.get(name)
    if value := os.pathsep.join([*folders, *([existing] if existing else [])]):
        environment[name] = value
