"""Tiny checkpoints for the FP8 tests: with a tokenizer, in compressed-tensors' layout, and read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tiny_checkpoints import edit_config, make_model, save
from tokenizer_zoo import byte_level_bpe
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.pytorch_utils import Conv1D

TEXTS = [[5, 9, 33, 58, 2, 60, 17, 44, 23], list(range(3, 40)), [7, 7, 50]]

_auto_model: Any = AutoModelForCausalLM


def with_tokenizer(folder: Path, family: str = "llama31", **changes: Any) -> Path:
    """Save a tiny model whose vocabulary is that of a tokenizer beside it."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level_bpe(), bos_token="<s>", eos_token="</s>")
    save(make_model(family, vocab_size=400, **changes), folder)
    tokenizer.save_pretrained(folder)
    return folder


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """Load a folder with transformers."""
    return _auto_model.from_pretrained(folder, dtype=dtype).eval()


def matrices(model: Any) -> dict[str, Any]:
    """Return the modules that FP8 quantises, by name: all matrices but the head."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear | Conv1D) and name != "lm_head"
    }


def hooked_maxima(model: Any, texts: list[list[int]]) -> dict[str, float]:
    """Return the largest input of each matrix, seen by plain hooks on the whole model."""
    seen: dict[str, float] = {}

    def watch(name: str) -> Any:
        def hook(module: Any, inputs: tuple[Tensor, ...]) -> None:
            seen[name] = max(seen.get(name, 0.0), float(inputs[0].abs().amax()))

        return hook

    hooks = [module.register_forward_pre_hook(watch(name)) for name, module in matrices(model).items()]
    with torch.inference_mode():
        for text in texts:
            model(torch.tensor([text]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return seen


def compress(folder: Path, *, per_channel: bool, dynamic: bool) -> dict[str, Tensor]:
    """Rewrite a checkpoint in the layout of compressed-tensors; returns the values its codes stand for."""
    tensors = load_file(folder / "model.safetensors")
    values: dict[str, Tensor] = {}
    for name in matrices(load(folder)):
        weight = tensors[f"{name}.weight"].float()
        largest = weight.abs().amax(-1, keepdim=True) if per_channel else weight.abs().amax().reshape(1)
        scale = (largest / 448).to(torch.bfloat16)
        codes = (weight / scale.float()).to(torch.float8_e4m3fn)
        tensors[f"{name}.weight"], tensors[f"{name}.weight_scale"] = codes, scale
        values[f"{name}.weight"] = codes.float() * scale.float()
        if not dynamic:
            tensors[f"{name}.input_scale"] = torch.tensor([0.03 + len(name) / 1000]).to(torch.bfloat16)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    group = {
        "targets": ["Linear"],
        "weights": {"num_bits": 8, "type": "float", "strategy": "channel" if per_channel else "tensor"},
        "input_activations": {"num_bits": 8, "type": "float", "dynamic": dynamic},
    }
    edit_config(
        folder,
        quantization_config={
            "quant_method": "compressed-tensors",
            "format": "float-quantized",
            "config_groups": {"group_0": group},
            "ignore": ["lm_head"],
        },
    )
    return values


def change_tensors(folder: Path, **changes: Any) -> None:
    """Replace tensors of a checkpoint, or take them out with None; dots are written as double underscores."""
    file = folder / "model.safetensors"
    tensors = {**load_file(file), **{name.replace("__", "."): value for name, value in changes.items()}}
    save_file({n: t for n, t in tensors.items() if t is not None}, file, {"format": "pt"})


def write_texts(path: Path, texts: list[str]) -> Path:
    """Write texts as JSON Lines."""
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path
