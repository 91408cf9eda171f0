"""Whether a running server's engines behave as they did where their pair was built."""

from __future__ import annotations

from trtspec.engines.manifest import MANIFEST
from trtspec.engines.pair import read_manifest
from trtspec.triton_repo.server.server import Server


def changed_behaviour(server: Server) -> list[str]:
    """Return what the engines continue otherwise than the fingerprint of their pair says, a line each.

    It is empty where nothing is known: a repository of another maker, a pair without a fingerprint.

    Raises:
        CallFailed: when an answer did not come.
    """
    file = server.repository / MANIFEST
    fingerprint = read_manifest(file).fingerprint if file.is_file() else None
    if fingerprint is None:
        return []
    from trtspec.client import Client
    from trtspec.client.verify.fingerprint import compare_fingerprint

    with Client(server.grpc_url) as client:
        found = list(compare_fingerprint(client, fingerprint))
    return [f"{finding.name}: {finding.detail}" for finding in found if finding.verdict == "defect"]
