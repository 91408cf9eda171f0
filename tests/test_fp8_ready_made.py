"""FP8 checkpoints of others: recognised, checked, converted without touching a code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fp8_checkpoints import change_tensors, compress
from safetensors.torch import load_file
from test_fp8_convert import to_fp8
from tiny_checkpoints import edit_config, make_model, save
from torch import Tensor

from trtspec.build.check.model_shape import shape_of
from trtspec.build.check.shape_findings import model_findings
from trtspec.build.checkpoint import open_checkpoint
from trtspec.build.quantize.quantizer import Fp8Options, quantize
from trtspec.build.quantize.ready_made import read_fp8
from trtspec.cli import main
from trtspec.errors import BuildError, CheckpointError

E4M3 = torch.float8_e4m3fn
DOWN = "model__layers__1__mlp__down_proj__"


def codes(tensor: Tensor) -> Tensor:
    assert tensor.dtype == E4M3
    return tensor.view(torch.uint8)


@pytest.fixture
def modelopt(tmp_path: Path) -> Path:
    """A checkpoint in ModelOpt's layout; that ours is that layout, the oracle says."""
    source = save(make_model("llama31", torch.bfloat16), tmp_path / "original")
    to_fp8(source, tmp_path / "hf", format="hf", cache=True)
    return tmp_path / "hf"


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return save(make_model("llama31", torch.bfloat16), tmp_path / "hf")


def test_an_unquantised_checkpoint_has_no_scales(plain: Path) -> None:
    assert read_fp8(open_checkpoint(plain)) is None


def test_modelopts_layout_is_written_again_as_it_is(modelopt: Path, tmp_path: Path) -> None:
    made = quantize(modelopt, tmp_path / "again", format="hf")
    assert (made.origin, made.algorithm, made.calibration) == ("modelopt", "FP8", None)
    before, after = (load_file(folder / "model.safetensors") for folder in (modelopt, tmp_path / "again"))
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert tensor.dtype == after[name].dtype
        assert torch.equal(tensor.float(), after[name].float()), name


def test_modelopts_layout_is_known_by_either_of_its_configurations(modelopt: Path) -> None:
    both = read_fp8(open_checkpoint(modelopt))
    (modelopt / "hf_quant_config.json").rename(modelopt / "kept")
    assert read_fp8(open_checkpoint(modelopt)) == both
    (modelopt / "kept").rename(modelopt / "hf_quant_config.json")
    edit_config(modelopt, quantization_config=None)
    assert read_fp8(open_checkpoint(modelopt)) == both


def test_matrices_that_are_fused_are_rescaled_as_tensorrt_llms_loader_does(
    modelopt: Path, tmp_path: Path
) -> None:
    quantize(modelopt, tmp_path / "engine")
    before, after = (
        load_file(modelopt / "model.safetensors"),
        load_file(tmp_path / "engine/rank0.safetensors"),
    )
    place = "model.layers.2.self_attn."
    scales = [before[f"{place}{name}_proj.weight_scale"] for name in "qkv"]
    largest = torch.stack(scales).amax()
    parts = [
        (before[f"{place}{name}_proj.weight"].float() * scale / largest).to(E4M3)
        for name, scale in zip("qkv", scales, strict=True)
    ]
    fused = after["transformer.layers.2.attention.qkv.weight"]
    assert torch.equal(codes(fused), torch.cat([codes(part) for part in parts]))
    assert after["transformer.layers.2.attention.qkv.weights_scaling_factor"].item() == largest.item()


def test_matrices_that_stay_alone_keep_their_codes_and_scales(modelopt: Path, tmp_path: Path) -> None:
    quantize(modelopt, tmp_path / "engine")
    before, after = (
        load_file(modelopt / "model.safetensors"),
        load_file(tmp_path / "engine/rank0.safetensors"),
    )
    names = {"attention.dense": "self_attn.o_proj", "mlp.fc": "mlp.gate_proj", "mlp.gate": "mlp.up_proj"}
    for ours, theirs in names.items():
        place, source = f"transformer.layers.3.{ours}.", f"model.layers.3.{theirs}."
        assert torch.equal(codes(after[f"{place}weight"]), codes(before[f"{source}weight"]))
        assert after[f"{place}weights_scaling_factor"].item() == before[f"{source}weight_scale"].item()
        assert after[f"{place}activation_scaling_factor"].item() == before[f"{source}input_scale"].item()


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compressed_tensors_become_the_unified_layout_code_by_code(
    plain: Path, tmp_path: Path, per_channel: bool, dynamic: bool
) -> None:
    values = compress(plain, per_channel=per_channel, dynamic=dynamic)
    made = quantize(plain, tmp_path / "unified", format="hf")
    algorithm = "FP8_PER_CHANNEL_PER_TOKEN" if per_channel else "FP8"
    assert (made.origin, made.algorithm) == ("compressed-tensors", algorithm)
    before, after = (load_file(folder / "model.safetensors") for folder in (plain, tmp_path / "unified"))
    for name, value in values.items():
        module = name.removesuffix(".weight")
        scale = after[f"{module}.weight_scale"]
        assert scale.shape == ((len(value),) if per_channel else ())
        assert scale.dtype == torch.float32
        assert torch.equal(codes(after[name]), codes(before[name]))
        assert torch.equal(after[name].float() * scale.reshape(-1, 1), value)
        assert (f"{module}.input_scale" in after) is not dynamic
        if not dynamic:
            assert after[f"{module}.input_scale"] == before[f"{module}.input_scale"].float()[0]
    beside = json.loads((tmp_path / "unified/hf_quant_config.json").read_text())
    assert beside["quantization"]["quant_algo"] == algorithm
    inline = json.loads((tmp_path / "unified/config.json").read_text())["quantization_config"]
    assert inline["quant_method"] == "modelopt"
    again = read_fp8(open_checkpoint(tmp_path / "unified"))
    assert again is not None
    assert (again.algorithm, again.static) == (algorithm, not dynamic)


