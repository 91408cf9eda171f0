"""What verify costs and what it can see.

    python benchmarks/verify.py [--runs 5] [--tokens 128] [--servers 200] [--fp8 work/pair/target]

Three tables: one teacher-forced pass over an answer against generating it (transformers, float32, the demo
pair's target, one thread; medians); what rounding does to its logits in each dtype, against the bound (in
FP8 for a folder that `trtspec build --quantization fp8` made); and how often the sampling tests fail a
right server and wrong ones (scripted, a model of twelve tokens, the default plan).
"""

from __future__ import annotations

import statistics
import sys
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

from trtspec.client.verify import DEFAULT_PROMPTS, Dtype, HuggingFaceReference, Noise
from trtspec.client.verify.distribution import top_kl
from trtspec.client.verify.fp8 import load_fp8
from trtspec.client.verify.sampling import SamplingPlan, judge_sampling

TARGET = Path(str(files("trtspec") / "demo_pair" / "target"))


def gain(runs: int, tokens: int) -> None:
    """Print the time of one pass over an answer, and of generating it with and without a cache."""
    from transformers import AutoModelForCausalLM

    reference = HuggingFaceReference(TARGET)
    model: Any = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval()
    times: dict[str, list[float]] = {"one pass": [], "generate": []}
    for prompt in DEFAULT_PROMPTS[:runs]:
        ids = reference.encode(prompt)
        started = time.perf_counter()
        options = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}
        answer = model.generate(torch.tensor([ids]), **options)[0, len(ids) :].tolist()
        times["generate"].append(time.perf_counter() - started)
        started = time.perf_counter()
        reference.logits(ids, answer)
        times["one pass"].append(time.perf_counter() - started)
    medians = {name: statistics.median(values) for name, values in times.items()}
    ratio = medians["generate"] / medians["one pass"]
    print(f"answers of {tokens} tokens: one pass {medians['one pass'] * 1000:.0f} ms, generate")
    print(f"{medians['generate'] * 1000:.0f} ms: {ratio:.1f} times")


def noise() -> None:
    """Print how far logits are off in each dtype, in units of ε s, and the gap at changed choices."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    reference = HuggingFaceReference(TARGET)
    prompts = [reference.encode(prompt) for prompt in DEFAULT_PROMPTS[:20]]
    rows: dict[str, Any] = {}
    for dtype in ("float64", "float32", "float16", "bfloat16"):
        options: Any = {"dtype": getattr(torch, dtype)}
        model = AutoModelForCausalLM.from_pretrained(TARGET, **options).eval()
        with torch.inference_mode():
            every = [model(torch.tensor([ids]), use_cache=False).logits[0].double() for ids in prompts]
        rows[dtype] = torch.cat(every).numpy()
    right = rows.pop("float64")
    for dtype, found in rows.items():
        _compare(right, found, Noise(dtype, reference.layers, reference.width))


def fp8_noise(folder: Path) -> None:
    """Print the same for FP8 codes: against the reference, one that rounds its stream otherwise."""
    reference = HuggingFaceReference(folder, TARGET)
    prompts = [torch.tensor([reference.encode(prompt)]) for prompt in DEFAULT_PROMPTS[:20]]
    exact = load_fp8(folder).eval()
    options: dict[str, Any] = {"max_new_tokens": 32, "do_sample": False}
    answers = [exact.generate(ids, **options) for ids in prompts]
    right = _rows(exact, answers)
    otherwise: dict[Dtype, Any] = {
        "fp8": lambda x: x.bfloat16().float(),
        "fp8-float32": lambda x: x * (1 + 2.0**-22 * torch.randn_like(x)),
    }
    for dtype, rounded in otherwise.items():
        model = load_fp8(folder).eval()
        for name, module in model.named_modules():
            if name.startswith("model.layers.") or not list(module.children()):
                module.register_forward_hook(_on_first(rounded))
        _compare(right, _rows(model, answers), Noise(dtype, reference.layers, reference.width))


def _on_first(rounded: Any) -> Any:
    def hook(module: Any, inputs: Any, output: Any) -> Any:
        return rounded(output) if torch.is_tensor(output) else (rounded(output[0]), *output[1:])

    return hook


def _rows(model: Any, texts: list[Any]) -> Any:
    with torch.inference_mode():
        return torch.cat([model(ids, use_cache=False).logits[0].double() for ids in texts]).numpy()


def _compare(right: Any, found: Any, noise: Noise) -> None:
    off = (found - right).std(-1) / right.std(-1) / noise.relative
    bounds = [noise.bound(row) for row in right]
    changed = np.flatnonzero(found.argmax(-1) != right.argmax(-1))
    gaps = [right[n].max() - right[n][found[n].argmax()] for n in changed]
    share = max((gap / bounds[n] for gap, n in zip(gaps, changed, strict=True)), default=0.0)
    second, best = np.argsort(right, -1)[:, -2:].T
    every = np.arange(len(right))
    moved = np.abs((found - right)[every, best] - (found - right)[every, second]) / bounds
    kl = [top_kl(*pair, 20) for pair in zip(right, found, strict=True)]
    allowed = np.mean([noise.kl(row) for row in right])
    print(f"{noise.dtype}: noise {off.mean():.2f} ε on average, {off.max():.2f} at most; {len(gaps)} of")
    print(f"  {len(right)} choices changed, by at most {share:.2f} of the bound; the two best logits moved")
    print(f"  by at most {moved.max():.2f} of it; mean KL {np.mean(kl):.2g} nats of {allowed:.2g} allowed")


def alarms(servers: int) -> None:
    """Print how often servers fail, right and wrong ones, with the default plan."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from sampling_servers import Fault, SamplingServer, TableReference

    reference, prompts = TableReference(), [[token] for token in range(6)]
    exact = Noise("float32", reference.layers, reference.width)
    faults: dict[Fault, int] = {
        "": servers,
        "accept always": servers // 10,
        "wrong residual": servers // 10,
        "same seed every round": servers // 10,
        "temperature ignored": servers // 10,
        "top-p for the draft only": servers // 10,
    }
    for fault, runs in faults.items():
        failed, detectable = 0, 0.0
        for seed in range(runs):
            client = SamplingServer(fault, seed).client()
            plan = SamplingPlan(seed=seed, concurrency=1)
            found = judge_sampling(client, reference, exact, prompts, plan)
            failed += any(finding.verdict == "defect" for finding in found)
            (total,) = [f for f in found if f.name == "distribution, all prompts"]
            detectable = total.numbers["detectable_tv"]
        print(f"{fault or 'right'}: {failed} of {runs} runs fail; total variation found: {detectable:.3f}")


@click.command(help=__doc__)
@click.option("--runs", type=click.IntRange(1), default=20, show_default=True)
@click.option("--tokens", type=click.IntRange(1), default=128, show_default=True)
@click.option("--servers", type=click.IntRange(10), default=200, show_default=True)
@click.option("--fp8", type=click.Path(path_type=Path), help="An FP8 checkpoint of the demo target.")
def main(runs: int, tokens: int, servers: int, fp8: Path | None) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    gain(runs, tokens)
    noise()
    if fp8:
        fp8_noise(fp8)
    alarms(servers)


if __name__ == "__main__":
    main()
