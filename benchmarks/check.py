"""Time `trtspec check` on a pair of the shapes of Llama-3.1-70B and Llama-3.2-1B, headers only.

The shards are sparse files of truthful sizes (140 GB that take no room), the tokenizer has 128,256 ids and
280,147 merges, as the real one.

    python benchmarks/check.py [--runs 5]
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

BIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192},
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "eos_token_id": [128001, 128008, 128009],
}
SMALL = BIG | {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "head_dim": 64,
    "tie_word_embeddings": True,
}
WORDS, MERGES, SPECIAL = 128_000, 280_147, 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as scratch:
        target, draft = Path(scratch, "target"), Path(scratch, "draft")
        write_model(target, BIG, shards=30)
        write_model(draft, SMALL, shards=1)
        sizes = [sum(f.stat().st_size for f in side.glob("*.safetensors")) / 1e9 for side in (target, draft)]
        print(f"target {sizes[0]:.1f} GB in 30 shards, draft {sizes[1]:.1f} GB in 1")
        for name, change in (("same tokenizer", None), ("two ids exchanged", exchange_two_ids)):
            if change:
                change(draft / "tokenizer.json")
            times = [check_s(target, draft) for _ in range(runs)]
            print(f"{name}: median {statistics.median(times):.2f} s, {min(times):.2f} to {max(times):.2f} s")


def check_s(target: Path, draft: Path) -> float:
    """Return the wall time of the whole command, the interpreter's start included."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "trtspec", "check", str(target), str(draft), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    taken_s = time.perf_counter() - start
    assert "ok" in json.loads(done.stdout), done.returncode
    return taken_s


def write_model(folder: Path, config: dict[str, Any], shards: int) -> None:
    """Write a checkpoint whose shards are holes behind true headers."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    shapes = llama_shapes(config)
    names = list(shapes)
    per_shard = math.ceil(len(names) / shards)
    weight_map: dict[str, str] = {}
    for n in range(shards):
        file = "model.safetensors" if shards == 1 else f"model-{n + 1:05}-of-{shards:05}.safetensors"
        part = {name: shapes[name] for name in names[n * per_shard : (n + 1) * per_shard]}
        write_holes(folder / file, part)
        weight_map |= dict.fromkeys(part, file)
    if shards > 1:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def write_holes(file: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with file.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        out.truncate(8 + len(text) + end)


def llama_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    queries, keys = (config[f"num_{k}_heads"] * config["head_dim"] for k in ("attention", "key_value"))
    layer = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden)}
    for n in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{n}.{name}.weight": shape for name, shape in layer.items()}
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, hidden)
    return shapes


def tokenizer() -> dict[str, Any]:
    """A BPE of Llama 3's size: 256 symbols, each other entry a pair of earlier ones."""
    entries = [chr(0x100 + n) for n in range(256)]
    merges: list[list[str]] = []
    known = set(entries)
    left = right = 0
    while len(entries) < WORDS:
        pair = [entries[left], entries[right]]
        if "".join(pair) not in known:
            merges.append(pair)
            known.add("".join(pair))
            entries.append("".join(pair))
        left, right = (left + 1, 0) if right == 255 else (left, right + 1)
    merges += merges[: MERGES - len(merges)]
    merges += merges[: MERGES - len(merges)]
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": WORDS + n, "content": f"<|reserved_special_token_{n}|>", "special": True}
            for n in range(SPECIAL)
        ],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
        "model": {"type": "BPE", "vocab": {entry: n for n, entry in enumerate(entries)}, "merges": merges},
    }


def exchange_two_ids(file: Path) -> None:
    content = json.loads(file.read_text())
    vocab = content["model"]["vocab"]
    one, other = list(vocab)[1000], list(vocab)[100_000]
    vocab[one], vocab[other] = vocab[other], vocab[one]
    file.write_text(json.dumps(content))


if __name__ == "__main__":
    main()
