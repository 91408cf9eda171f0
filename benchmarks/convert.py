"""Time and memory of `trtspec convert` on a generated 1.8 B-parameter bf16 checkpoint.

    python benchmarks/convert.py --work /var/tmp/bench --modelopt path/to/python

Measures, in one run: `cp -r` and `trtspec convert` in turn (start of the process included; the CPU
seconds tell a slow conversion from a busy machine);
ModelOpt's export with a Python that has `nvidia-modelopt[hf]`; the peak of anonymous memory, for as many
and for twice as many layers; and whether a conversion finishes within a limited address space. Prints
one JSON object. Exit 3 where a target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_SIZE, VOCABULARY = 2048, 6144, 16, 8, 128, 100_000
LAYERS = 28
ADDRESS_SPACE_BYTES = 1 << 30

TARGETS = {
    "convert / cp": 1.5,
    "convert / modelopt": 0.35,
    "peak anonymous MB": 300.0,
    "peak of twice the layers / peak": 1.1,
}

MODELOPT = """
import sys, torch
torch.set_num_threads(1)
from modelopt.torch.export import export_tensorrt_llm_checkpoint
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
with torch.inference_mode():
    export_tensorrt_llm_checkpoint(
        model, "llama", torch.bfloat16, sys.argv[2], inference_tensor_parallel=1
    )
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="empty folder on the disk to measure; 15 GB")
    parser.add_argument("--modelopt", help="a Python with nvidia-modelopt[hf]; left out: no comparison")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    options.work.mkdir(parents=True)
    try:
        measured = measure(options.work, options.repeats, options.modelopt)
    finally:
        shutil.rmtree(options.work)
    missed = [name for name, limit in TARGETS.items() if measured.get(name, 0.0) > limit]
    print(json.dumps({**measured, "missed": missed, "cores": os.cpu_count()}, indent=2))
    return 3 if missed else 0


def measure(work: Path, repeats: int, modelopt: str | None) -> dict[str, Any]:
    source = generate(work / "source", LAYERS)
    runs: dict[str, list[tuple[float, float]]] = {"cp": [], "convert": [], "modelopt": []}
    copied, converted, exported = work / "copied", work / "converted", work / "exported"
    for repeat in range(repeats):
        settle(source, copied)
        runs["cp"].append(timed(["cp", "-r", source, copied]))
        shutil.rmtree(copied)
        settle(source, copied)
        runs["convert"].append(timed(convert(source, converted)))
        shutil.rmtree(converted)
        if modelopt and repeat < 3:
            settle(source, copied)
            runs["modelopt"].append(timed([modelopt, "-c", MODELOPT, source, exported]))
            shutil.rmtree(exported)
    wall, cpu = ({name: [run[i] for run in found] for name, found in runs.items() if found} for i in (0, 1))
    peak = peak_anonymous_mb(convert(source, converted))
    shutil.rmtree(converted)
    limited = subprocess.run(
        convert(source, converted), preexec_fn=limit_address_space, check=False, stdout=subprocess.DEVNULL
    )
    shutil.rmtree(converted, ignore_errors=True)
    shutil.rmtree(source)
    peak_twice = peak_anonymous_mb(convert(generate(work / "twice", 2 * LAYERS), converted))
    measured: dict[str, Any] = {
        "wall seconds": wall,
        "CPU seconds": cpu,
        # Of neighbours in time, so that a busy machine is busy for both.
        "convert / cp": statistics.median(
            ours / theirs for ours, theirs in zip(wall["convert"], wall["cp"], strict=True)
        ),
        "peak anonymous MB": peak,
        "peak of twice the layers / peak": peak_twice / peak,
        "finishes within 1 GiB of address space": limited.returncode == 0,
    }
    if modelopt:
        measured["convert / modelopt"] = statistics.median(wall["convert"]) / statistics.median(
            wall["modelopt"]
        )
    return measured


def convert(source: Path, output: Path) -> list[str]:
    return [sys.executable, "-m", "trtspec", "convert", str(source), "--output", str(output), "--json"]


def settle(source: Path, copied: Path) -> None:
    """Begin every timed run alike: nothing left to write, and as much memory just given back to the kernel.

    Memory that a virtual machine has returned to its host costs several times a copy to get again.
    """
    subprocess.run(["cp", "-r", source, copied], check=True)
    os.sync()
    shutil.rmtree(copied)


def timed(command: Sequence[str | Path]) -> tuple[float, float]:
    """Return the wall and the CPU seconds of a command that must succeed."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def peak_anonymous_mb(command: list[str]) -> float:
    """Return the highest RssAnon seen while a command runs, looked at every 5 ms."""
    peak = 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            status = Path(f"/proc/{process.pid}/status").read_text()
            found = [line.split()[1] for line in status.splitlines() if line.startswith("RssAnon")]
            peak = max(peak, *map(int, found), 0)
            time.sleep(0.005)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return peak * 1024 / 1e6


def limit_address_space() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))


def shapes(layers: int) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a Llama of 1.4 B parameters a 28 layers, and 0.4 B of embeddings."""
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCABULARY, HIDDEN),
        "lm_head.weight": (VOCABULARY, HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    for layer in range(layers):
        place = f"model.layers.{layer}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[f"{place}{name}.weight"] = (HIDDEN,)
        for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            found[f"{place}self_attn.{name}_proj.weight"] = (heads * HEAD_SIZE, HIDDEN)
        found[f"{place}self_attn.o_proj.weight"] = (HIDDEN, HEADS * HEAD_SIZE)
        for name in ("gate", "up"):
            found[f"{place}mlp.{name}_proj.weight"] = (INTERMEDIATE, HIDDEN)
        found[f"{place}mlp.down_proj.weight"] = (HIDDEN, INTERMEDIATE)
    return found


def generate(folder: Path, layers: int) -> Path:
    """Write a checkpoint of normal noise."""
    folder.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_SIZE,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, shape in shapes(layers).items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [position, position + size]}
        position += size
    text = json.dumps(header).encode()
    noise = np.random.default_rng(0).standard_normal(1 << 24, dtype=np.float32) * np.float32(0.02)
    block = (noise.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    with (folder / "model.safetensors").open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for begin in range(0, position, len(block)):
            stream.write(block[: position - begin])
    return folder


if __name__ == "__main__":
    sys.exit(main())
