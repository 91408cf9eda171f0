"""The same FP8 codes and scales as NVIDIA ModelOpt's exporters write, in both formats.

ModelOpt is no dependency: these run where it is installed (python -m pytest -m oracle). The same texts
calibrate both; ModelOpt 0.47 exports fewer families, and always splits the embeddings over the ranks.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from fp8_checkpoints import TEXTS, load
from safetensors.torch import load_file
from test_convert_oracle import EMBEDDINGS, KINDS
from test_fp8_convert import find_scales
from tiny_checkpoints import make_model, save
from torch import Tensor

from trtspec.build.convert.converter import convert

UNIFIED = [*(family for family in KINDS if family != "gpt2"), "gemma2", "gemma3", "phi3"]


def quantised_by_modelopt(source: Path) -> Any:
    import modelopt.torch.quantization as quantization

    # From the folder: a model cast in memory has its rotations cast too.
    model = load(source, torch.bfloat16)
    settings = quantization.utils.update_quant_cfg_with_kv_cache_quant(
        copy.deepcopy(quantization.FP8_DEFAULT_CFG), quantization.FP8_KV_CFG["quant_cfg"]
    )

    def calibrate(model: Any) -> None:
        for text in TEXTS:
            model(torch.tensor([text]))

    return quantization.quantize(model, settings, calibrate)


def assert_equal(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype, name
        assert ours[name].shape == tensor.shape, name
        assert torch.equal(ours[name].float(), tensor.float()), name


@pytest.mark.oracle
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("family", UNIFIED)
def test_the_unified_layout_is_modelopts_bit_for_bit(tmp_path: Path, family: str) -> None:
    from modelopt.torch.export import export_hf_checkpoint

    source = save(make_model(family, torch.bfloat16), tmp_path / "hf")
    model = quantised_by_modelopt(source)
    with torch.inference_mode():
        export_hf_checkpoint(model, dtype=torch.bfloat16, export_dir=tmp_path / "theirs")
    convert(source, tmp_path / "ours", format="hf", fp8=find_scales(source, cache=True))
    ours, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("ours", "theirs"))
    assert ours.keys() == theirs.keys()
    assert_equal(ours, theirs)


@pytest.mark.oracle
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("family", KINDS)
def test_the_tensorrt_llm_checkpoint_is_modelopts_bit_for_bit(tmp_path: Path, family: str, tp: int) -> None:
    from modelopt.torch.export import export_tensorrt_llm_checkpoint

    source = save(make_model(family, torch.bfloat16), tmp_path / "hf")
    model = quantised_by_modelopt(source)
    with torch.inference_mode():
        export_tensorrt_llm_checkpoint(
            model, KINDS[family], torch.bfloat16, tmp_path / "theirs", inference_tensor_parallel=tp
        )
    convert(source, tmp_path / "ours", fp8=find_scales(source, cache=True), tp=tp)
    split = EMBEDDINGS if tp > 1 else set()
    for rank in range(tp):
        ours, theirs = (load_file(tmp_path / name / f"rank{rank}.safetensors") for name in ("ours", "theirs"))
        assert ours.keys() - theirs.keys() <= {"lm_head.weight"}
        assert_equal(ours, {name: tensor for name, tensor in theirs.items() if name not in split})