@pytest.mark.parametrize("tp", [1, 2])
def test_rows_with_scales_of_their_own_keep_them_over_the_ranks(plain: Path, tmp_path: Path, tp: int) -> None:
    values = compress(plain, per_channel=True, dynamic=True)
    quantize(plain, tmp_path / "engine", tp=tp)
    config = json.loads((tmp_path / "engine/config.json").read_text())
    assert config["quantization"]["quant_algo"] == "FP8_PER_CHANNEL_PER_TOKEN"
    ranks = [load_file(tmp_path / f"engine/rank{rank}.safetensors") for rank in range(tp)]

    def dequantised(name: str) -> list[Tensor]:
        place = f"transformer.layers.1.{name}."
        return [rank[f"{place}weight"].float() * rank[f"{place}per_channel_scale"][:, None] for rank in ranks]

    layer = "model.layers.1."
    assert torch.equal(torch.cat(dequantised("mlp.fc")), values[f"{layer}mlp.gate_proj.weight"])
    assert torch.equal(torch.cat(dequantised("mlp.proj"), 1), values[f"{layer}mlp.down_proj.weight"])
    q, k, v = (values[f"{layer}self_attn.{name}_proj.weight"].chunk(tp) for name in "qkv")
    for rank, held in enumerate(dequantised("attention.qkv")):
        assert torch.equal(held, torch.cat([q[rank], k[rank], v[rank]]))


def test_dynamic_inputs_with_one_scale_a_matrix_are_refused_for_an_engine(
    plain: Path, tmp_path: Path
) -> None:
    compress(plain, per_channel=False, dynamic=True)
    with pytest.raises(BuildError, match="no activation scales; a TensorRT engine"):
        quantize(plain, tmp_path / "engine")


def test_a_partly_quantised_model_is_refused_for_an_engine_and_listed_for_the_unified_layout(
    plain: Path, tmp_path: Path
) -> None:
    weight = load_file(plain / "model.safetensors")["model.layers.1.mlp.down_proj.weight"]
    compress(plain, per_channel=False, dynamic=False)
    changes = {"weight": weight, "weight_scale": None, "input_scale": None}
    change_tensors(plain, **{DOWN + name: value for name, value in changes.items()})
    with pytest.raises(BuildError, match=r"1 of 28 matrices are not FP8, first 'model\.layers\.1\.mlp\.down"):
        quantize(plain, tmp_path / "engine")
    quantize(plain, tmp_path / "unified", format="hf")
    beside = json.loads((tmp_path / "unified/hf_quant_config.json").read_text())
    assert beside["quantization"]["exclude_modules"] == ["lm_head", "model.layers.1.mlp.down_proj"]


