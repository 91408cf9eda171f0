"""verify through real Triton servers: one that is right, one whose engine was tampered with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trtspec.client import Client
from trtspec.client.verify import AUTO, DEFAULT_PROMPTS, HuggingFaceReference, Settings, verify
from trtspec.engines.pair import EnginePair
from trtspec.pytest_plugin import TrtspecVerify
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
        "fingerprint",
        "tokens",
        "greedy",
        "log-probs",
        "options",
        "sampling",
    }
    assert sum(finding.verdict == "ok" for finding in report.others if finding.part == "options") >= 20
    diverged = [finding.numbers for finding in report.others if "mean_kl" in finding.numbers]
    assert len(diverged) == 2 * SETTINGS.logit_prompts
    for numbers in diverged:
        assert 0 < numbers["mean_kl"] < numbers["allowed_mean_kl"]
        assert numbers["mean_kl"] < numbers["largest_kl"]
        assert 0 < numbers["kl_nearest_its_limit"] < numbers["its_limit"]


def test_the_fixture_learns_from_a_manifest_what_is_served(
    trtspec_verify: TrtspecVerify, live_server: Server, built_pair: EnginePair, demo_pair: Path
) -> None:
    asked: dict[str, Any] = {"prompts": ["def main("], "num_draft_tokens": [0], "max_tokens": 4, "alone": 0}
    reference, url = demo_pair / "target", live_server.grpc_url
    unknown = trtspec_verify(url, reference=reference, parts=["greedy"], **asked)
    assert unknown.judged_as == "bfloat16"
    parts = ["reference", "greedy", "fingerprint"]
    report = trtspec_verify(url, reference=reference, manifest=built_pair.path, parts=parts, **asked)
    assert report.judged_as == "float32"
    compared = {finding.part for finding in report.findings if finding.verdict == "ok"}
    assert compared == {"reference", "greedy", "fingerprint"}
    assert any("that the engines were built from" in finding.detail for finding in report.others)


def test_the_fixture_asks_with_every_draft_length_of_the_pair(
    trtspec_verify: TrtspecVerify, live_server: Server, built_pair: EnginePair, demo_pair: Path
) -> None:
    asked: dict[str, Any] = {"prompts": ["def main("], "parts": ["greedy"], "max_tokens": 8, "alone": 0}
    reference, url = demo_pair / "target", live_server.grpc_url
    longest = built_pair.manifest.target.settings.max_draft_len
    report = trtspec_verify(url, reference=reference, manifest=built_pair.path, **asked)
    assert [case.num_draft_tokens for case in report.cases] == [*range(longest + 1), AUTO]
    unknown = trtspec_verify(url, reference=reference, **asked)
    assert len(unknown.cases) > 2
    chosen = trtspec_verify(url, reference=reference, num_draft_tokens=[2], **asked)
    assert [case.num_draft_tokens for case in chosen.cases] == [2]


# Module of the served code -> what is right there, and what is served in its place.
TAMPERED = {
    "sampling.py": ("scores_RV = scores_RV / params.temperature", "pass"),
    "tensors.py": ("np.stack(rows)[None, None]", "(np.stack(rows) / 1.1)[None, None]"),
}


@pytest.fixture(scope="module")
def tampered_server(built_pair: EnginePair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Ignores temperature where it draws, and applies one to the logits that it sends."""
    repository = write_repository(built_pair, tmp_path_factory.mktemp("tampered") / "repository")
    for name, (right, wrong) in TAMPERED.items():
        modules = [path for path in repository.rglob(name) if right in path.read_text("utf-8")]
        assert modules, name
        for module in modules:
            module.write_text(module.read_text("utf-8").replace(right, wrong), "utf-8")
    with serve(repository, FREE_PORTS) as server:
        yield server


def test_a_triton_server_whose_engine_ignores_temperature_fails(
    tampered_server: Server, reference: HuggingFaceReference
) -> None:
    settings = Settings(DEFAULT_PROMPTS[:2], (0, 4), parts=("sampling",), draws=40, sampling_prompts=2)
    with Client(tampered_server.grpc_url) as client:
        report = verify(client, reference, settings)
    wrong = {finding.name for finding in report.findings if finding.verdict == "defect"}
    assert any("likely and unlikely tokens" in name for name in wrong), wrong


def test_a_triton_server_that_sends_other_logits_than_it_uses_fails(
    tampered_server: Server, reference: HuggingFaceReference
) -> None:
    settings = Settings(
        DEFAULT_PROMPTS[:2], (0, 4), max_tokens=12, parts=("greedy", "log-probs"), alone=1, logit_prompts=2
    )
    with Client(tampered_server.grpc_url) as client:
        report = verify(client, reference, settings)
    verdicts = {finding.name: finding.verdict for finding in report.findings}
    logits = {name for name in verdicts if name.startswith("logits")}
    assert len(logits) == 4
    assert {name for name, verdict in verdicts.items() if verdict == "defect"} == logits
