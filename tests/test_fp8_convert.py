"""FP8 checkpoints of both formats: each byte from the formulas, what is refused, the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fp8_checkpoints import TEXTS, change_tensors, hooked_maxima, load, matrices, with_tokenizer, write_texts
from round_trip import read_back
from safetensors.torch import load_file, save_file
from tiny_checkpoints import edit_config, make_model, save
from torch import Tensor

from trtspec.build.checkpoint import open_checkpoint
from trtspec.build.convert.converter import Conversion, convert
from trtspec.build.convert.fp8 import Fp8Scales
from trtspec.build.convert.linears import find_linears
from trtspec.build.quantize.calibration import calibrate
from trtspec.build.quantize.quantizer import Fp8Options, quantize
from trtspec.build.quantize.scales import weight_scales, with_activations
from trtspec.build.quantize.texts import encode_texts, read_texts
from trtspec.cli import main
from trtspec.errors import BuildError, CheckpointError, OutputError

FAMILIES = ["llama31", "llama_biased", "qwen25_tied", "qwen3", "gemma3", "phi3"]
E4M3 = torch.float8_e4m3fn

# TensorRT-LLM's tensor: what it is made of, in Hugging Face's order of rows, and what shares its scale.
FUSED = {
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.dense": ("self_attn.o_proj",),
    "mlp.fc": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.gate": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.proj": ("mlp.down_proj",),
}
MADE_OF = FUSED | {"mlp.fc": ("mlp.gate_proj",), "mlp.gate": ("mlp.up_proj",)}


def find_scales(folder: Path, *, cache: bool = False, static: bool = True) -> Fp8Scales:
    checkpoint = open_checkpoint(folder)
    weights = weight_scales(checkpoint, find_linears(checkpoint))
    if not static:
        return weights
    found = calibrate(checkpoint, TEXTS, kv_cache=cache)
    return with_activations(weights, found.inputs, found.cache)


def to_fp8(
    folder: Path, output: Path, *, cache: bool = False, static: bool = True, **options: Any
) -> Conversion:
    return convert(folder, output, fp8=find_scales(folder, cache=cache, static=static), **options)


def same_bytes(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def tensors(folder: Path, name: str = "model.safetensors") -> dict[str, Tensor]:
    return load_file(folder / name)


# The unified Hugging Face layout


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("family", FAMILIES)
def test_unified_codes_and_scales_are_those_of_the_formulas(
    tmp_path: Path, family: str, dtype: torch.dtype
) -> None:
    source = save(make_model(family, dtype), tmp_path / "hf")
    to_fp8(source, tmp_path / "fp8", format="hf")
    before, after = tensors(source), tensors(tmp_path / "fp8")
    inputs = hooked_maxima(load(source, dtype), TEXTS)
    assert inputs
    for name, largest_input in inputs.items():
        weight = before.pop(f"{name}.weight")
        scale = weight.abs().amax().float() / 448
        assert torch.equal(after.pop(f"{name}.weight_scale"), scale)
        assert torch.equal(after.pop(f"{name}.input_scale"), torch.tensor(largest_input) / 448)
        assert same_bytes(after.pop(f"{name}.weight"), (weight / scale).to(E4M3))
    assert after.keys() == before.keys()
    assert all(same_bytes(after[name], before[name]) for name in before)


def test_the_scales_of_an_fp8_cache_are_not_raised_in_the_unified_layout(tmp_path: Path) -> None:
    source = save(make_model("llama31"), tmp_path / "hf")
    to_fp8(source, tmp_path / "fp8", format="hf", cache=True)
    largest = calibrate(open_checkpoint(source), TEXTS, kv_cache=True).cache
    after = tensors(tmp_path / "fp8")
    for module, (key, value) in largest.items():
        assert torch.equal(after[f"{module}.k_proj.k_scale"], torch.tensor(key) / 448)
        assert torch.equal(after[f"{module}.v_proj.v_scale"], torch.tensor(value) / 448)


@pytest.mark.parametrize("cache", [False, True])
def test_both_configurations_say_what_the_weights_are(tmp_path: Path, cache: bool) -> None:
    source = save(make_model("qwen2"), tmp_path / "hf")
    to_fp8(source, tmp_path / "fp8", format="hf", cache=cache)
    beside = json.loads((tmp_path / "fp8/hf_quant_config.json").read_text())["quantization"]
    assert beside == {
        "quant_algo": "FP8",
        "kv_cache_quant_algo": "FP8" if cache else None,
        "exclude_modules": ["lm_head"],
    }
    config = json.loads((tmp_path / "fp8/config.json").read_text())
    inline = config.pop("quantization_config")
    assert config == json.loads((source / "config.json").read_text())
    eight_bits = {"dynamic": False, "num_bits": 8, "type": "float"}
    assert inline["quant_method"] == "modelopt"
    assert inline["quant_algo"] == "FP8"
    assert inline["ignore"] == ["lm_head"]
    assert inline["config_groups"]["group_0"] == {
        "input_activations": eight_bits,
        "weights": eight_bits,
        "targets": ["Linear"],
    }
    assert inline.get("kv_cache_scheme") == (eight_bits if cache else None)


def test_without_calibration_there_are_no_input_scales_and_it_says_so(tmp_path: Path) -> None:
    source = save(make_model("llama31"), tmp_path / "hf")
    to_fp8(source, tmp_path / "fp8", format="hf", static=False)
    assert not [name for name in tensors(tmp_path / "fp8") if name.endswith("input_scale")]
    inline = json.loads((tmp_path / "fp8/config.json").read_text())["quantization_config"]
    assert inline["config_groups"]["group_0"]["input_activations"]["dynamic"] is True


def test_shards_stay_shards_with_their_scales_beside_their_codes(tmp_path: Path) -> None:
    source = save(make_model("llama31", torch.bfloat16), tmp_path / "hf", max_shard_size="20KB")
    to_fp8(source, tmp_path / "fp8", format="hf")
    index = json.loads((tmp_path / "fp8/model.safetensors.index.json").read_text())["weight_map"]
    assert len(set(index.values())) > 1
    for name, shard in index.items():
        assert name in tensors(tmp_path / "fp8", shard)
    for name, shard in index.items():
        if name.endswith("_scale"):
            assert index[name.rpartition(".")[0] + ".weight"] == shard


# The TensorRT-LLM checkpoint


@pytest.mark.parametrize("family", ["llama31", "llama_biased", "qwen3", "gemma2"])
def test_tensorrt_llm_codes_and_scales_are_those_of_the_formulas(tmp_path: Path, family: str) -> None:
    source = save(make_model(family, torch.bfloat16), tmp_path / "hf")
    to_fp8(source, tmp_path / "fp8")
    before, after = tensors(source), tensors(tmp_path / "fp8", "rank0.safetensors")
    inputs = hooked_maxima(load(source, torch.bfloat16), TEXTS)
    for layer in range(4):
        place = f"model.layers.{layer}."
        for fused, parts in MADE_OF.items():
            sharing = [before[f"{place}{name}.weight"] for name in FUSED[fused]]
            scale = torch.stack([weight.abs().amax() for weight in sharing]).amax().float() / 448
            weight = torch.cat([before[f"{place}{name}.weight"] for name in parts])
            largest_input = max(inputs[place + name] for name in FUSED[fused])
            name = f"transformer.layers.{layer}.{fused}"
            assert torch.equal(after[f"{name}.weights_scaling_factor"], scale.reshape(1))
            assert torch.equal(
                after[f"{name}.activation_scaling_factor"], torch.tensor([largest_input]) / 448
            )
            assert same_bytes(after[f"{name}.weight"], (weight.float() / scale).to(E4M3))


@pytest.mark.parametrize(("tp", "pp"), [(2, 1), (4, 2)])
@pytest.mark.parametrize("family", ["llama31", "phi3", "gpt2"])
def test_ranks_together_hold_the_codes_of_one_rank(tmp_path: Path, family: str, tp: int, pp: int) -> None:
    source = save(make_model(family, torch.bfloat16), tmp_path / "hf")
    fp8 = find_scales(source, cache=True)
    convert(source, tmp_path / "one", fp8=fp8)
    convert(source, tmp_path / "many", fp8=fp8, tp=tp, pp=pp)
    one, scales = split_scales(tmp_path / "one")
    many, rank_scales = split_scales(tmp_path / "many")
    assert one.keys() == many.keys()
    assert all(torch.equal(one[name], many[name]) for name in one)
    assert len(rank_scales) == len(scales) * tp
    for name, scale in rank_scales:
        assert (name, scale) in scales


def split_scales(folder: Path) -> tuple[dict[str, Tensor], list[tuple[str, float]]]:
    """Return a checkpoint read back, its codes as bytes, and the scales of all its ranks by their names.

    Layers are numbered anew in each pipeline stage, so a name is its last part.
    """
    bare = folder.with_name(f"{folder.name}-bare")
    bare.mkdir()
    (bare / "config.json").write_bytes((folder / "config.json").read_bytes())
    scales = []
    for file in sorted(folder.glob("rank*.safetensors")):
        held = load_file(file)
        scales += [(name.split(".", 3)[3], t.item()) for name, t in held.items() if "_factor" in name]
        codes = {n: t.view(torch.uint8) if t.dtype == E4M3 else t for n, t in held.items()}
        save_file({name: t for name, t in codes.items() if "_factor" not in name}, bare / file.name)
    return read_back(bare), scales


def test_the_scales_of_an_fp8_cache_are_raised_to_one_in_tensorrt_llm(tmp_path: Path) -> None:
    source = save(make_model("llama31"), tmp_path / "hf")
    change_tensors(source, model__layers__1__self_attn__v_proj__weight=torch.full((32, 32), 300.0))
    to_fp8(source, tmp_path / "fp8", cache=True)
    largest = calibrate(open_checkpoint(source), TEXTS, kv_cache=True).cache
    after = tensors(tmp_path / "fp8", "rank0.safetensors")
    value = largest["model.layers.1.self_attn"][1] / 448
    assert value > 1
    place = "transformer.layers.1.attention."
    assert after[f"{place}k_cache_scaling_factor"].item() == 1
    assert after[f"{place}v_cache_scaling_factor"].item() == pytest.approx(value)
    assert after[f"{place}kv_cache_scaling_factor"].item() == pytest.approx(value)
    assert after["transformer.layers.0.attention.kv_cache_scaling_factor"].tolist() == [1]


def test_tensorrt_llms_configuration_names_the_algorithm(tmp_path: Path) -> None:
    source = save(make_model("llama31"), tmp_path / "hf")
    to_fp8(source, tmp_path / "fp8", cache=True)
    config = json.loads((tmp_path / "fp8/config.json").read_text())
    assert config["dtype"] == "float32"
    assert config["quantization"] == {
        "quant_algo": "FP8",
        "kv_cache_quant_algo": "FP8",
        "exclude_modules": ["lm_head"],
    }


def test_the_head_and_what_is_no_matrix_stay_in_the_dtype_asked_for(tmp_path: Path) -> None:
    source = save(make_model("qwen2", torch.bfloat16), tmp_path / "hf")
    to_fp8(source, tmp_path / "fp8", dtype="float16")
    for name, tensor in tensors(tmp_path / "fp8", "rank0.safetensors").items():
        matrix = ".layers." in name and name.endswith(".weight") and "norm" not in name
        expected = E4M3 if matrix else torch.float32 if name.endswith("_factor") else torch.float16
        assert tensor.dtype == expected, name


# What is refused


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return with_tokenizer(tmp_path / "hf")


def assert_nothing_published(tmp_path: Path) -> None:
    assert {entry.name for entry in tmp_path.iterdir()} == {"hf"}


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_weight_that_is_not_finite_is_named(llama: Path, tmp_path: Path, bad: float) -> None:
    weight = tensors(llama)["model.layers.1.mlp.down_proj.weight"]
    weight[3, 4] = bad
    change_tensors(llama, model__layers__1__mlp__down_proj__weight=weight)
    with pytest.raises(CheckpointError, match=r"model\.layers\.1\.mlp\.down_proj\.weight' holds NaN or Inf"):
        quantize(llama, tmp_path / "out", Fp8Options(calibrate="none"), format="hf")
    assert_nothing_published(tmp_path)


def test_matrices_of_zeros_are_counted(llama: Path, tmp_path: Path) -> None:
    change_tensors(
        llama,
        model__layers__1__mlp__down_proj__weight=torch.zeros(32, 48),
        model__layers__0__mlp__up_proj__weight=torch.zeros(48, 32),
    )
    with pytest.raises(CheckpointError, match=r"2 weights, first 'model\.layers\.0\.mlp\.up_proj', all zero"):
        quantize(llama, tmp_path / "out", Fp8Options(calibrate="none"), format="hf")


def test_a_scale_that_underflows_is_refused(llama: Path, tmp_path: Path) -> None:
    change_tensors(llama, model__layers__2__mlp__up_proj__weight=torch.full((48, 32), 1e-37))
    with pytest.raises(BuildError, match=r"\.2\.mlp\.up_proj\.weight: .* 1e-37, whose scale underflows"):
        quantize(llama, tmp_path / "out", Fp8Options(calibrate="none"), format="hf")


@pytest.mark.parametrize("seen", [{}, {"model.layers.3.mlp.down_proj": 0.0}])
def test_a_matrix_that_calibration_never_reached_is_named(llama: Path, seen: dict[str, float]) -> None:
    weights = find_scales(llama, static=False)
    inputs = dict.fromkeys(weights.linears, 1.0)
    inputs.pop("model.layers.3.mlp.down_proj")
    with pytest.raises(BuildError, match=r"'model\.layers\.3\.mlp\.down_proj', whose input calibration"):
        with_activations(weights, inputs | seen, {})


def test_no_calibration_is_refused_where_the_engine_needs_its_scales(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"--calibrate none leaves activations without scales.* --format hf"):
        quantize(llama, tmp_path / "out", Fp8Options(calibrate="none"))
    assert_nothing_published(tmp_path)


def test_an_fp8_cache_needs_calibration(llama: Path, tmp_path: Path) -> None:
    options = Fp8Options(calibrate="none", kv_cache=True)
    with pytest.raises(BuildError, match="--kv-cache fp8 needs the scales of keys and values"):
        quantize(llama, tmp_path / "out", options, format="hf")


def test_matrices_stored_the_other_way_round_have_no_unified_layout(tmp_path: Path) -> None:
    folder = save(make_model("gpt2"), tmp_path / "hf")
    with pytest.raises(BuildError, match=r"GPT2LMHeadModel stores its matrices \[in, out\]"):
        quantize(folder, tmp_path / "out", format="hf")


def test_texts_longer_than_the_model_are_refused_before_anything_runs(llama: Path, tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "hf" / "texts.jsonl", ["short", "long " * 200])
    with pytest.raises(BuildError, match=r"texts\.jsonl: text 2 has \d+ tokens, .* reads at most 128"):
        quantize(llama, tmp_path / "out", Fp8Options(calibrate=texts))
    assert_nothing_published(tmp_path)


def test_a_split_that_is_impossible_is_refused_before_calibration(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="--tp 3"):
        quantize(llama, tmp_path / "out", Fp8Options(calibrate=tmp_path / "no such file"), tp=3)


def test_a_cast_of_the_unified_layout_is_refused(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="a cast to float16 would break their scales"):
        to_fp8(llama, tmp_path / "out", format="hf", dtype="float16")


@pytest.mark.parametrize("workers", [1, 3])
def test_writing_while_calibrating_gives_the_bytes_of_one_after_the_other(
    llama: Path, tmp_path: Path, workers: int
) -> None:
    texts = write_texts(tmp_path / "texts.jsonl", ["The quick brown fox", "def add(a, b):"])
    options = Fp8Options(calibrate=texts, kv_cache=True)
    quantize(llama, tmp_path / "together", options, format="hf", workers=workers)
    checkpoint = open_checkpoint(llama)
    found = calibrate(checkpoint, encode_texts(read_texts(texts), checkpoint), kv_cache=True)
    weights = weight_scales(checkpoint, find_linears(checkpoint))
    scales = with_activations(weights, found.inputs, found.cache)
    convert(llama, tmp_path / "apart", format="hf", fp8=scales)
    one, other = (tmp_path / name / "model.safetensors" for name in ("together", "apart"))
    assert one.read_bytes() == other.read_bytes()


def test_a_calibration_that_fails_leaves_its_state_and_nothing_else(llama: Path, tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "texts.jsonl", ["The quick brown fox"])

    def stop(done: int, layers: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize(llama, tmp_path / "out", Fp8Options(calibrate=texts), report=stop)
    assert {entry.name for entry in tmp_path.iterdir()} == {"hf", "texts.jsonl", ".out.calibration"}
    seen: list[int] = []
    quantize(
        llama, tmp_path / "out", Fp8Options(calibrate=texts), report=lambda done, layers: seen.append(done)
    )
    assert seen == [3, 4]
    assert {entry.name for entry in tmp_path.iterdir()} == {"hf", "texts.jsonl", "out"}


def test_a_disk_that_fails_stops_the_calibration(llama: Path, tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "texts.jsonl", ["The quick brown fox"])

    def full(done: int, total: int) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OutputError, match=r"No space left on device while .*out was written"):
        quantize(llama, tmp_path / "out", Fp8Options(calibrate=texts), progress=full)
    assert not (tmp_path / "out").exists()


# The command


def test_both_formats_come_from_one_calibration(
    llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = write_texts(tmp_path / "texts.jsonl", ["The quick brown fox", "def add(a, b):"])
    arguments = ["--quantization", "fp8", "--calibrate", str(texts), "--kv-cache", "fp8", "--json"]
    main(["convert", str(llama), "--output", str(tmp_path / "out"), "--format", "both", *arguments])
    said = json.loads(capsys.readouterr().out)
    assert [found["format"] for found in said["conversions"]] == ["trtllm", "hf"]
    assert all(Path(found["output"]).is_dir() for found in said["conversions"])
    assert all("compare answers before you serve it" in found["notes"][-1] for found in said["conversions"])
    assert said["quantization"]["calibration"]["texts"] == 2
    ours = tensors(tmp_path / "out/hf")["model.layers.0.self_attn.q_proj.input_scale"]
    theirs = tensors(tmp_path / "out/trtllm", "rank0.safetensors")
    assert theirs["transformer.layers.0.attention.qkv.activation_scaling_factor"].item() == ours.item()
    assert {entry.name for entry in tmp_path.iterdir()} == {"hf", "out", "texts.jsonl"}


def test_the_texts_that_ship_are_taken_and_named_by_their_hash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = with_tokenizer(tmp_path / "hf", max_position_embeddings=2048)
    main(["convert", str(folder), "--output", str(tmp_path / "out"), "--quantization", "fp8"])
    said = capsys.readouterr()
    assert "calibrated on 24 texts" in said.err
    assert "FP8 by trtspec" in said.out


@pytest.mark.parametrize("option", [["--calibrate", "none"], ["--kv-cache", "fp8"], ["--format", "both"]])
def test_options_of_fp8_without_it_are_wrong_usage(llama: Path, tmp_path: Path, option: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["convert", str(llama), "--output", str(tmp_path / "out"), *option])
    assert stopped.value.code == 2


def test_an_error_of_ours_exits_with_one(llama: Path, tmp_path: Path) -> None:
    edit_config(llama, num_hidden_layers=9)
    arguments = ["--quantization", "fp8", "--calibrate", "none", "--format", "hf"]
    with pytest.raises(SystemExit) as stopped:
        main(["convert", str(llama), "--output", str(tmp_path / "out"), *arguments])
    assert stopped.value.code == 1


def test_every_matrix_but_the_head_is_quantised(llama: Path) -> None:
    linears = find_linears(open_checkpoint(llama))
    assert {name for layer in linears for name in layer.names} == matrices(load(llama)).keys()
