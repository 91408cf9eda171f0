"""FP8 of a generated 1.8 B-parameter bf16 checkpoint, against ModelOpt, and of the demo pair.

    python benchmarks/fp8.py --work /var/tmp/bench --modelopt path/to/python

One run, same checkpoint, same calibration tokens (4 texts of 64), one torch thread each. Measured for both
formats: wall seconds from the start of the process to its end, the peak of anonymous memory, and how many
tensors and bytes are the same. Then the acceptance rate of the demo pair before and after, on held-out
Python. Prints one JSON object. Exit 3 where a target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from convert import LAYERS, generate, peak_anonymous_mb, settle, timed
from tokenizers import Tokenizer, models, pre_tokenizers
from train_demo_pair import corpus

import trtspec
from trtspec.build.options import BuildOptions
from trtspec.build.pair import build
from trtspec.build.quantize.pair_quantizer import PairQuantization
from trtspec.build.tensor_file import TensorInfo, read_header

TEXTS, TOKENS, WORDS = 4, 64, 1000
HELD_OUT_CHARACTERS = 2500

TARGETS = {"wall / modelopt": 0.5, "peak / modelopt": 0.35}

MODELOPT = """
import copy, json, sys, torch
torch.set_num_threads(1)
import modelopt.torch.quantization as mtq
from modelopt.torch.export import export_hf_checkpoint, export_tensorrt_llm_checkpoint
from transformers import AutoModelForCausalLM
source, texts, format, output = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
ids = torch.tensor([[int(word) for word in json.loads(line)["text"].split()] for line in open(texts)])
with torch.inference_mode():
    mtq.quantize(model, copy.deepcopy(mtq.FP8_DEFAULT_CFG), lambda model: model(ids, use_cache=False))
    if format == "hf":
        export_hf_checkpoint(model, dtype=torch.bfloat16, export_dir=output)
    else:
        export_tensorrt_llm_checkpoint(model, "llama", torch.bfloat16, output, inference_tensor_parallel=1)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="empty folder on the disk to measure; 12 GB")
    parser.add_argument("--modelopt", help="a Python with nvidia-modelopt[hf]; left out: no comparison")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    options.work.mkdir(parents=True)
    try:
        measured = measure(options.work, options.repeats, options.modelopt)
    finally:
        shutil.rmtree(options.work)
    measured["demo pair"] = demo_pair()
    missed = [
        f"{format}: {name}"
        for format in ("trtllm", "hf")
        for name, limit in TARGETS.items()
        if measured[format].get(name, 0.0) > limit
    ]
    print(json.dumps({**measured, "missed": missed, "cores": os.cpu_count()}, indent=2))
    return 3 if missed else 0


def measure(work: Path, repeats: int, modelopt: str | None) -> dict[str, Any]:
    source = generate(work / "source", LAYERS)
    texts = write_texts(source)
    measured = {}
    for format in ("trtllm", "hf"):
        ours, theirs, spare = work / "ours", work / "theirs", work / "spare"
        our_command = convert(source, texts, format, ours)
        commands = {"ours": (our_command, ours)}
        if modelopt:
            their_command = [modelopt, "-c", MODELOPT, str(source), str(texts), format, str(theirs)]
            commands["modelopt"] = (their_command, theirs)
        runs: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for _ in range(repeats):
            for name, (command, output) in commands.items():
                shutil.rmtree(output, ignore_errors=True)
                settle(source, spare)
                runs[name].append(timed(command))
        found: dict[str, Any] = {
            "wall seconds": {name: [wall for wall, _ in run] for name, run in runs.items()},
            "CPU seconds": {name: [cpu for _, cpu in run] for name, run in runs.items()},
        }
        peaks = {}
        for name, (command, output) in commands.items():
            shutil.rmtree(output, ignore_errors=True)
            peaks[name] = peak_anonymous_mb(command)
        found["peak anonymous MB"] = peaks
        if modelopt:
            walls = found["wall seconds"]
            # Of neighbours in time, so that a busy machine is busy for both.
            found["wall / modelopt"] = statistics.median(
                one / other for one, other in zip(walls["ours"], walls["modelopt"], strict=True)
            )
            found["peak / modelopt"] = peaks["ours"] / peaks["modelopt"]
            found["identical"] = compare(ours, theirs)
        measured[format] = found
        for folder in (ours, theirs):
            shutil.rmtree(folder, ignore_errors=True)
    return measured


def convert(source: Path, texts: Path, format: str, output: Path) -> list[str]:
    command = [sys.executable, "-m", "trtspec", "convert", str(source), "--output", str(output), "--json"]
    return [*command, "--format", format, "--quantization", "fp8", "--calibrate", str(texts)]


def write_texts(source: Path) -> Path:
    """Give the checkpoint a tokenizer of numbers, and return a file of texts in them."""
    tokenizer = Tokenizer(models.WordLevel({str(word): word for word in range(WORDS)}, unk_token="0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(source / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    draw = random.Random(0)
    texts = [" ".join(str(draw.randrange(WORDS)) for _ in range(TOKENS)) for _ in range(TEXTS)]
    file = source / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return file


def compare(ours: Path, theirs: Path) -> dict[str, dict[str, int]]:
    """Count tensors and bytes that are the same, by kind of tensor."""
    left, right = tensors(ours), tensors(theirs)
    counts: dict[str, dict[str, int]] = {}
    for name in sorted(left.keys() | right.keys()):
        kind = "codes" if name in left and left[name].dtype == "F8_E4M3" else name.rpartition(".")[2]
        count = counts.setdefault(kind, {"tensors": 0, "equal": 0, "bytes": 0, "equal bytes": 0})
        one, other = (content(side.get(name)) for side in (left, right))
        equal = sum(map(int.__eq__, one, other)) if one != other else len(one)
        for key, value in (
            ("tensors", 1),
            ("equal", one == other),
            ("bytes", len(one)),
            ("equal bytes", equal),
        ):
            count[key] += value
    return counts


def tensors(folder: Path) -> dict[str, TensorInfo]:
    return {name: t for file in folder.glob("*.safetensors") for name, t in read_header(file).items()}


def content(tensor: TensorInfo | None) -> bytes:
    if tensor is None:
        return b""
    with tensor.file.open("rb") as stream:
        stream.seek(tensor.offset)
        return stream.read(tensor.size_bytes)


def demo_pair() -> dict[str, Any]:
    """Return what FP8 costs the demo pair, on Python that neither training nor calibration has seen."""
    source = Path(trtspec.__file__).parent / "demo_pair"
    _, held_out = corpus()
    with tempfile.TemporaryDirectory() as folder:
        texts = Path(folder, "held_out.jsonl")
        texts.write_text("".join(json.dumps(text[:HELD_OUT_CHARACTERS]) + "\n" for text in held_out))
        options = PairQuantization("fp8", "fp8", evaluate=texts)
        pair = build(
            source / "target",
            source / "draft",
            Path(folder, "pair"),
            BuildOptions(quantization=options),
            report=lambda line: None,
        )
    found: dict[str, Any] = {}
    for name, engine in (("target", pair.manifest.target), ("draft", pair.manifest.draft)):
        quantization = engine.quantization
        assert quantization is not None
        assert quantization.quality is not None
        found[name] = quantization.quality.model_dump(exclude={"weight_errors", "texts_sha256"})
        found[name]["largest weight error"] = max(quantization.quality.weight_errors.values())
    assert pair.manifest.acceptance is not None
    return {**found, "acceptance": pair.manifest.acceptance.model_dump()}


if __name__ == "__main__":
    sys.exit(main())
