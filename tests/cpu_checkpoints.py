"""Engine folders for the tests of the cpu engine: tiny random checkpoints that transformers can load too."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

_auto_model: Any = AutoModelForCausalLM

SETTINGS = {"dtype": "float32", "max_seq_len": 128, "max_batch_size": 3, "max_draft_len": 8}

SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}


def write_random(folder: Path, config: Any, **settings: object) -> Path:
    """Save a model of this config with every parameter random, norms and biases too."""
    generator = torch.Generator().manual_seed(20)
    model = _auto_model.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.2 * noise if parameter.dim() == 1 and "bias" not in name else 0.25 * noise)
    model.save_pretrained(folder)
    return write_settings(folder, **settings)


def copy_checkpoint(source: Path, folder: Path, **settings: object) -> Path:
    """Copy a checkpoint and make it an engine folder."""
    shutil.copytree(source, folder)
    return write_settings(folder, **settings)


def write_settings(folder: Path, **settings: object) -> Path:
    """Write engine.json."""
    (folder / "engine.json").write_text(json.dumps(SETTINGS | settings))
    return folder


def reference(folder: Path) -> Any:
    """Load the folder with transformers, in float32."""
    return _auto_model.from_pretrained(folder, dtype=torch.float32).eval()


def reference_logits(model: Any, ids: list[int]) -> torch.Tensor:
    """Return the logits [T, V] of a sequence."""
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([ids])).logits[0]
    return logits


def greedy(model: Any, ids: list[int], count: int) -> list[int]:
    """Return the tokens that transformers generates greedily."""
    with torch.inference_mode():
        output = model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            max_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
        )
    tokens: list[int] = output[0, len(ids) :].tolist()
    return tokens
