"""The fingerprint: what is compared with what the engines said at the build, and where it is told."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from trtspec.cli.serve import changed_behaviour
from trtspec.client import Client, Delta, InferRequest, InferResponse, MockTransport, RequestRefused
from trtspec.client.verify import HuggingFaceReference, Noise, Settings, verify
from trtspec.client.verify.fingerprint import compare_fingerprint, judge_probe
from trtspec.engines.fingerprint import fingerprint_of
from trtspec.engines.manifest import MANIFEST, FingerprintManifest, Manifest, ProbeManifest
from trtspec.engines.pair import EnginePair, write_manifest
from trtspec.errors import EngineError
from trtspec.triton_repo.repository import write_repository
from trtspec.triton_repo.server import Server

Run = Callable[..., tuple[int, str, str]]

PROBE = ProbeManifest(
    prompt_ids=(7, 8),
    ids=(1, 2, 3),
    log_probs=(-0.5, -1.5, -2.5),
    margins=(0.5, 0.00001, 0.5),
    tolerances=(0.001, 0.002, 0.003),
)


# One probe


@given(st.lists(st.floats(-0.999, 0.999), min_size=3, max_size=3))
def test_the_same_tokens_within_the_tolerances_are_right(parts: list[float]) -> None:
    served = np.array(PROBE.log_probs) + np.array(parts) * np.array(PROBE.tolerances)
    assert judge_probe("", PROBE, [1, 2, 3], served.tolist()).verdict == "ok"


@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("sign", [1, -1])
def test_one_log_prob_beyond_its_tolerance_is_a_defect_and_named(position: int, sign: int) -> None:
    served = list(PROBE.log_probs)
    served[position] += sign * 1.01 * PROBE.tolerances[position]
    found = judge_probe("", PROBE, PROBE.ids, served)
    assert (found.verdict, found.detail[:11]) == ("defect", f"position {position}:")


def test_a_log_prob_that_is_no_number_is_a_defect() -> None:
    assert judge_probe("", PROBE, PROBE.ids, [-0.5, float("nan"), -2.5]).verdict == "defect"


def test_another_token_is_a_defect_where_the_choice_was_clear() -> None:
    found = judge_probe("", PROBE, [9, 2, 3], PROBE.log_probs)
    assert found.verdict == "defect"
    assert found.detail == (
        "position 0: token 9, at the build 1, which was 0.5 better than any other where noise explains 0.001"
    )


def test_another_token_is_a_tie_where_two_were_as_good_and_nothing_after_it_counts() -> None:
    found = judge_probe("", PROBE, [1, 9, 9], [-0.5, -1.5005, -77.0])
    assert (found.verdict, found.detail) == ("tie", "position 1: token 9 ties with 2")


def test_a_token_that_ties_has_the_log_prob_of_the_other() -> None:
    assert judge_probe("", PROBE, [1, 9, 9], [-0.5, -1.6, -2.5]).verdict == "defect"


def test_an_error_before_a_tie_is_a_defect() -> None:
    assert judge_probe("", PROBE, [1, 9, 9], [-0.6, -1.5, -2.5]).verdict == "defect"


@pytest.mark.parametrize(("ids", "log_probs"), [([1, 2], [-0.5, -1.5]), ([1, 2, 3], []), ([], [])])
def test_an_answer_of_another_length_is_a_defect(ids: list[int], log_probs: list[float]) -> None:
    found = judge_probe("", PROBE, ids, log_probs)
    assert found.verdict == "defect"
    assert "expected 3 of both" in found.detail


# How it is asked


def engines(target: ProbeManifest, draft: ProbeManifest | None) -> MockTransport:
    """A double of the two engine models, which take what they must have and know one prompt each."""
    known = {"tensorrt_llm": target, "tensorrt_llm_draft": draft}

    def answer(request: InferRequest) -> Iterator[Delta | InferResponse]:
        probe = known[request.model]
        if probe is None:
            raise RequestRefused("unknown model", status="NOT_FOUND")
        inputs = {name: array.tolist() for name, array in request.inputs.items()}
        assert inputs == {
            "input_ids": [list(probe.prompt_ids)],
            "input_lengths": [[len(probe.prompt_ids)]],
            "request_output_len": [[len(probe.ids)]],
            "return_log_probs": [[True]],
            "exclude_input_in_output": [[True]],
        }
        for n, last in ((slice(0, 2), False), (slice(2, None), True)):
            ids, log_probs = (
                np.array([[probe.ids[n]]], np.int32),
                np.array([[probe.log_probs[n]]], np.float32),
            )
            yield InferResponse({"output_ids": ids, "output_log_probs": log_probs}, final=last)

    return MockTransport(answer)


OTHER = PROBE.model_copy(update={"ids": (4, 5, 6)})


def test_each_engine_is_asked_by_itself_and_pieces_of_an_answer_are_put_together() -> None:
    client = Client(transport=engines(PROBE, OTHER))
    found = list(compare_fingerprint(client, FingerprintManifest(target=(PROBE,), draft=(OTHER,))))
    assert [(f.name, f.verdict) for f in found] == [("target, probe 1", "ok"), ("draft, probe 1", "ok")]


def test_a_draft_that_behaves_otherwise_is_found_though_no_answer_shows_it() -> None:
    client = Client(transport=engines(PROBE, OTHER))
    found = list(compare_fingerprint(client, FingerprintManifest(target=(PROBE,), draft=(PROBE,))))
    assert [(f.name, f.verdict) for f in found] == [("target, probe 1", "ok"), ("draft, probe 1", "defect")]


def test_engines_that_a_server_does_not_show_are_skipped() -> None:
    client = Client(transport=engines(PROBE, None))
    found = list(compare_fingerprint(client, FingerprintManifest(target=(PROBE,), draft=(PROBE,))))
    assert [f.verdict for f in found] == ["ok", "skipped"]
    assert found[1].detail.startswith("the server does not show its engines: ")


def test_answers_that_are_not_waited_for_are_closed() -> None:
    transport = engines(PROBE, OTHER)
    asked = compare_fingerprint(
        Client(transport=transport), FingerprintManifest(target=(PROBE,) * 3, draft=None)
    )
    next(asked)
    asked.close()
    assert len(transport.closed_early) == 2


# What the build writes


def test_tolerances_are_the_noise_of_the_engines_dtype_and_margins_those_of_its_logits(
    built_pair: EnginePair, demo_pair: Path
) -> None:
    reference = HuggingFaceReference(demo_pair / "target")
    noise = Noise("float32", reference.layers, reference.width)
    assert built_pair.manifest.fingerprint is not None
    for probe in built_pair.manifest.fingerprint.target:
        rows = reference.logits(probe.prompt_ids, probe.ids)[:-1]
        second, best = np.sort(rows, axis=-1)[:, -2:].T
        assert probe.margins == pytest.approx(best - second, abs=1e-4)
        bounds = np.array([noise.bound(row_V) for row_V in rows])
        assert (np.array(probe.tolerances) >= bounds).all()
        assert probe.tolerances == pytest.approx(bounds, abs=3e-6)


@pytest.mark.parametrize("value", [3e38, -3e38])
def test_an_engine_that_says_no_numbers_is_refused_by_its_role(
    value: float, built_pair: EnginePair, tmp_path: Path
) -> None:
    folder = shutil.copytree(built_pair.path / "draft", tmp_path / "draft")
    (folder / "model.safetensors").unlink()
    tensors = load_file(built_pair.path / "draft" / "model.safetensors")
    tensors["model.layers.0.mlp.down_proj.weight"][:] = value
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(EngineError, match=r"^the target's engine says NaN or infinite logits where it"):
        fingerprint_of(folder, None, built_pair.path / "tokenizer", {"target": "float32"})


def test_a_coarser_dtype_tolerates_more(built_pair: EnginePair) -> None:
    dtypes: Any = {"target": "bfloat16", "draft": "fp8-float32"}
    found = fingerprint_of(built_pair.target, built_pair.draft, built_pair.tokenizer, dtypes)
    exact = built_pair.manifest.fingerprint
    assert exact is not None
    for coarse, fine in zip((found.target, found.draft), (exact.target, exact.draft), strict=True):
        assert coarse is not None
        assert fine is not None
        assert min(probe.tolerances[0] for probe in coarse) > 100 * max(probe.tolerances[0] for probe in fine)


# Through a live server


def changed(manifest: Manifest, **of_the_target: Any) -> Manifest:
    """The manifest of a pair whose target said something else to the second probe."""
    known = manifest.fingerprint
    assert known is not None
    first, second, *rest = known.target
    other = (first, second.model_copy(update=of_the_target), *rest)
    return manifest.model_copy(update={"fingerprint": known.model_copy(update={"target": other})})


@pytest.fixture(scope="module")
def another(built_pair: EnginePair) -> Manifest:
    """As if the pair had been built of another target."""
    assert built_pair.manifest.fingerprint is not None
    probe = built_pair.manifest.fingerprint.target[1]
    return changed(built_pair.manifest, log_probs=tuple(value + 0.01 for value in probe.log_probs))


def test_a_server_on_the_host_of_the_build_has_the_fingerprint_over_grpc_and_http(
    live_server: Server, built_pair: EnginePair
) -> None:
    assert built_pair.manifest.fingerprint is not None
    for url in (live_server.grpc_url, live_server.http_url):
        with Client(url) as client:
            found = list(compare_fingerprint(client, built_pair.manifest.fingerprint))
        assert [finding.verdict for finding in found] == ["ok"] * 6
        assert max(finding.numbers["largest_error"] for finding in found) < 1e-5


def test_a_live_server_without_the_models_is_skipped(live_server: Server, built_pair: EnginePair) -> None:
    models = {"target": "tensorrt_llm", "draft": "elsewhere"}
    assert built_pair.manifest.fingerprint is not None
    for url in (live_server.grpc_url, live_server.http_url):
        with Client(url) as client:
            found = list(compare_fingerprint(client, built_pair.manifest.fingerprint, models))
        assert [finding.verdict for finding in found] == ["ok"] * 3 + ["skipped"] * 3


def test_verify_has_the_part_and_says_so_where_no_manifest_is_known(
    live_server: Server, built_pair: EnginePair, demo_pair: Path
) -> None:
    reference = HuggingFaceReference(demo_pair / "target")
    with Client(live_server.grpc_url) as client:
        for fingerprint, verdicts in ((built_pair.manifest.fingerprint, ["ok"] * 6), (None, ["skipped"])):
            settings = Settings(parts=("fingerprint",), fingerprint=fingerprint)
            assert [finding.verdict for finding in verify(client, reference, settings).findings] == verdicts


@pytest.fixture
def run(typed: Run) -> Run:
    """Run `trtspec verify` in this process; exit code, stdout, stderr."""
    return partial(typed, "verify")


def test_the_command_holds_a_running_server_to_a_manifest(
    live_server: Server,
    another: Manifest,
    demo_pair: Path,
    tmp_path: Path,
    run: Run,
) -> None:
    write_manifest(another, tmp_path)
    arguments = [live_server.grpc_url, "--reference", demo_pair / "target", "--part", "fingerprint"]
    code, out, _ = run(*arguments, "--manifest", live_server.repository)
    assert (code, "no defect in 6 findings" in out) == (0, True)
    junit, page = tmp_path / "report.xml", tmp_path / "report.html"
    reports = ("--junit", junit, "--html", page)
    code, out, _ = run(*arguments, "--manifest", tmp_path / MANIFEST, *reports)
    assert (code, "1 of 6 findings are defects" in out) == (3, True)
    said = "fingerprint: target, probe 2: position "
    assert said in out
    assert '<testsuite name="fingerprint" tests="6" failures="1"' in junit.read_text()
    assert "<h2>fingerprint</h2>" in page.read_text()
    code, out, _ = run(*arguments, "--manifest", tmp_path, "--json")
    report = json.loads(out)
    assert (code, report["ok"]) == (3, False)
    assert [finding["verdict"] for finding in report["findings"]] == ["ok", "defect", *["ok"] * 4]


def test_a_command_that_could_compare_nothing_says_why_and_fails(
    live_server: Server, demo_pair: Path, run: Run
) -> None:
    arguments = [live_server.grpc_url, "--reference", demo_pair / "target", "--part", "fingerprint"]
    code, out, err = run(*arguments)
    assert (code, "nothing was compared; see what was skipped" in err) == (1, True)
    assert "fingerprint: 1 skipped: no manifest is known that has a fingerprint" in out
    assert "no defect" not in out


def test_a_repository_is_served_and_compared_with_its_own_manifest(
    built_pair: EnginePair, another: Manifest, tmp_path: Path, run: Run
) -> None:
    repository = write_repository(built_pair, tmp_path / "repo")
    write_manifest(another, repository)
    code, out, _ = run(repository, "--part", "fingerprint", "--part", "reference", "--json")
    assert code == 3
    defects = [finding["name"] for finding in json.loads(out)["findings"] if finding["verdict"] == "defect"]
    assert defects == ["target, probe 2"]
    (repository / MANIFEST).unlink()
    code, _, err = run(repository)
    assert (code, "has no checkpoint of its own; pass --reference HF_DIR" in err) == (2, True)


def test_a_manifest_beside_what_has_its_own_is_wrong_usage(built_pair: EnginePair, run: Run) -> None:
    code, _, err = run(built_pair.path, "--manifest", built_pair.path)
    assert (code, "--manifest is for a running server" in err) == (2, True)


def served(repository: Path, count: int) -> tuple[list[str], bool, int, str]:
    """Serve a repository; the first lines of stderr, whether it then still ran, its exit code, the rest."""
    ports = [argument for name in ("http", "grpc", "metrics") for argument in (f"--{name}-port", "0")]
    with subprocess.Popen(
        [sys.executable, "-m", "trtspec", "serve", str(repository), *ports], stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stderr
        lines = [running.stderr.readline() for _ in range(count)]
        alive = running.poll() is None
        running.terminate()
        rest = running.communicate()[1]
    return lines, alive, running.returncode, rest


def test_serve_warns_of_a_draft_that_is_not_there_and_goes_on(built_pair: EnginePair, tmp_path: Path) -> None:
    repository = write_repository(built_pair, tmp_path / "repo")
    shutil.rmtree(repository / "tensorrt_llm_draft")
    lines, alive, code, _ = served(repository, 3)
    assert lines[1].startswith("ready: ")
    assert lines[2].startswith(f"warning: {repository}: answers come without a draft: ")
    assert (alive, code) == (True, 0)


def test_serve_warns_of_engines_that_changed_and_goes_on(
    built_pair: EnginePair, another: Manifest, tmp_path: Path
) -> None:
    repository = write_repository(built_pair, tmp_path / "repo")
    write_manifest(another, repository)
    lines, alive, code, rest = served(repository, 4)
    assert lines[1].startswith("ready: ")
    assert lines[2].startswith("warning: target, probe 2: position ")
    assert "do not behave as where they were built; run: trtspec verify 127.0.0.1:" in lines[3]
    assert (alive, code, rest) == (True, 0, "")


def test_nothing_is_told_where_nothing_changed_or_is_known(
    live_server: Server, built_pair: EnginePair
) -> None:
    assert changed_behaviour(live_server) == []
    manifest = live_server.repository / MANIFEST
    kept = manifest.read_bytes()
    manifest.unlink()
    try:
        assert changed_behaviour(live_server) == []
        write_manifest(built_pair.manifest.model_copy(update={"fingerprint": None}), live_server.repository)
        assert changed_behaviour(live_server) == []
    finally:
        manifest.write_bytes(kept)


# What the reference is made of


def test_a_reference_of_other_files_is_named_and_no_defect(
    built_pair: EnginePair,
    live_server: Server,
    demo_pair: Path,
    tmp_path: Path,
    run: Run,
) -> None:
    other = tmp_path / "other"
    shutil.copytree(demo_pair / "target", other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(
        json.dumps(config | {"rope_parameters": {"rope_type": "default", "rope_theta": 10001.0}})
    )
    (other / "generation_config.json").unlink()
    arguments = ["--reference", other, "--part", "reference", "--manifest", live_server.repository]
    code, out, _ = run(live_server.grpc_url, *arguments)
    assert code == 0
    (line,) = [line for line in out.splitlines() if line.startswith("reference: source: ")]
    assert f"{other} is not what the engines were built from, which may be why answers differ: " in line
    assert "config.json differs; generation_config.json is missing (of " in line
