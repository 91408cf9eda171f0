"""A repository of NVIDIA's recipe becomes ours: same engines, same settings, nothing left that is wrong."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from nvidia_layout import write_layout
from recipe import config
from tensorrt_engines import write_engine

from trtspec.engines.memory.result import MemoryPlan
from trtspec.errors import OutputError, RepositoryError, TrtspecError
from trtspec.triton_repo.from_nvidia import take_over
from trtspec.triton_repo.launch import LaunchOptions
from trtspec.triton_repo.lint import lint
from trtspec.triton_repo.repository import RepositoryOptions

LEAVES = ("tensorrt_llm", "tensorrt_llm_draft")


@dataclass
class Recipe:
    """A filled repository of NVIDIA's, its engines and its tokenizer, each where the recipe has it."""

    repository: Path
    engines: Path
    tokenizer: Path

    def set(self, model: str, key: str, value: str | None) -> None:
        """Give a parameter another value, or (None) take it away."""
        file = self.repository / model / "config.pbtxt"
        text = re.sub(
            rf'parameters: \{{\n  key: "{key}"\n.*?\n  \}}\n\}}\n', "", file.read_text(), flags=re.DOTALL
        )
        if value is not None:
            text += f'parameters: {{\n  key: "{key}"\n  value: {{\n    string_value: "{value}"\n  }}\n}}\n'
        file.write_text(text)


@pytest.fixture
def recipe(demo_pair: Path, tmp_path: Path) -> Recipe:
    engines, tokenizer = tmp_path / "engines", tmp_path / "model"
    for role in ("target", "draft"):
        write_engine(engines / role, target=role == "target")
    tokenizer.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        if (demo_pair / "target" / name).is_file():
            shutil.copyfile(demo_pair / "target" / name, tokenizer / name)
    (tokenizer / "generation_config.json").write_text('{"eos_token_id": [2, 7]}')
    return Recipe(write_layout(tmp_path / "nvidia", engines, tokenizer), engines, tokenizer)


def parameters(repository: Path, model: str) -> dict[str, str]:
    return {key: entry.string_value for key, entry in config(repository, model).parameters.items()}


def test_a_right_repository_is_taken_over_without_a_finding(recipe: Recipe, tmp_path: Path) -> None:
    taken = take_over(recipe.repository, tmp_path / "ours")
    assert (taken.repository, taken.found, taken.left) == (tmp_path / "ours", (), ())
    assert lint(tmp_path / "ours") == ()
    assert taken.image == "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"


def test_engines_and_tokenizer_are_the_same_files(recipe: Recipe, tmp_path: Path) -> None:
    ours = take_over(recipe.repository, tmp_path / "ours").repository
    for model, role in zip(LEAVES, ("target", "draft"), strict=True):
        for name in ("config.json", "rank0.engine"):
            assert os.path.samefile(ours / model / "1" / "engine" / name, recipe.engines / role / name)
    tokenizer = ours / "tensorrt_llm_bls" / "1" / "tokenizer" / "tokenizer.json"
    assert tokenizer.read_bytes() == (recipe.tokenizer / "tokenizer.json").read_bytes()
    assert (ours / "launch.sh").is_file()


def test_a_file_that_not_everyone_may_read_is_copied(recipe: Recipe, tmp_path: Path) -> None:
    engine = recipe.engines / "target" / "rank0.engine"
    engine.chmod(0o600)
    ours = take_over(recipe.repository, tmp_path / "ours").repository
    copied = ours / "tensorrt_llm" / "1" / "engine" / "rank0.engine"
    assert not os.path.samefile(copied, engine)
    assert copied.read_bytes() == engine.read_bytes()
    assert engine.stat().st_mode & 0o777 == 0o600


def test_settings_stay_what_they_are(recipe: Recipe, tmp_path: Path) -> None:
    kept = {
        "kv_cache_free_gpu_mem_fraction": "0.42",
        "max_tokens_in_paged_kv_cache": "5000",
        "batch_scheduler_policy": "max_utilization",
        "enable_chunked_context": "true",
        "kv_cache_host_memory_bytes": "1000000",
        "gpu_device_ids": "3",
    }
    for key, value in kept.items():
        recipe.set("tensorrt_llm_draft", key, value)
    ours = take_over(recipe.repository, tmp_path / "ours").repository
    written = parameters(ours, "tensorrt_llm_draft")
    assert {key: written[key] for key in kept} == kept
    assert parameters(ours, "tensorrt_llm")["kv_cache_free_gpu_mem_fraction"] == "0.5"
    assert config(ours, "tensorrt_llm").max_batch_size == 4