def test_the_scales_of_a_cache_are_found_under_either_name(plain: Path, tmp_path: Path) -> None:
    compress(plain, per_channel=False, dynamic=False)
    scales = {f"model__layers__{layer}__self_attn__{kind}_scale": torch.tensor([0.5 + layer])
              for layer in range(4) for kind in "kv"}  # fmt: skip
    change_tensors(plain, **scales)
    quantize(plain, tmp_path / "unified", format="hf")
    after = load_file(tmp_path / "unified/model.safetensors")
    assert after["model.layers.3.self_attn.k_proj.k_scale"].item() == 3.5
    assert "model.layers.3.self_attn.k_scale" not in after


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight_scale": None}, r"1 scale, first 'model\.layers\.1\.mlp\.down_proj\.weight_scale', missing"),
        ({"input_scale": None}, r"1 scale, first '.*down_proj\.input_scale', missing"),
        ({"weight_scale": torch.tensor(float("nan"))}, r"down_proj\.weight_scale' is nan, expected a finite"),
        ({"weight_scale": torch.tensor(float("inf"))}, r"down_proj\.weight_scale' is inf, expected a finite"),
        ({"input_scale": torch.tensor(0.0)}, r"down_proj\.input_scale' is 0\.0, expected a finite value abo"),
        ({"weight_scale": torch.tensor(-0.1)}, r"down_proj\.weight_scale' is -0\.1"),
        ({"weight_scale": torch.ones(32)}, r"weight_scale' is F32 \[32\], expected 1 floating-point value"),
        ({"input_scale": torch.tensor(1)}, r"input_scale' is I64 \[\], expected 1 floating-point value"),
    ],
)
def test_scales_that_cannot_be_right_are_refused(
    modelopt: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    change_tensors(modelopt, **{DOWN + name: value for name, value in changes.items()})
    with pytest.raises(CheckpointError, match=message):
        quantize(modelopt, tmp_path / "out")
    assert {entry.name for entry in tmp_path.iterdir()} == {"hf", "original"}


def test_one_scale_of_a_cache_without_the_other_is_refused(modelopt: Path) -> None:
    change_tensors(modelopt, model__layers__0__self_attn__v_proj__v_scale=None)
    with pytest.raises(CheckpointError, match=r"layers\.0\.self_attn has 1 scales for its cache"):
        read_fp8(open_checkpoint(modelopt))


def test_a_code_that_is_not_a_number_is_refused(modelopt: Path, tmp_path: Path) -> None:
    weight = load_file(modelopt / "model.safetensors")["model.layers.1.mlp.down_proj.weight"]
    weight.view(torch.uint8)[5, 6] = 0x7F
    change_tensors(modelopt, **{f"{DOWN}weight": weight})
    with pytest.raises(CheckpointError, match=r"weight' holds NaN or Inf, first at row 5, column 6"):
        quantize(modelopt, tmp_path / "out")


def test_placeholder_scales_are_called_out(modelopt: Path, tmp_path: Path) -> None:
    changes = {f"model__layers__{layer}__mlp__up_proj__input_scale": torch.tensor(1.0) for layer in (0, 2)}
    change_tensors(modelopt, **changes)
    (made,) = quantize(modelopt, tmp_path / "out").conversions
    note = next(note for note in made.notes if "placeholders" in note)
    assert "2 scales, first 'model.layers.0.mlp.up_proj.input_scale', exactly 1.0" in note


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "quant_algo is 'NVFP4'"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "quant_method is 'fp8'"),
        ({"quant_method": "gptq", "bits": 4}, "quant_method is 'gptq'"),
        ({"quant_method": "compressed-tensors", "config_groups": {}}, "weight strategies are none"),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 4}}}},
            "weights are 4 bits None",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"num_bits": 8, "type": "float", "strategy": "tensor"}}},
            },
            "only weights are quantised, activations are not",
        ),
        ("FP8", "quantization_config is 'FP8'"),
    ],
)
def test_other_quantisations_are_refused_by_their_name(plain: Path, settings: object, message: str) -> None:
    edit_config(plain, quantization_config=settings)
    with pytest.raises(CheckpointError, match=f"quantised, and {message}; read here are"):
        read_fp8(open_checkpoint(plain))


def test_codes_that_nothing_explains_are_refused(modelopt: Path) -> None:
    edit_config(modelopt, quantization_config=None)
    (modelopt / "hf_quant_config.json").unlink()
    with pytest.raises(CheckpointError, match=r"28 tensors, first .*, of FP8 codes, and no hf_quant_config"):
        read_fp8(open_checkpoint(modelopt))


def test_a_configuration_without_codes_is_refused(plain: Path) -> None:
    edit_config(plain, quantization_config={"quant_method": "modelopt", "quant_algo": "FP8"})
    with pytest.raises(CheckpointError, match="says that it is FP8, but no weight is"):
        read_fp8(open_checkpoint(plain))


def test_the_command_converts_without_being_told_that_it_is_fp8(
    modelopt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["convert", str(modelopt), "--output", str(tmp_path / "engine")])
    assert "FP8 by modelopt" in capsys.readouterr().out


def test_the_pair_check_notes_that_it_is_fp8(modelopt: Path) -> None:
    checkpoint = open_checkpoint(modelopt)
    (finding,) = model_findings("target", checkpoint, shape_of(checkpoint))
    assert (finding.id, finding.severity) == ("target.fp8", "note")
    assert finding.message == "the target is FP8 already, quantised by modelopt"


def test_asking_to_quantise_it_again_changes_nothing(modelopt: Path, tmp_path: Path) -> None:
    quantize(modelopt, tmp_path / "one")
    quantize(modelopt, tmp_path / "two", Fp8Options(calibrate="none"))
    one, two = ((tmp_path / name / "rank0.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two
