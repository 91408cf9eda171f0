"""A pair says what it needs of a host, and a host that has it not is told all at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtspec.choices import Runtime
from trtspec.engines.host import FoundGpu, HostFacts
from trtspec.engines.host_check import check_host, require_host
from trtspec.engines.manifest import MANIFEST, EngineManifest, EngineSettings, HostNeeds, Manifest
from trtspec.engines.pair import EnginePair, write_manifest
from trtspec.errors import EngineError
from trtspec.triton_repo import write_repository
from trtspec.triton_repo.server import FREE_PORTS, serve
from trtspec.triton_repo.server.preflight import require_host_of

NEEDS = HostNeeds(sm=90, gpus=1, tensorrt_llm="1.2.1", tensorrt="10.14.1.48", cuda="13.0")
RIGHT = HostFacts(
    gpus=(FoundGpu("H100", 80 << 30, 90),), cuda="13.0", tensorrt="10.14.1.48", tensorrt_llm="1.2.1"
)


def manifest_of(needs: HostNeeds | None, runtime: Runtime = "tensorrt") -> Manifest:
    settings = EngineSettings(
        dtype="bfloat16", max_seq_len=64, max_batch_size=1, max_draft_len=4, vocab_size=8
    )
    engine = EngineManifest(
        architecture="LlamaForCausalLM", source_dtype="BF16", parameters=1, settings=settings, files={}
    )
    return Manifest(
        trtspec_version="0",
        runtime=runtime,
        compiled=True,
        target=engine,
        draft=None,
        eos_token_ids=(2,),
        repairs=(),
        files={},
        host_needs=needs,
    )


def host(**changes: object) -> HostFacts:
    return HostFacts(**{**vars(RIGHT), **changes})


def test_a_host_that_has_everything_is_taken() -> None:
    assert check_host(manifest_of(NEEDS), RIGHT) == []
    require_host(Path("pair"), manifest_of(NEEDS), RIGHT)


def test_every_mismatch_is_told_at_once_with_what_to_do() -> None:
    other = host(gpus=(FoundGpu("L40S", 48 << 30, 89),), tensorrt="10.13.3.9")
    message = (
        r"^pair: built for sm_90 and TensorRT 10\.14\.1\.48, this host has sm_89 and 10\.13\.3\.9: "
        r"rebuild here or serve on a host with sm_90 and use container \S+tritonserver:26\.07-trtllm-\S+$"
    )
    with pytest.raises(EngineError, match=message):
        require_host(Path("pair"), manifest_of(NEEDS), other)


@pytest.mark.parametrize(
    ("found", "needed"),
    [
        (host(gpus=()), ["sm_90"]),
        (host(gpus=(FoundGpu("B200", 180 << 30, 100),)), ["sm_90"]),
        (host(gpus=(FoundGpu("GB10", None, None),)), ["sm_90"]),
        (host(tensorrt_llm="1.1.0"), ["TensorRT-LLM 1.2.1"]),
        (host(tensorrt_llm="1.2.10"), ["TensorRT-LLM 1.2.1"]),
        (host(tensorrt=None), ["TensorRT 10.14.1.48"]),
        (host(cuda="12.8"), ["CUDA 13.0"]),
        (HostFacts(), ["sm_90", "TensorRT-LLM 1.2.1", "TensorRT 10.14.1.48"]),
    ],
)
def test_each_thing_that_is_needed_is_compared(found: HostFacts, needed: list[str]) -> None:
    assert [problem.needed for problem in check_host(manifest_of(NEEDS), found)] == needed


@pytest.mark.parametrize(
    "found", [host(cuda="13.2"), host(cuda=None), host(gpus=(*RIGHT.gpus, FoundGpu("L4", 24 << 30, 89)))]
)
def test_what_is_newer_unknown_or_more_than_needed_does_no_harm(found: HostFacts) -> None:
    assert check_host(manifest_of(NEEDS), found) == []


def test_gpus_of_the_right_kind_are_counted() -> None:
    two = manifest_of(HostNeeds(sm=90, gpus=2))
    (problem,) = check_host(two, host(gpus=(*RIGHT.gpus, FoundGpu("L4", 24 << 30, 89))))
    assert (problem.needed, problem.found) == ("2 GPUs (sm_90)", "2 (sm_89 and sm_90)")
    assert check_host(two, host(gpus=RIGHT.gpus * 2)) == []


@pytest.mark.parametrize(("sm", "runs"), [(80, False), (89, True), (90, True), (120, True)])
def test_a_lowest_kind_of_gpu_lets_newer_ones_pass(sm: int, runs: bool) -> None:
    needs = manifest_of(HostNeeds(min_sm=89), "pytorch")
    assert (check_host(needs, host(gpus=(FoundGpu("", None, sm),))) == []) is runs


def test_the_cpu_runtime_runs_anywhere() -> None:
    assert check_host(manifest_of(HostNeeds(min_sm=89), "cpu"), HostFacts()) == []


def test_a_version_without_a_container_leaves_rebuilding() -> None:
    old = manifest_of(HostNeeds(tensorrt_llm="0.5.0"))
    with pytest.raises(EngineError, match=r"this host has 1\.2\.1: rebuild here$"):
        require_host(Path("pair"), old, RIGHT)


def test_a_repository_is_not_served_where_its_engines_do_not_run(tmp_path: Path) -> None:
    require_host_of(tmp_path, HostFacts)  # made by something else: nothing is known of it
    write_manifest(manifest_of(NEEDS), tmp_path)
    with pytest.raises(EngineError, match=f"^{tmp_path}: built for sm_90, TensorRT-LLM 1"):
        require_host_of(tmp_path, HostFacts)
    require_host_of(tmp_path, lambda: RIGHT)


@pytest.mark.parametrize("runtime", ["tensorrt", "pytorch"])
def test_engines_whose_needs_are_not_known_are_refused_with_the_way_out(
    runtime: Runtime, tmp_path: Path
) -> None:
    write_manifest(manifest_of(None, runtime), tmp_path)
    message = rf"^{tmp_path}: its trtspec\.json does not say .*; build or adopt the pair again, or remove"
    with pytest.raises(EngineError, match=message):
        require_host_of(tmp_path, lambda: RIGHT)
    (tmp_path / MANIFEST).unlink()
    require_host_of(tmp_path, HostFacts)


def test_engines_of_the_cpu_runtime_need_nothing_to_be_known(tmp_path: Path) -> None:
    write_manifest(manifest_of(None, "cpu"), tmp_path)
    require_host_of(tmp_path, HostFacts)


def test_serve_reads_the_manifest_that_a_repository_carries(built_pair: EnginePair, tmp_path: Path) -> None:
    repository = write_repository(built_pair, tmp_path / "repo")
    assert (repository / MANIFEST).read_bytes() == (built_pair.path / MANIFEST).read_bytes()
    write_manifest(manifest_of(HostNeeds(tensorrt_llm="0.5.0")), repository)
    with (
        pytest.raises(EngineError, match=r"repo: built for any GPU and TensorRT-LLM 0\.5\.0, this host has"),
        serve(repository, FREE_PORTS),
    ):
        raise AssertionError("it was started")
