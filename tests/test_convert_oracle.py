"""The same tensors as NVIDIA ModelOpt's exporter writes, which TensorRT-LLM was made to read.

ModelOpt is no dependency: these run where it is installed (python -m pytest -m oracle). Version 0.47
exports no Gemma-2, Gemma-3 or Phi-3 for the engine path, nor the fused experts of transformers 5.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_checkpoints import make_model, save

from trtspec.build.convert.converter import convert

KINDS = {
    "llama2": "llama",
    "llama31": "llama",
    "llama_biased": "llama",
    "mistral": "llama",
    "qwen2": "qwen",
    "qwen25_tied": "qwen",
    "qwen3": "qwen",
    "gemma": "gemma",
    "gpt2": "gpt",
}

# It always splits the embeddings over the ranks, and leaves out a head that is tied.
EMBEDDINGS = {"transformer.vocab_embedding.weight", "transformer.position_embedding.weight"}


@pytest.mark.oracle
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("family", KINDS)
def test_tensors_are_modelopts_bit_for_bit(tmp_path: Path, family: str, tp: int) -> None:
    from modelopt.torch.export import export_tensorrt_llm_checkpoint

    model = make_model(family, torch.bfloat16)
    source = save(model, tmp_path / "hf")
    with torch.inference_mode():
        export_tensorrt_llm_checkpoint(
            model, KINDS[family], torch.bfloat16, tmp_path / "theirs", inference_tensor_parallel=tp
        )
    convert(source, tmp_path / "ours", tp=tp)
    for rank in range(tp):
        theirs = load_file(tmp_path / "theirs" / f"rank{rank}.safetensors")
        ours = load_file(tmp_path / "ours" / f"rank{rank}.safetensors")
        assert ours.keys() - theirs.keys() <= {"lm_head.weight"}
        assert theirs.keys() <= ours.keys()
        for name in theirs.keys() - (EMBEDDINGS if tp > 1 else set()):
            assert ours[name].dtype == theirs[name].dtype
            assert torch.equal(ours[name], theirs[name]), name