def test_a_memory_plan_that_is_given_goes_before_what_the_repository_says(
    recipe: Recipe, tmp_path: Path
) -> None:
    def model(gpu: int) -> dict[str, Any]:
        fractions = {"fraction_loaded_first": 0.3, "fraction_loaded_second": 0.75}
        return {"gpus": (gpu,), "ranks": (), "max_tokens": 70000, **fractions}

    memory = MemoryPlan(
        gpu="H100",
        gpu_memory_bytes=80 << 30,
        runtime="tensorrt",
        placement="apart",
        max_seq_len=2048,
        max_batch_size=4,
        max_draft_len=8,
        max_num_tokens=8192,
        target=model(1),
        draft=model(2),
        shared_fraction=None,
        gpus=(),
        concurrency=(),
    )
    ours = take_over(recipe.repository, tmp_path / "ours", RepositoryOptions(memory=memory)).repository
    keys = ("gpu_device_ids", "kv_cache_free_gpu_mem_fraction", "max_tokens_in_paged_kv_cache")
    assert [[parameters(ours, leaf)[key] for key in keys] for leaf in LEAVES] == [
        ["1", "0.75", "70000"],
        ["2", "0.75", "70000"],
    ]


def test_limits_come_from_the_engines(recipe: Recipe, tmp_path: Path) -> None:
    write_engine(recipe.engines / "target", target=True, max_draft_len=4, max_seq_len=1028)
    ours = take_over(recipe.repository, tmp_path / "ours").repository
    written = parameters(ours, "tensorrt_llm_bls")
    # The engine's 1028 are the 1024 that were asked for and four drafted tokens.
    keys = (
        "num_draft_tokens",
        "max_draft_len",
        "max_seq_len",
        "draft_max_seq_len",
        "vocab_size",
        "eos_token_ids",
    )
    assert [written[key] for key in keys] == ["4", "4", "1024", "2048", "4096", "2,7"]


@pytest.mark.parametrize(
    ("echo", "asked", "expected"),
    [("false", None, "false"), ("True", None, "true"), ("True", False, "false"), ("false", True, "true")],
)
def test_whether_the_prompt_comes_back_stays_as_it_is(
    recipe: Recipe, tmp_path: Path, echo: str, asked: bool | None, expected: str
) -> None:
    for model in LEAVES:
        recipe.set(model, "exclude_input_in_output", echo)
    options = RepositoryOptions(exclude_input_in_output=asked)
    ours = take_over(recipe.repository, tmp_path / "ours", options).repository
    assert parameters(ours, "tensorrt_llm_bls")["exclude_input_in_output"] == expected
    # The engines' models say nothing of it: the loop asks for what it needs.
    assert parameters(ours, "tensorrt_llm")["exclude_input_in_output"] == "false"


def test_ranks_and_fast_logits_stay(recipe: Recipe, tmp_path: Path) -> None:
    for model, rank, gpu in (("tensorrt_llm", "2", "1"), ("tensorrt_llm_draft", "1", "0")):
        recipe.set(model, "participant_ids", rank)
        recipe.set(model, "gpu_device_ids", gpu)
        recipe.set(model, "speculative_decoding_fast_logits", "1")
    ours = take_over(recipe.repository, tmp_path / "ours").repository
    keys = ("participant_ids", "gpu_device_ids", "speculative_decoding_fast_logits")
    assert [parameters(ours, "tensorrt_llm")[key] for key in keys] == ["2", "1", "true"]
    assert [parameters(ours, "tensorrt_llm_draft")[key] for key in keys] == ["1", "0", "true"]
    assert "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES=0" in (ours / "launch.sh").read_text()


def test_options_place_engines_anew(recipe: Recipe, tmp_path: Path) -> None:
    options = RepositoryOptions(launch=LaunchOptions(target_gpus=(5,), draft_gpus=(6,)))
    ours = take_over(recipe.repository, tmp_path / "ours", options).repository
    assert [parameters(ours, model)["gpu_device_ids"] for model in LEAVES] == ["5", "6"]


def test_what_is_wrong_is_said_and_mended(recipe: Recipe, tmp_path: Path) -> None:
    file = recipe.repository / "tensorrt_llm" / "config.pbtxt"
    text = (
        file.read_text().replace("decoupled: false", "decoupled: true").replace("    optional: true\n", "", 1)
    )
    file.write_text(text)
    recipe.set("tensorrt_llm_draft", "enable_kv_cache_reuse", "false")
    recipe.set("tensorrt_llm", "gpt_model_type", "V1")
    recipe.set("tensorrt_llm", "xgrammar_tokenizer_info_path", None)
    recipe.set("tensorrt_llm", "multi_block_mode", "maybe")
    recipe.set("tensorrt_llm_bls", "tensorrt_llm_draft_model_name", "${tensorrt_llm_draft_model_name}")
    taken = take_over(recipe.repository, tmp_path / "ours")
    wrong = {"tensor.optional", "cache.reuse", "parameter.required", "parameter.value", "model.loop"}
    assert {finding.rule for finding in taken.found if finding.severity == "error"} == wrong
    assert taken.left == ()
    assert parameters(taken.repository, "tensorrt_llm")["gpt_model_type"] == "inflight_fused_batching"


