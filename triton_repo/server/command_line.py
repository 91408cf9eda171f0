"""The arguments a Triton server is started with."""

from __future__ import annotations

import secrets
from pathlib import Path

from trtspec.triton_repo.server.endpoints import Endpoints

# Whoever reaches the port could otherwise have the server write files (trace, logging), map shared
# memory of this machine, or change what is loaded. The protocol of generation needs none of them.
CLOSED_APIS = ("model-repository", "shared-memory", "trace", "logging")


def server_arguments(
    repository: Path,
    endpoints: Endpoints,
    *,
    marker: str,
    exit_timeout_s: int,
    backend_directory: Path | None,
) -> list[str]:
    """Return the arguments; `marker` becomes the server's id and the prefix of its shared memory."""
    # Nobody knows the value, so the APIs are closed to everyone.
    closed = f"{','.join(CLOSED_APIS)}:closed={secrets.token_hex(16)}"
    arguments = {
        "id": marker,
        "model-repository": repository,
        "http-address": endpoints.host,
        "http-port": endpoints.http_port,
        "grpc-address": endpoints.host,
        "grpc-port": endpoints.grpc_port,
        "metrics-address": endpoints.host,
        "metrics-port": endpoints.metrics_port,
        "allow-metrics": "true",
        "model-control-mode": "none",
        "strict-readiness": "true",
        "exit-on-error": "true",
        "exit-timeout-secs": exit_timeout_s,
        # Level 0 keeps the contents of requests out of the log.
        "log-verbose": 0,
        "http-restricted-api": closed,
        "grpc-restricted-protocol": closed,
        "backend-config": f"python,shm-region-prefix-name={marker}",
    }
    if backend_directory:
        arguments["backend-directory"] = backend_directory
    return ["--disable-auto-complete-config", *(f"--{name}={value}" for name, value in arguments.items())]
