"""Pairs for TensorRT-LLM's LLM API: what is written, for which version, and what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from tensorrt_llm_double.tensorrt_llm.llm_args import BASE, check_arguments
from tiny_checkpoints import edit_config

from trtspec.build.options import BuildOptions
from trtspec.build.pair import build
from trtspec.build.quantize.pair_quantizer import PairQuantization
from trtspec.build.runtimes.pytorch.options import PytorchOptions
from trtspec.cli import trtspec
from trtspec.engines.llm_api import Speculation, mode_of
from trtspec.engines.pair import EnginePair, check_contents
from trtspec.errors import BuildError, EngineError, PairError

H = 256  # of the demo target
HEADS: dict[Speculation, tuple[dict[str, Any], dict[str, list[int]]]] = {
    "eagle3": (
        {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 1},
        {"fc.weight": [H, 3 * H], "midlayer.hidden_norm.weight": [H], "d2t": [32]},
    ),
    "dflash": (
        {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "num_hidden_layers": 5}
        | {"block_size": 6, "dflash_config": {"target_layer_ids": [1, 3], "mask_token_id": 95}},
        {"fc.weight": [H, 2 * H], "hidden_norm.weight": [H]},
    ),
    "dspark": (
        {"architectures": ["Qwen3DSparkModel"], "model_type": "qwen3", "num_hidden_layers": 5}
        | {"block_size": 7, "target_layer_ids": [1, 3], "mask_token_id": 95, "markov_rank": 8},
        {"fc.weight": [H, 2 * H], "markov_head.markov_w1.weight": [96, 8]},
    ),
}


def copied(source: Path, folder: Path) -> Path:
    folder.mkdir()
    for file in source.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def written_head(folder: Path, config: dict[str, Any], shapes: dict[str, list[int]]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(
        {name: torch.ones(shape, dtype=torch.bfloat16) for name, shape in shapes.items()},
        folder / "model.safetensors",
    )
    return folder


def built(target: Path, draft: Path | None, output: Path, *, lines: Any = None, **options: Any) -> EnginePair:
    changes = {key: options.pop(key) for key in list(options) if hasattr(BuildOptions(), key)}
    wanted = BuildOptions(runtime="pytorch", pytorch=PytorchOptions(**options), **changes)
    return build(target, draft, output, wanted, report=(lines if lines is not None else []).append)


def arguments_of(pair: EnginePair) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((pair.path / "llm_args.yaml").read_text())
    return loaded


@pytest.fixture
def target(demo_pair: Path) -> Path:
    return demo_pair / "target"


@pytest.fixture
def draft(demo_pair: Path) -> Path:
    return demo_pair / "draft"


@pytest.fixture
def mtp_target(target: Path, tmp_path: Path) -> Path:
    folder = copied(target, tmp_path / "mtp-target")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.99.eh_proj.weight"] = torch.ones(4, 8, dtype=torch.bfloat16)
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("version", list(BASE))
def test_every_version_takes_the_arguments_that_are_spelt_for_it(
    version: str, target: Path, draft: Path, tmp_path: Path
) -> None:
    pair = built(target, draft, tmp_path / "pair", tensorrt_llm=version, tp=2, max_draft_len=4)
    check_arguments(version, arguments_of(pair))
    assert pair.manifest.speculation == "draft_target"
    assert pair.manifest.versions["tensorrt_llm"] == version


def test_the_caches_take_what_the_memory_plan_leaves_them(target: Path, draft: Path, tmp_path: Path) -> None:
    planned = built(target, draft, tmp_path / "planned", gpu="L4")
    assert planned.manifest.memory is not None
    share = planned.manifest.memory.shared_fraction
    assert arguments_of(planned)["kv_cache_config"]["free_gpu_memory_fraction"] == share
    assert share != 0.9
    asked = built(target, draft, tmp_path / "asked", gpu="L4", free_gpu_memory=0.5)
    assert arguments_of(asked)["kv_cache_config"]["free_gpu_memory_fraction"] == 0.5
    unplanned = built(target, draft, tmp_path / "unplanned")
    assert arguments_of(unplanned)["kv_cache_config"]["free_gpu_memory_fraction"] == 0.9


@pytest.mark.parametrize(("spelt_for", "given_to"), [("1.2.1", "1.4.0rc4"), ("1.3.0rc17", "1.2.1")])
def test_another_dialect_would_not_take_them(
    spelt_for: str, given_to: str, target: Path, draft: Path, tmp_path: Path
) -> None:
    pair = built(target, draft, tmp_path / "pair", tensorrt_llm=spelt_for)
    arguments = arguments_of(pair)
    with pytest.raises(ValueError, match="Invalid decoding type"):
        check_arguments(given_to, arguments)
    arguments["speculative_config"]["decoding_type"] = mode_of("draft-target", given_to).decoding_type
    with pytest.raises(ValueError, match="Extra inputs are not permitted"):
        check_arguments(given_to, arguments)


@pytest.mark.parametrize("version", ["1.3.0rc27", "1.4.0rc4"])
@pytest.mark.parametrize("speculation", list(HEADS))
def test_a_drafter_is_packaged_by_its_own_config(
    version: str, speculation: Speculation, target: Path, tmp_path: Path
) -> None:
    head = written_head(tmp_path / "head", *HEADS[speculation])
    pair = built(target, head, tmp_path / "pair", tensorrt_llm=version)
    check_arguments(version, arguments_of(pair))
    found = arguments_of(pair)["speculative_config"]
    assert found["decoding_type"] == mode_of(speculation, version).decoding_type
    assert found["speculative_model"] == "./draft"
    assert (pair.draft / "model.safetensors").is_file()
    if speculation != "eagle3":
        assert found["mask_token_id"] == 95
        assert found["target_layer_ids"] == [1, 3]


def test_a_block_drafter_proposes_no_more_than_a_block_holds(target: Path, tmp_path: Path) -> None:
    lengths = {}
    lines: list[str] = []
    for name in ("dflash", "dspark"):
        head = written_head(tmp_path / name, *HEADS[name])  # type: ignore[index]
        pair = built(target, head, tmp_path / f"{name}-pair", max_draft_len=16, lines=lines)
        lengths[name] = pair.manifest.target.settings.max_draft_len
    # A block of DFlash begins with the last token known, one of DSpark with the first drafted.
    assert lengths == {"dflash": 5, "dspark": 7}
    assert "the drafter proposes at most 5 tokens a round" in lines


def test_eagle3_on_the_older_dialect_goes_by_the_name_of_its_family(target: Path, tmp_path: Path) -> None:
    head = written_head(tmp_path / "head", *HEADS["eagle3"])
    pair = built(target, head, tmp_path / "pair", tensorrt_llm="1.2.1")
    check_arguments("1.2.1", arguments_of(pair))
    assert arguments_of(pair)["speculative_config"]["decoding_type"] == "Eagle"


def test_eagle3_that_reads_layers_nobody_expects_is_refused(target: Path, tmp_path: Path) -> None:
    layers = json.loads((target / "config.json").read_text())["num_hidden_layers"]
    for name, offset in (("by-output", 0), ("by-input", 1)):
        head = written_head(tmp_path / name, *HEADS["eagle3"])
        ids = [i + offset for i in (1, layers // 2 - 1, layers - 4)]
        edit_config(head, eagle_config={"eagle_aux_hidden_state_layer_ids": ids})
        built(target, head, tmp_path / f"{name}-pair")
    odd = written_head(tmp_path / "odd", *HEADS["eagle3"])
    edit_config(odd, eagle_aux_hidden_state_layer_ids=[0, 4, 5])
    with pytest.raises(
        PairError, match=r"layers \[0, 4, 5\].*expected those that TensorRT-LLM takes by itself"
    ):
        built(target, odd, tmp_path / "odd-pair")


def test_a_draft_tuned_in_parallel_drafts_in_parallel_where_the_version_can(
    target: Path, draft: Path, tmp_path: Path
) -> None:
    parallel = copied(draft, tmp_path / "parallel")
    edit_config(parallel, pard_token=7)
    pair = built(target, parallel, tmp_path / "new", tensorrt_llm="1.4.0rc4")
    check_arguments("1.4.0rc4", arguments_of(pair))
    assert arguments_of(pair)["speculative_config"]["decoding_type"] == "PARD"
    assert arguments_of(pair)["speculative_config"]["mask_token_id"] == 7
    old = built(target, parallel, tmp_path / "old", tensorrt_llm="1.2.1")
    assert old.manifest.speculation == "draft_target"
    plain = built(target, parallel, tmp_path / "plain", speculation="draft-target")
    assert plain.manifest.speculation == "draft_target"


@pytest.mark.parametrize("version", ["1.2.1", "1.4.0rc4"])
def test_ngram_needs_no_draft(version: str, target: Path, tmp_path: Path) -> None:
    pair = built(target, None, tmp_path / "pair", speculation="ngram", tensorrt_llm=version)
    check_arguments(version, arguments_of(pair))
    assert pair.manifest.draft is None
    assert pair.manifest.speculation == "ngram"
    assert not pair.draft.exists()


@pytest.mark.parametrize("version", ["1.2.1", "1.4.0rc4"])
def test_mtp_keeps_the_module_of_the_target(version: str, mtp_target: Path, tmp_path: Path) -> None:
    pair = built(
        mtp_target, None, tmp_path / "pair", speculation="mtp", tensorrt_llm=version, max_draft_len=3
    )
    check_arguments(version, arguments_of(pair))
    assert "model.layers.99.eh_proj.weight" in load_file(pair.target / "model.safetensors")
    found = arguments_of(pair)["speculative_config"]
    assert found["num_nextn_predict_layers" if version == "1.2.1" else "max_draft_len"] == 3


def test_mtp_of_several_modules_drafts_a_token_with_each(mtp_target: Path, tmp_path: Path) -> None:
    edit_config(mtp_target, num_nextn_predict_layers=2)
    pair = built(mtp_target, None, tmp_path / "pair", speculation="mtp")
    assert pair.manifest.target.settings.max_draft_len == 2


def test_mtp_without_a_module_is_refused(target: Path, tmp_path: Path) -> None:
    with pytest.raises(PairError, match="carries no module for multi-token prediction"):
        built(target, None, tmp_path / "pair", speculation="mtp")


@pytest.mark.parametrize(
    ("name", "config", "shapes", "reason"),
    [
        ("medusa", {"medusa_num_heads": 2}, {"0.0.linear.weight": [H, H]}, r"1\.2\.1 engines.*medusa"),
        (
            "redrafter",
            {"architectures": ["ReDrafterForLLaMALM"], "model_type": "redrafter"},
            {"lm_head.weight": [96, H]},
            r"1\.2\.1 engines.*explicit_draft_tokens",
        ),
    ],
)
def test_a_drafter_that_only_engines_had_is_refused_with_their_last_version(
    name: str, config: dict[str, Any], shapes: dict[str, list[int]], reason: str, target: Path, tmp_path: Path
) -> None:
    head = written_head(tmp_path / name, config, shapes)
    with pytest.raises(PairError, match=reason):
        built(target, head, tmp_path / "pair")
    assert not (tmp_path / "pair").exists()


def test_a_head_in_the_packaging_of_speculators_is_refused(target: Path, tmp_path: Path) -> None:
    config, shapes = HEADS["eagle3"]
    head = written_head(tmp_path / "head", {**config, "speculators_config": {"algorithm": "eagle3"}}, shapes)
    with pytest.raises(PairError, match="vLLM reads this packaging"):
        built(target, head, tmp_path / "pair")


def test_dflash_that_does_not_say_what_it_reads_is_refused(target: Path, tmp_path: Path) -> None:
    head = written_head(tmp_path / "head", *HEADS["dflash"])
    edit_config(head, dflash_config={"mask_token_id": 95})
    with pytest.raises(PairError, match="no target_layer_ids; expected them at the top or in dflash_config"):
        built(target, head, tmp_path / "pair")


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("dflash", {"block_size": 1}, "block_size is 1, which leaves no token"),
        ("dflash", {"block_size": -3}, "block_size is -3, expected a whole number from 1 on"),
        ("dflash", {"block_size": "6"}, "block_size is '6'"),
        ("dspark", {"block_size": True}, "block_size is True"),
        ("dspark", {"target_layer_ids": [1, 99]}, r"target_layer_ids is \[1, 99\], expected a list of the"),
        ("dspark", {"target_layer_ids": "1,3"}, "target_layer_ids is '1,3'"),
        ("dspark", {"target_layer_ids": []}, r"target_layer_ids is \[\]"),
        ("dspark", {"mask_token_id": 10**9, "markov_rank": "8"}, r"id below 4,096; markov_rank is '8'"),
        ("dspark", {"markov_head_type": "odd"}, "expected one of vanilla, gated, rnn"),
        ("eagle3", {"eagle_aux_hidden_state_layer_ids": 3}, "layer_ids is 3, expected a list"),
        ("eagle3", {"eagle_aux_hidden_state_layer_ids": [[1], [2]]}, "expected a list of the target's"),
    ],
)
def test_a_drafter_with_a_value_that_cannot_be_is_refused(
    name: Speculation, change: dict[str, Any], reason: str, target: Path, tmp_path: Path
) -> None:
    head = written_head(tmp_path / "head", *HEADS[name])
    edit_config(head, **change)
    with pytest.raises(PairError, match=rf"config\.json: .*{reason}"):
        built(target, head, tmp_path / "pair")
    assert not (tmp_path / "pair").exists()


@pytest.mark.parametrize(
    ("name", "width", "expected"),
    [("eagle3", 3 * 128, "layers × 256"), ("dflash", 3 * H, "2 × 256"), ("dspark", 2 * 128, "2 × 256")],
)
def test_a_drafter_of_another_target_is_refused(
    name: Speculation, width: int, expected: str, target: Path, tmp_path: Path
) -> None:
    config, shapes = HEADS[name]
    head = written_head(tmp_path / "head", config, {**shapes, "fc.weight": [128, width]})
    with pytest.raises(PairError, match=f"fc.weight reads {width} values, expected {expected}, the target's"):
        built(target, head, tmp_path / "pair")


@pytest.mark.parametrize(
    ("options", "error", "reason"),
    [
        ({"speculation": "eagle3"}, PairError, "drafts by --speculation draft-target, not eagle3"),
        ({"speculation": "ngram"}, PairError, "drafts without .*leave the draft out"),
        ({"tensorrt_llm": "1.5.0"}, BuildError, "newer than 1.4.0rc4"),
        ({"dtype": "float32"}, BuildError, "bfloat16 or float16, not float32"),
        ({"sampling": "rejection", "tensorrt_llm": "1.2.1"}, BuildError, "no such choice"),
        (
            {"sampling": "rejection", "tensorrt_llm": "1.3.0rc17"},
            BuildError,
            "from TensorRT-LLM 1.3.0rc27 on",
        ),
        ({"penalties": True, "tensorrt_llm": "1.3.0rc17"}, BuildError, "from TensorRT-LLM 1.3.0rc27 on"),
        ({"sampling": "rejection", "overlap_scheduler": True}, BuildError, "TensorRT-LLM would be greedy"),
        ({"free_gpu_memory": 1.5}, BuildError, "expected a share above 0 and up to 1"),
        ({"tp": 4}, BuildError, "--tp 4: the draft's heads split over 1, 2 GPUs"),
        ({"tp": 16}, BuildError, "--tp 16: the target's heads split over 1, 2, 4 GPUs; --tp 16: the draft"),
        ({"pp": 100}, BuildError, "--pp 100: the target has 16 layers, a stage needs one; --pp"),
        ({"tensorrt_llm": ""}, BuildError, "TensorRT-LLM '': expected a version"),
        ({"quantization": PairQuantization(max_kl=0.1)}, BuildError, "quality is measured where engines run"),
        (
            {"quantization": PairQuantization(target="fp8"), "dtype": "float16"},
            BuildError,
            "what stays unquantised keeps its type",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(
    options: dict[str, Any], error: type[Exception], reason: str, target: Path, draft: Path, tmp_path: Path
) -> None:
    with pytest.raises(error, match=reason):
        built(target, draft, tmp_path / "pair", **options)
    assert os.listdir(tmp_path) == []


def test_a_mode_the_version_has_not_is_refused(target: Path, tmp_path: Path) -> None:
    head = written_head(tmp_path / "head", *HEADS["dspark"])
    with pytest.raises(
        EngineError, match=r"1\.2\.1: not known to have dspark; it is there from 1.3.0rc27 on"
    ):
        built(target, head, tmp_path / "pair", tensorrt_llm="1.2.1")


def test_no_draft_needs_a_way_to_do_without(target: Path, tmp_path: Path) -> None:
    with pytest.raises(PairError, match="--speculation mtp or --speculation ngram"):
        built(target, None, tmp_path / "pair")


def test_sampling_is_switched_on_where_one_engine_would_be_greedy(
    target: Path, draft: Path, tmp_path: Path
) -> None:
    lines: list[str] = []
    greedy = built(target, draft, tmp_path / "greedy", sampling="greedy", lines=lines)
    assert any("requests that ask for temperature, top-k or top-p are refused" in line for line in lines)
    assert "allow_advanced_sampling" not in arguments_of(greedy)["speculative_config"]
    full = built(target, draft, tmp_path / "full", sampling="rejection", penalties=True)
    check_arguments("1.4.0rc4", arguments_of(full))
    config = arguments_of(full)["speculative_config"]
    for switch in ("allow_advanced_sampling", "use_rejection_sampling", "enable_penalty"):
        assert config[switch] is True


def test_the_manifest_says_what_a_host_needs(target: Path, draft: Path, tmp_path: Path) -> None:
    old = built(target, draft, tmp_path / "old", tensorrt_llm="1.2.1").manifest.host_needs
    new = built(target, draft, tmp_path / "new", tp=2).manifest.host_needs
    assert old is not None
    assert new is not None
    assert (old.min_sm, old.gpus, old.tensorrt_llm) == (80, 1, "1.2.1")
    assert old.container == "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"
    assert (new.gpus, new.tensorrt_llm) == (2, "1.4.0rc4")
    assert new.container == "nvcr.io/nvidia/tensorrt-llm/release:1.4.0rc4"


def test_fp8_is_written_in_the_unified_layout_and_needs_a_newer_gpu(
    target: Path, draft: Path, tmp_path: Path
) -> None:
    quantization = PairQuantization(target="fp8", calibrate="none")
    pair = built(target, draft, tmp_path / "pair", quantization=quantization)
    assert (pair.target / "hf_quant_config.json").is_file()
    assert not (pair.draft / "hf_quant_config.json").exists()
    assert pair.manifest.target.quantization is not None
    assert pair.manifest.host_needs is not None
    assert pair.manifest.host_needs.min_sm == 89


def test_float32_is_cast_because_tensorrt_llm_does_not_compute_in_it(
    target: Path, draft: Path, tmp_path: Path
) -> None:
    wide = copied(draft, tmp_path / "wide")
    tensors = {name: value.float() for name, value in load_file(wide / "model.safetensors").items()}
    save_file(tensors, wide / "model.safetensors")
    lines: list[str] = []
    pair = built(target, wide, tmp_path / "pair", lines=lines)
    assert {value.dtype for value in load_file(pair.draft / "model.safetensors").values()} == {torch.bfloat16}
    assert any("draft: float32" in line for line in lines)
    assert pair.manifest.draft is not None
    assert pair.manifest.draft.settings.dtype == "bfloat16"


def test_all_ends_of_text_are_in_the_checkpoints(target: Path, draft: Path, tmp_path: Path) -> None:
    pair = built(target, draft, tmp_path / "pair")
    for folder in (pair.target, pair.draft):
        ends = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
        assert ends == list(pair.manifest.eos_token_ids)


def test_rope_is_written_as_older_transformers_read_it_too(target: Path, draft: Path, tmp_path: Path) -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling["original_max_position_embeddings"] = 1024
    rope = {"rope_theta": 500000.0, **scaling}
    scaled = copied(target, tmp_path / "scaled")
    edit_config(scaled, rope_parameters=rope)
    pair = built(scaled, draft, tmp_path / "pair", tensorrt_llm="1.2.1")
    found = json.loads((pair.target / "config.json").read_text())
    assert (found["rope_theta"], found["rope_scaling"]) == (500000.0, scaling)
    assert found["rope_parameters"] == rope
    assert json.loads((pair.draft / "config.json").read_text())["rope_theta"] == 10000.0


def test_rope_scaling_beside_rope_parameters_stays_as_it_counts(
    target: Path, draft: Path, tmp_path: Path
) -> None:
    both = copied(target, tmp_path / "both")
    scaling = {"type": "linear", "factor": 2.0}
    edit_config(both, rope_parameters={"rope_type": "default", "rope_theta": 5e5}, rope_scaling=scaling)
    pair = built(both, draft, tmp_path / "pair", tensorrt_llm="1.2.1")
    found = json.loads((pair.target / "config.json").read_text())
    assert (found.get("rope_theta"), found["rope_scaling"]) == (None, scaling)


def test_equal_builds_give_equal_files_that_are_all_in_the_manifest(
    target: Path, draft: Path, tmp_path: Path
) -> None:
    one, other = (built(target, draft, tmp_path / name) for name in ("one", "other"))
    assert one.files() == other.files()
    check_contents(one)
    on_disk = {str(path.relative_to(one.path)) for path in one.path.rglob("*") if path.is_file()}
    assert on_disk - {"trtspec.json"} == set(one.files())


def test_the_command_builds_and_says_for_which_runtime(target: Path, draft: Path, tmp_path: Path) -> None:
    output = tmp_path / "pair"
    flags = ["--runtime", "pytorch", "--tensorrt-llm", "1.2.1", "--max-draft-len", "3"]
    run = CliRunner().invoke(trtspec, ["build", str(target), str(draft), "--output", str(output), *flags])
    assert run.exit_code == 0, run.output
    assert "built for --runtime pytorch" in run.output
    assert "trtllm-serve serve ./target --config llm_args.yaml" in (output / "llm_args.yaml").read_text()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--penalties"], "for --runtime pytorch only: --penalties"),
        (["--runtime", "tensorrt", "--speculation", "ngram"], "for --runtime pytorch only: --speculation"),
        (["--runtime", "pytorch", "--container"], "for --runtime tensorrt only"),
    ],
)
def test_flags_of_another_runtime_are_wrong_usage(
    words: list[str], reason: str, target: Path, draft: Path, tmp_path: Path
) -> None:
    run = CliRunner().invoke(
        trtspec, ["build", str(target), str(draft), "--output", str(tmp_path / "p"), *words]
    )
    assert run.exit_code == 2
    assert reason in run.output


def test_the_command_wants_a_draft_for_the_other_runtimes(target: Path, tmp_path: Path) -> None:
    run = CliRunner().invoke(trtspec, ["build", str(target), "--output", str(tmp_path / "p")])
    assert run.exit_code == 2
    assert "--runtime cpu wants a DRAFT" in run.output
