"""What verify costs and what it can see.

    python benchmarks/verify.py [--runs 5] [--tokens 128] [--servers 200]

Three tables: one teacher-forced pass over an answer against generating it (transformers, float32, the
demo pair's target, one thread; medians); what rounding does to its logits in each dtype, against the
bound; and how often the sampling tests fail a right server and wrong ones (scripted, a model of twelve
tokens, the default plan).
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

from trtspec.client.verify import DEFAULT_PROMPTS, HuggingFaceReference, Noise
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
        bound = Noise(dtype, reference.layers, reference.width)
        off = (found - right).std(-1) / right.std(-1) / bound.relative
        changed = np.flatnonzero(found.argmax(-1) != right.argmax(-1))
        gaps = [right[n].max() - right[n][found[n].argmax()] for n in changed]
        share = max((gap / bound.bound(right[n]) for gap, n in zip(gaps, changed, strict=True)), default=0.0)
        print(f"{dtype}: noise {off.mean():.2f} ε on average, {off.max():.2f} at most; {len(gaps)} of")
        print(f"  {len(right)} choices changed, by at most {share:.2f} of the bound")


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
def main(runs: int, tokens: int, servers: int) -> None:
    torch.set_num_threads(1)
    gain(runs, tokens)
    noise()
    alarms(servers)


if __name__ == "__main__":
    main()
