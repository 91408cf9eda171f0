"""Repositories of pairs for TensorRT-LLM's LLM API."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

import trtspec
from trtspec.build.options import BuildOptions
from trtspec.build.pair import build
from trtspec.build.runtimes.pytorch.options import PytorchOptions
from trtspec.engines.pair import EnginePair
from trtspec.errors import EngineError, RepositoryError
from trtspec.triton_repo.contract import BLS_INPUTS, BLS_OUTPUTS, OUR_BLS_INPUTS, OUR_BLS_OUTPUTS
from trtspec.triton_repo.launch import LaunchOptions
from trtspec.triton_repo.lint import lint
from trtspec.triton_repo.repository import RepositoryOptions, plan_repository, write_repository


def built(target: Path, draft: Path | None, output: Path, **options: Any) -> EnginePair:
    wanted = BuildOptions(runtime="pytorch", max_draft_len=4, pytorch=PytorchOptions(**options))
    return build(target, draft, output, wanted, cache="none", report=lambda line: None)


@pytest.fixture
def pair(demo_pair: Path, tmp_path: Path) -> EnginePair:
    return built(demo_pair / "target", demo_pair / "draft", tmp_path / "pair")


def public(repository: Path) -> ModelConfig:
    text = (repository / "tensorrt_llm_bls" / "config.pbtxt").read_text()
    config: ModelConfig = text_format.Parse(text, ModelConfig())
    return config


def settings(repository: Path) -> dict[str, str]:
    return {name: value.string_value for name, value in public(repository).parameters.items()}


def test_one_model_has_the_public_tensors_and_the_pair(pair: EnginePair, tmp_path: Path) -> None:
    repository = write_repository(pair, tmp_path / "repo")
    assert [path.parent.name for path in repository.glob("*/config.pbtxt")] == ["tensorrt_llm_bls"]
    config = public(repository)
    assert [entry.name for entry in config.input] == [t.name for t in (*BLS_INPUTS, *OUR_BLS_INPUTS)]
    assert [entry.name for entry in config.output] == [t.name for t in (*BLS_OUTPUTS, *OUR_BLS_OUTPUTS)]
    assert config.model_transaction_policy.decoupled
    version = repository / "tensorrt_llm_bls" / "1"
    for role in ("target", "draft"):
        assert (version / "engine" / role / "model.safetensors").is_file()
    arguments = json.loads((version / "llm_args.json").read_text())
    assert arguments["speculative_config"]["speculative_model"] == "./draft"


def test_the_repository_has_no_finding(pair: EnginePair, tmp_path: Path) -> None:
    assert not lint(write_repository(pair, tmp_path / "repo"))


def test_a_target_that_drafts_by_itself_has_a_repository(demo_pair: Path, tmp_path: Path) -> None:
    alone = built(demo_pair / "target", None, tmp_path / "alone", speculation="ngram", tensorrt_llm="1.2.1")
    repository = write_repository(alone, tmp_path / "repo")
    assert not (repository / "tensorrt_llm_bls" / "1" / "engine" / "draft").exists()
    assert not lint(repository)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ("true", "true", "false")),
        ({"sampling": "greedy"}, ("true", "false", "false")),
        ({"penalties": True}, ("true", "true", "true")),
        ({"tensorrt_llm": "1.2.1"}, ("false", "true", "true")),
        ({"tensorrt_llm": "1.2.1", "sampling": "greedy"}, ("false", "true", "true")),
    ],
)
def test_the_model_knows_what_its_pair_can(
    options: dict[str, Any], expected: tuple[str, ...], demo_pair: Path, tmp_path: Path
) -> None:
    pair = built(demo_pair / "target", demo_pair / "draft", tmp_path / "pair", **options)
    found = settings(write_repository(pair, tmp_path / "repo"))
    assert tuple(found[name] for name in ("one_engine", "samples", "penalties")) == expected


def test_a_container_is_named_where_triton_has_that_version(demo_pair: Path, tmp_path: Path) -> None:
    images = {}
    for version in ("1.2.1", "1.4.0rc4"):
        pair = built(demo_pair / "target", demo_pair / "draft", tmp_path / version, tensorrt_llm=version)
        contents = plan_repository(pair, RepositoryOptions())
        images[version] = contents.image
        assert "tritonserver" in contents.scripts["launch.sh"]
    assert images == {"1.2.1": "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3", "1.4.0rc4": None}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (RepositoryOptions(num_draft_tokens=2), "drafts 4 tokens in every round, as .*pair was built"),
        (RepositoryOptions(num_draft_tokens="auto"), "num_draft_tokens is auto"),
        (RepositoryOptions(launch=LaunchOptions(fast_logits=True)), "which places itself"),
    ],
)
def test_what_the_llm_api_cannot_do_is_refused(
    options: RepositoryOptions, reason: str, pair: EnginePair, tmp_path: Path
) -> None:
    with pytest.raises(RepositoryError, match=reason):
        write_repository(pair, tmp_path / "repo", options)
    assert not (tmp_path / "repo").exists()


def test_arguments_that_were_damaged_are_no_repository(pair: EnginePair, tmp_path: Path) -> None:
    file = pair.path / "llm_args.yaml"
    file.unlink()
    dated = "speculative_config: {a: 2020-01-01}"
    for text in ("speculative_config: [", "tensor_parallel_size: 1", "[]", dated):
        file.write_text(text)
        with pytest.raises(EngineError, match="build the pair again"):
            write_repository(pair, tmp_path / "repo")


def test_a_pair_that_does_not_say_its_version_is_no_repository(demo_pair: Path, tmp_path: Path) -> None:
    options = BuildOptions(runtime="pytorch", max_draft_len=4)
    pair = build(
        demo_pair / "target", demo_pair / "draft", tmp_path / "pair", options, report=lambda line: None
    )
    del pair.manifest.versions["tensorrt_llm"]
    with pytest.raises(EngineError, match=r"trtspec\.json: no version of TensorRT-LLM; build the pair again"):
        write_repository(pair, tmp_path / "repo")


def test_tensorrt_llm_is_imported_in_one_module_only() -> None:
    root = Path(trtspec.__file__).parents[1]
    sources = (
        p for n in ("trtspec", "build", "engines", "triton_repo", "client") for p in (root / n).rglob("*.py")
    )
    importing = re.compile(r"^\s*(?:import|from) tensorrt_llm\b", re.M)
    found = {str(path.relative_to(root)) for path in sources if importing.search(path.read_text())}
    assert found == {"triton_repo/llm_api/llm.py"}
