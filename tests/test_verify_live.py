"""verify through real Triton servers: one that is right, one whose engine was tampered with."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtspec.client import Client
from trtspec.client.verify import DEFAULT_PROMPTS, HuggingFaceReference, Settings, verify
from trtspec.engines.pair import EnginePair
from trtspec.triton_repo.repository import write_repository
from trtspec.triton_repo.server import FREE_PORTS, Server, serve

SETTINGS = Settings(
    DEFAULT_PROMPTS[:4], (0, 4), max_tokens=12, alone=1, draws=40, sampling_prompts=1, option_prompts=1
)


@pytest.fixture(scope="module")
def reference(demo_pair: Path) -> HuggingFaceReference:
    return HuggingFaceReference(demo_pair / "target")


def test_the_bundled_server_is_right_in_every_part(
    live_server: Server, reference: HuggingFaceReference
) -> None:
    with Client(live_server.grpc_url) as client:
        report = verify(client, reference, SETTINGS)
    assert report.ok, [finding for finding in report.findings if finding.verdict == "defect"]
    assert {finding.part for finding in report.findings} == {
        "reference",
        "tokens",
        "greedy",
        "log-probs",
        "options",
        "sampling",
    }
    assert sum(finding.verdict == "ok" for finding in report.others if finding.part == "options") >= 20


def test_a_triton_server_whose_engine_ignores_temperature_fails(
    built_pair: EnginePair, reference: HuggingFaceReference, tmp_path: Path
) -> None:
    repository = write_repository(built_pair, tmp_path / "repository")
    right = "scores_RV = scores_RV / params.temperature"
    for engine in repository.rglob("sampling.py"):
        code = engine.read_text("utf-8")
        assert right in code
        engine.write_text(code.replace(right, "pass"), "utf-8")
    settings = Settings(DEFAULT_PROMPTS[:2], (0, 4), parts=("sampling",), draws=40, sampling_prompts=2)
    with serve(repository, FREE_PORTS) as server, Client(server.grpc_url) as client:
        report = verify(client, reference, settings)
    wrong = {finding.name for finding in report.findings if finding.verdict == "defect"}
    assert any("likely and unlikely tokens" in name for name in wrong), wrong
