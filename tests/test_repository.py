"""The generated repository: the contract's tensors, ours apart, and nothing outside the folder."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path

import pytest
from recipe import NVIDIA_ENGINE_INPUTS, NVIDIA_PUBLIC_INPUTS, config, inputs
from tritonclient.grpc.model_config_pb2 import DataType, ModelInstanceGroup

from trtspec.cli import main
from trtspec.engines.pair import EnginePair, open_pair
from trtspec.errors import EngineError, OutputError, RepositoryError
from trtspec.triton_repo import contract
from trtspec.triton_repo.repository import RepositoryOptions, write_repository

MODELS = ("tensorrt_llm_bls", "tensorrt_llm", "tensorrt_llm_draft")


@pytest.fixture(scope="module")
def repository(built_pair: EnginePair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_repository(built_pair, tmp_path_factory.mktemp("repository") / "repo")


@pytest.mark.parametrize("model", ["tensorrt_llm", "tensorrt_llm_draft"])
def test_engines_have_the_tensors_of_nvidias_recipe(repository: Path, model: str) -> None:
    found = inputs(config(repository, model))
    assert {name: found[name] for name in NVIDIA_ENGINE_INPUTS} == NVIDIA_ENGINE_INPUTS
    ours = {tensor.name for tensor in contract.OUR_LEAF_INPUTS}
    assert found.keys() - {tensor.name for tensor in contract.LEAF_INPUTS} == ours


def test_the_public_model_has_the_tensors_of_nvidias_recipe(repository: Path) -> None:
    public = config(repository, "tensorrt_llm_bls")
    found = inputs(public)
    assert {name: found[name] for name in NVIDIA_PUBLIC_INPUTS} == NVIDIA_PUBLIC_INPUTS
    # Token ids may be sent in its place, so the one required input of NVIDIA's is optional here.
    assert found["text_input"] == ("TYPE_STRING", [1], True, False, False)
    ours = {tensor.name for tensor in contract.OUR_BLS_INPUTS}
    assert found.keys() - {tensor.name for tensor in contract.BLS_INPUTS} == ours
    outputs = {entry.name: (DataType.Name(entry.data_type), list(entry.dims)) for entry in public.output}
    assert outputs["text_output"] == ("TYPE_STRING", [-1])
    assert outputs["generation_logits"] == ("TYPE_FP32", [-1, -1, -1])


@pytest.mark.parametrize("model", MODELS)
def test_models_are_decoupled_single_instances_on_the_cpu(repository: Path, model: str) -> None:
    found = config(repository, model)
    assert (found.name, found.backend) == (model, "python")
    assert found.model_transaction_policy.decoupled
    assert [(group.count, group.kind) for group in found.instance_group] == [(1, ModelInstanceGroup.KIND_CPU)]


def test_a_repository_refers_to_nothing_outside_itself(repository: Path) -> None:
    assert not [path for path in repository.rglob("*") if path.is_symlink()]
    texts = [path.read_text() for path in repository.rglob("*") if path.suffix in {".pbtxt", ".py"}]
    assert not any(str(repository.parent) in text or "from trtspec" in text for text in texts)


def test_engines_are_linked_not_copied_where_the_file_system_can(
    repository: Path, built_pair: EnginePair
) -> None:
    linked = repository / "tensorrt_llm" / "1" / "engine" / "model.safetensors"
    assert os.path.samefile(linked, built_pair.target / "model.safetensors")


def test_limits_of_the_pair_reach_the_public_model(repository: Path, built_pair: EnginePair) -> None:
    parameters = config(repository, "tensorrt_llm_bls").parameters
    found = {key: value.string_value for key, value in parameters.items()}
    assert found["max_draft_len"] == "8"
    assert found["max_seq_len"] == found["draft_max_seq_len"] == "2048"
    assert (found["vocab_size"], found["eos_token_ids"], found["num_draft_tokens"]) == ("4096", "2", "5")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (RepositoryOptions(num_draft_tokens=9), "was built for 0 to 8"),
        (RepositoryOptions(num_draft_tokens=-1), "was built for 0 to 8"),
        (RepositoryOptions(max_inflight_requests=0), "max_inflight_requests is 0"),
        (RepositoryOptions(target_timeout_s=0.0), "target_timeout_s is 0.0, expected seconds above 0"),
        (RepositoryOptions(draft_timeout_s=math.nan), "draft_timeout_s is nan"),
    ],
)
def test_what_the_pair_was_not_built_for_is_refused(
    built_pair: EnginePair, tmp_path: Path, options: RepositoryOptions, message: str
) -> None:
    with pytest.raises(RepositoryError, match=message):
        write_repository(built_pair, tmp_path / "repo", options)
    assert not list(tmp_path.iterdir())


def test_a_pair_whose_files_have_changed_is_refused(built_pair: EnginePair, tmp_path: Path) -> None:
    shutil.copytree(built_pair.path, tmp_path / "pair")
    file = tmp_path / "pair" / "target" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:500])
    with pytest.raises(EngineError, match=r"1 files are not as they were built, first target/model\.safet"):
        write_repository(open_pair(tmp_path / "pair"), tmp_path / "repo")
    assert not (tmp_path / "repo").exists()


def test_an_output_that_exists_is_refused(built_pair: EnginePair, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="exists already"):
        write_repository(built_pair, tmp_path)


def test_draft_tokens_may_be_left_to_the_server(built_pair: EnginePair, tmp_path: Path) -> None:
    output = tmp_path / "repo"
    arguments = ["repo", str(built_pair.path), "--output", str(output), "--num-draft-tokens"]
    main([*arguments, "auto"])
    assert config(output, "tensorrt_llm_bls").parameters["num_draft_tokens"].string_value == "auto"
    with pytest.raises(SystemExit) as stopped:
        main([*arguments, "some"])
    assert stopped.value.code == 2


def test_how_long_engines_may_be_silent_is_an_option_and_a_key_of_a_recipe(
    built_pair: EnginePair, tmp_path: Path
) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("[repo]\ntarget_timeout = 600\ndraft_timeout = 20.5\n")
    arguments = ["repo", str(built_pair.path), "--output", str(tmp_path / "repo"), "--recipe", str(recipe)]
    main([*arguments, "--draft-timeout", "2.5"])
    found = config(tmp_path / "repo", "tensorrt_llm_bls").parameters
    assert float(found["target_timeout_s"].string_value) == 600
    assert float(found["draft_timeout_s"].string_value) == 2.5


def test_a_chat_template_goes_into_the_repository_and_not_into_the_pair(
    built_pair: EnginePair, tmp_path: Path
) -> None:
    (tmp_path / "chat.jinja").write_text("{{ messages[0].content }}")
    options = RepositoryOptions(chat_template=tmp_path / "chat.jinja")
    repository = write_repository(built_pair, tmp_path / "repo", options)
    folder = repository / "tensorrt_llm_bls" / "1" / "tokenizer"
    assert (folder / "chat_template.jinja").read_text("utf-8") == "{{ messages[0].content }}"
    assert not (built_pair.tokenizer / "chat_template.jinja").exists()


def test_a_chat_template_that_is_none_is_refused(built_pair: EnginePair, tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text("{% for %}")
    options = RepositoryOptions(chat_template=tmp_path / "chat.jinja")
    with pytest.raises(RepositoryError, match=r"chat.jinja: the chat template cannot be read: .*expected a"):
        write_repository(built_pair, tmp_path / "repo", options)
    assert not (tmp_path / "repo").exists()


def test_the_command_writes_and_names_the_repository(
    built_pair: EnginePair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "repo"
    main(["repo", str(built_pair.path), "--output", str(output), "--num-draft-tokens", "3", "--json"])
    assert json.loads(capsys.readouterr().out) == {"repository": str(output)}
    assert config(output, "tensorrt_llm_bls").parameters["num_draft_tokens"].string_value == "3"


def test_the_command_refuses_a_folder_that_is_no_pair(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["repo", str(tmp_path), "--output", str(tmp_path / "repo")])
    assert stopped.value.code == 1
    assert "no trtspec.json" in capsys.readouterr().err
