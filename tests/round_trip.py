"""A reader of TensorRT-LLM checkpoints for tests: ranks in, Hugging Face tensors out.

Written from the format alone (one rule for each kind of tensor), not from the converter's tables.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

NORMS = {
    "input_layernorm": "input_layernorm",
    "post_layernorm": "post_attention_layernorm",
    "pre_feedforward_layernorm": "pre_feedforward_layernorm",
    "post_feedforward_layernorm": "post_feedforward_layernorm",
    "attention.q_layernorm": "self_attn.q_norm",
    "attention.k_layernorm": "self_attn.k_norm",
}
LINEARS = {
    "attention.dense": "self_attn.o_proj",
    "mlp.fc": "mlp.gate_proj",
    "mlp.gate": "mlp.up_proj",
    "mlp.proj": "mlp.down_proj",
}
GPT2 = {
    "input_layernorm": "ln_1",
    "post_layernorm": "ln_2",
    "attention.qkv": "attn.c_attn",
    "attention.dense": "attn.c_proj",
    "mlp.fc": "mlp.c_fc",
    "mlp.proj": "mlp.c_proj",
}


def read_back(folder: Path) -> dict[str, Tensor]:
    """Return the Hugging Face state dict that a TensorRT-LLM checkpoint was made from."""
    config = json.loads((folder / "config.json").read_text())
    mapping = config["mapping"]
    tp, pp, layers = mapping["tp_size"], mapping["pp_size"], config["num_hidden_layers"]
    assert mapping["world_size"] == tp * pp == len(list(folder.glob("rank*.safetensors")))
    found: dict[str, Tensor] = {}
    for stage in range(pp):
        ranks = [load_file(folder / f"rank{stage * tp + rank}.safetensors") for rank in range(tp)]
        assert all(rank.keys() == ranks[0].keys() for rank in ranks)
        assert ("transformer.vocab_embedding.weight" in ranks[0]) == (stage == 0)
        assert ("lm_head.weight" in ranks[0]) == (stage == pp - 1)
        for name in ranks[0]:
            shards = [rank[name] for rank in ranks]
            if name.startswith("transformer.layers."):
                _, _, local, rest = name.split(".", 3)
                assert int(local) < layers // pp
                found.update(_layer(rest, int(local) + stage * layers // pp, shards, config))
            else:
                found.update(_outer(name, shards, config))
    return found


def _same(shards: list[Tensor]) -> Tensor:
    assert all(torch.equal(shard, shards[0]) for shard in shards)
    return shards[0]


def _minus_one(value: Tensor, config: dict[str, Any]) -> Tensor:
    return (value.float() - 1).to(value.dtype) if config["architecture"].startswith("Gemma") else value


def _outer(name: str, shards: list[Tensor], config: dict[str, Any]) -> dict[str, Tensor]:
    gpt2, vocabulary = config["architecture"] == "GPT2LMHeadModel", config["vocab_size"]
    if name == "lm_head.weight":
        padded = torch.cat(shards)
        assert len(padded) == -(-vocabulary // len(shards)) * len(shards)
        assert not padded[vocabulary:].any()
        return {name: padded[:vocabulary]}
    short = name.removeprefix("transformer.")
    if short == "vocab_embedding.weight":
        value = torch.cat(shards) if config["use_parallel_embedding"] else _same(shards)
        return {"transformer.wte.weight" if gpt2 else "model.embed_tokens.weight": value}
    if gpt2:
        return {f"transformer.{short.replace('position_embedding', 'wpe')}": _same(shards)}
    assert short == "ln_f.weight"
    return {"model.norm.weight": _minus_one(_same(shards), config)}


def _layer(rest: str, layer: int, shards: list[Tensor], config: dict[str, Any]) -> dict[str, Tensor]:
    module, kind = rest.rsplit(".", 1)
    if config["architecture"] == "GPT2LMHeadModel":
        return {f"transformer.h.{layer}.{GPT2[module]}.{kind}": _gpt2(module, kind, shards, config)}
    place = f"model.layers.{layer}."
    if module in NORMS:
        return {f"{place}{NORMS[module]}.{kind}": _minus_one(_same(shards), config)}
    if module == "attention.qkv":
        parts = _heads(shards, config)
        if config["architecture"] == "Phi3ForCausalLM":
            return {f"{place}self_attn.qkv_proj.{kind}": torch.cat(parts)}
        return {f"{place}self_attn.{n}_proj.{kind}": part for n, part in zip("qkv", parts, strict=True)}
    if "moe" in config and module.startswith("mlp."):
        return _experts(module, place, shards, config)
    if config["architecture"] == "Phi3ForCausalLM" and module == "mlp.fc":
        up, gate = (torch.cat([shard.chunk(2)[i] for shard in shards]) for i in (0, 1))
        return {f"{place}mlp.gate_up_proj.weight": torch.cat([gate, up])}
    if module in ("attention.dense", "mlp.proj"):
        value = torch.cat(shards, dim=1) if kind == "weight" else _same(shards)
    else:
        value = torch.cat(shards)
    name = "mlp.down_proj" if module == "mlp.proj" else LINEARS[module]
    return {f"{place}{name}.{kind}": value}


def _heads(shards: list[Tensor], config: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v of all ranks; kv heads that ranks share are equal."""
    tp, kv_heads, size = len(shards), config["num_key_value_heads"], config["head_size"]
    rows, repeats = config["num_attention_heads"] // tp * size, max(1, tp // kv_heads)
    kv_rows = -(-kv_heads // tp) * size
    ends = (rows, rows + kv_rows, rows + 2 * kv_rows)
    split = [(shard[: ends[0]], shard[ends[0] : ends[1]], shard[ends[1] :]) for shard in shards]
    assert all(len(shard) == ends[2] for shard in shards)
    query = torch.cat([q for q, _, _ in split])
    key, value = (
        torch.cat([_same([part[i] for part in split[r : r + repeats]]) for r in range(0, tp, repeats)])
        for i in (1, 2)
    )
    return query, key, value


def _experts(module: str, place: str, shards: list[Tensor], config: dict[str, Any]) -> dict[str, Tensor]:
    where = f"{place}block_sparse_moe."
    if module == "mlp.router":
        assert shards[0].dtype == torch.float32
        return {f"{where}gate.weight": _same(shards)}
    found = {}
    for expert in range(config["moe"]["num_experts"]):
        mine = [shard[expert] for shard in shards]
        if module == "mlp.proj":
            found[f"{where}experts.{expert}.w2.weight"] = torch.cat(mine, dim=1)
        else:
            for i, name in enumerate(("w3", "w1")):
                found[f"{where}experts.{expert}.{name}.weight"] = torch.cat([m.chunk(2)[i] for m in mine])
    return found


def _gpt2(module: str, kind: str, shards: list[Tensor], config: dict[str, Any]) -> Tensor:
    if module == "attention.qkv":
        value = torch.cat(_heads(shards, config))
    elif module == "mlp.fc":
        value = torch.cat(shards)
    elif kind == "weight" and module in ("attention.dense", "mlp.proj"):
        value = torch.cat(shards, dim=1)
    else:
        value = _same(shards)
    return value.T.contiguous() if value.dim() == 2 else value