def test_warnings_that_writing_cannot_mend_are_left(recipe: Recipe, tmp_path: Path) -> None:
    write_engine(recipe.engines / "draft", target=False, kv_cache_quant_algo="FP8")
    taken = take_over(recipe.repository, tmp_path / "ours")
    assert [finding.rule for finding in taken.left] == ["engine.cache-type"]


def engine(role: str, **changes: Any) -> Callable[[Recipe], object]:
    return lambda recipe: write_engine(recipe.engines / role, target=role == "target", **changes)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (engine("draft", vocab_size=4100), r"1 errors would remain, first engine\.vocabulary"),
        (engine("target", max_draft_len=0), r"first engine\.drafts: .* takes 0 drafted tokens"),
        (engine("draft", use_paged_context_fmha=False), r"first engine\.reuse"),
        (lambda r: shutil.rmtree(r.engines / "draft"), "draft: the engine is not on this machine"),
        (lambda r: (r.engines / "target" / "config.json").write_text("{}"), "has no 'pretrained_config'"),
        (lambda r: shutil.rmtree(r.repository / "tensorrt_llm_draft"), "no model tensorrt_llm_draft"),
        (lambda r: r.set("tensorrt_llm", "gpt_model_path", None), "gpt_model_path has no value"),
        (lambda r: r.set("tensorrt_llm", "gpu_device_ids", "0;1"), "for 2 instances"),
        (lambda r: (r.tokenizer / "tokenizer.json").unlink(), r"found no tokenizer\.json"),
        (lambda r: shutil.rmtree(r.tokenizer), "tokenizer is not on this machine"),
        (lambda r: (r.tokenizer / "generation_config.json").write_text("[]"), "no JSON object"),
    ],
)
def test_what_cannot_be_mended_is_refused_and_nothing_is_left(
    recipe: Recipe, tmp_path: Path, spoil: Callable[[Recipe], object], message: str
) -> None:
    spoil(recipe)
    with pytest.raises(TrtspecError, match=message):
        take_over(recipe.repository, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize(
    ("files", "ids"),
    [
        ({"generation_config.json": {"eos_token_id": [5, 6]}, "config.json": {"eos_token_id": 5}}, (5, 6)),
        ({"config.json": {"eos_token_id": 3}}, (3,)),
        ({"tokenizer_config.json": {"eos_token": "<end>"}}, (9,)),
        (
            {
                "tokenizer_config.json": {"eos_token": {"content": "<end>"}},
                "config.json": {"eos_token_id": 3},
            },
            (3, 9),
        ),
    ],
)
def test_every_token_that_ends_an_answer_is_found(
    recipe: Recipe, tmp_path: Path, files: dict[str, Any], ids: tuple[int, ...]
) -> None:
    for file in recipe.tokenizer.iterdir():
        file.unlink()
    files |= {
        "tokenizer.json": {"added_tokens": [{"id": 9, "content": "<end>"}, {"id": 8, "content": "<s>"}]}
    }
    for name, content in files.items():
        (recipe.tokenizer / name).write_text(json.dumps(content))
    ours = take_over(recipe.repository, tmp_path / "ours").repository
    assert parameters(ours, "tensorrt_llm_bls")["eos_token_ids"] == ",".join(map(str, ids))


def test_a_tokenizer_without_an_end_is_refused(recipe: Recipe, tmp_path: Path) -> None:
    for name in ("generation_config.json", "tokenizer_config.json"):
        (recipe.tokenizer / name).unlink(missing_ok=True)
    with pytest.raises(RepositoryError, match="an answer would never end"):
        take_over(recipe.repository, tmp_path / "ours")


def test_a_draft_that_is_the_target_is_refused(recipe: Recipe, tmp_path: Path) -> None:
    """Copied into two folders, nobody would see it any more."""
    recipe.set("tensorrt_llm_draft", "gpt_model_path", str(recipe.engines / "target"))
    with pytest.raises(RepositoryError, match="the draft loads the target's engine"):
        take_over(recipe.repository, tmp_path / "ours")


def test_nothing_is_written_into_the_repository_that_is_taken_over(recipe: Recipe) -> None:
    with pytest.raises(RepositoryError, match="which is only read; choose another --output"):
        take_over(recipe.repository, recipe.repository / "ours")
    assert not (recipe.repository / "ours").exists()


def test_an_output_that_exists_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="exists already"):
        take_over(tmp_path / "missing", tmp_path)


def test_a_renamed_loop_is_found(recipe: Recipe, tmp_path: Path) -> None:
    """triton_cli gives the loop the model's own name."""
    (recipe.repository / "tensorrt_llm_bls").rename(recipe.repository / "llama")
    file = recipe.repository / "llama" / "config.pbtxt"
    file.write_text(file.read_text().replace('name: "tensorrt_llm_bls"', 'name: "llama"'))
    taken = take_over(recipe.repository, tmp_path / "ours")
    assert taken.found == ()
    assert (taken.repository / "tensorrt_llm_bls" / "config.pbtxt").is_file()
