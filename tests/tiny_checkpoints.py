"""Tiny random Hugging Face checkpoints of every supported family, made by transformers itself.

Weights lie on a grid of 1/1024, so that adding one (Gemma's norms) and float16 lose nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 101,  # odd: padded for every tp but 1
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SLIDING = {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 8}

# name -> architecture, what differs from SMALL.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama2": ("Llama", {"num_key_value_heads": 4}),
    "llama31": ("Llama", {"head_dim": 16, "rope_parameters": LLAMA3}),
    "llama_biased": ("Llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "mistral": ("Mistral", {"head_dim": 16, "sliding_window": None}),
    "mixtral": ("Mixtral", {"num_local_experts": 3, "num_experts_per_tok": 2}),
    "qwen2": ("Qwen2", {}),
    "qwen25_tied": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "gemma": ("Gemma", {"head_dim": 16, "num_key_value_heads": 1, "vocab_size": 104}),
    "gemma2": ("Gemma2", {"head_dim": 16, "vocab_size": 104, "sliding_window": 8}),
    "gemma3": ("Gemma3", {"head_dim": 16, "vocab_size": 104, **SLIDING}),
    "phi3": ("Phi3", {}),
    "gpt2": ("GPT2", {}),
}
GPT2_NAMES = {
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
}


def make_model(family: str, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """Return a model of a family; every parameter is random, none is all ones or zeros."""
    architecture, differences = FAMILIES[family]
    values = {**SMALL, **differences, **changes}
    if architecture == "GPT2":
        del values["num_key_value_heads"]
        values = {GPT2_NAMES.get(key, key): value for key, value in values.items()}
    config_class = "Gemma3TextConfig" if architecture == "Gemma3" else f"{architecture}Config"
    model_class = "GPT2LMHeadModel" if architecture == "GPT2" else f"{architecture}ForCausalLM"
    model = getattr(transformers, model_class)(getattr(transformers, config_class)(**values))
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator) * 0.2
            parameter.copy_(torch.round(noise * 1024) / 1024)
    return model.to(dtype).eval()


def save(model: Any, folder: Path, **changes: Any) -> Path:
    """Save a model as a checkpoint folder; `changes` go to save_pretrained."""
    model.save_pretrained(folder, **changes)
    return folder


def edit_config(folder: Path, **changes: Any) -> None:
    """Change keys of config.json; None removes one."""
    file = folder / "config.json"
    values = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))


def logits(model: Any) -> torch.Tensor:
    """Return the logits of one fixed text."""
    with torch.no_grad():
        tokens = torch.arange(3, 23)[None] % model.config.vocab_size
        result: torch.Tensor = model(tokens).logits
    return result
