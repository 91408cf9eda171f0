"""Plain and speculative tokens a second: the cpu engine against Hugging Face generate.

    python benchmarks/cpu_engine.py [--prompts 8] [--new-tokens 128] [--json]

The demo pair, float32, greedy, one thread, batch of one. Prompts are 64-token pieces of the Python
standard library's test suite, which the pair was not trained on. All methods take turns on each
prompt; the table shows medians over the prompts. Every answer is compared with Hugging Face's.
"""

from __future__ import annotations

import os

# Before torch is imported: threads that spin would be measured instead.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("KMP_BLOCKTIME", "0")

import json
import platform
import shutil
import statistics
import sysconfig
import tempfile
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import click
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, logging

from trtspec.engines.cpu.engine import Engine
from trtspec.engines.cpu.request import Request

DRAFT_LENGTHS = (3, 5, 8)
PROMPT_TOKENS = 64
SETTINGS = {"dtype": "float32", "max_seq_len": 512, "max_batch_size": 1, "max_draft_len": 8}

Method = Callable[[list[int]], list[int]]


def hugging_face_methods(pair: Path, new_tokens: int) -> dict[str, Method]:
    """Return generate and assisted generation with a constant draft length."""
    loader: Any = AutoModelForCausalLM
    target = loader.from_pretrained(pair / "target", dtype=torch.float32).eval()
    draft = loader.from_pretrained(pair / "draft", dtype=torch.float32).eval()

    for model in (target, draft):
        model.generation_config.eos_token_id = None  # every answer has the same length

    def method(draft_length: int) -> Method:
        options: dict[str, Any] = {"assistant_model": draft} if draft_length else {}

        def generate(prompt: list[int]) -> list[int]:
            draft.generation_config.num_assistant_tokens = draft_length
            draft.generation_config.num_assistant_tokens_schedule = "constant"
            draft.generation_config.assistant_confidence_threshold = 0
            with torch.inference_mode():
                ids = target.generate(
                    torch.tensor([prompt]),
                    attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                    max_new_tokens=new_tokens,
                    do_sample=False,
                    pad_token_id=0,
                    **options,
                )
            answer: list[int] = ids[0, len(prompt) :].tolist()
            return answer

        return generate

    return {name("Hugging Face", length): method(length) for length in (0, *DRAFT_LENGTHS)}


def engine_methods(target: Engine, draft: Engine, new_tokens: int) -> dict[str, Method]:
    """Return the engine plain, and with a loop that resends the whole sequence every round."""

    def tokens(engine: Engine, ids: list[int], count: int, draft_ids: list[int]) -> list[int]:
        request = Request(input_ids=ids, max_new_tokens=count, draft_ids=draft_ids)
        return [token for chunk in engine.generate(request) for token in chunk.ids]

    def method(draft_length: int) -> Method:
        def generate(prompt: list[int]) -> list[int]:
            ids, end = list(prompt), len(prompt) + new_tokens
            while len(ids) < end:
                count = min(draft_length, end - len(ids) - 1)
                proposed = tokens(draft, ids, count, []) if count else []
                ids += tokens(target, ids, len(proposed) + 1 if draft_length else new_tokens, proposed)
            return ids[len(prompt) :]

        return generate

    return {name("trtspec cpu", length): method(length) for length in (0, *DRAFT_LENGTHS)}


def name(system: str, draft_length: int) -> str:
    """Return the row's name in the table."""
    return f"{system}, {f'γ = {draft_length}' if draft_length else 'plain'}"


def prompts(tokenizer: Any, count: int) -> list[list[int]]:
    """Return pieces of the standard library's tests: Python the pair has not seen."""
    library = Path(sysconfig.get_path("stdlib")) / "test"
    sources = sorted(library.glob("test_*.py"), key=lambda path: path.stat().st_size, reverse=True)
    pieces = []
    for source in sources[:: max(1, len(sources) // (2 * count))]:
        ids = tokenizer(source.read_text(errors="ignore")[4000:6000])["input_ids"]
        if len(ids) >= PROMPT_TOKENS:
            pieces.append(ids[:PROMPT_TOKENS])
    return pieces[:count]


def hardware() -> str:
    """Return one line about the machine."""
    model = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    return (
        f"{model}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, torch {torch.__version__}, 1 thread"
    )


def measure(methods: dict[str, Method], asked: list[list[int]]) -> dict[str, list[float]]:
    """Return the seconds of every method on every prompt; warns where an answer is not Hugging Face's."""
    seconds: dict[str, list[float]] = {method: [] for method in methods}
    for round_, prompt in enumerate([asked[0], *asked]):
        answers = {}
        for method, generate in methods.items():
            start = time.perf_counter()
            answers[method] = generate(prompt)
            if round_:  # the first is a warm-up
                seconds[method].append(time.perf_counter() - start)
        expected = answers[name("Hugging Face", 0)]
        for method, answer in answers.items():
            if answer != expected:
                click.echo(f"prompt {round_}: {method} differs from Hugging Face generate", err=True)
    return seconds


def best(rates: dict[str, float], system: str) -> float:
    """Return the system's speculative rate at its best draft length."""
    return max(rates[name(system, length)] for length in DRAFT_LENGTHS)


@click.command()
@click.option("--prompts", "count", default=8, show_default=True, help="How many prompts.")
@click.option("--new-tokens", default=128, show_default=True, help="Tokens of each answer.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(count: int, new_tokens: int, as_json: bool) -> None:
    """Measure the demo pair and print the table."""
    torch.set_num_threads(1)
    quiet: Any = logging
    quiet.set_verbosity_error()
    quiet.disable_progress_bar()
    pair = Path(str(files("trtspec") / "demo_pair"))
    tokenizer: Any = AutoTokenizer.from_pretrained(pair / "target")
    with tempfile.TemporaryDirectory() as folder:
        for part in ("target", "draft"):
            shutil.copytree(pair / part, Path(folder, part))
            Path(folder, part, "engine.json").write_text(json.dumps(SETTINGS))
        target, draft = Engine(Path(folder, "target")), Engine(Path(folder, "draft"))
    methods = hugging_face_methods(pair, new_tokens)
    methods |= engine_methods(target, draft, new_tokens)
    seconds = measure(methods, prompts(tokenizer, count))
    rates = {method: new_tokens / statistics.median(times) for method, times in seconds.items()}
    ratio = best(rates, "trtspec cpu") / best(rates, "Hugging Face")
    if as_json:
        click.echo(json.dumps({"hardware": hardware(), "tokens_per_s": rates, "ratio": ratio}))
        return
    click.echo(f"{hardware()}; {count} prompts of {PROMPT_TOKENS} tokens, {new_tokens} new, float32, greedy")
    for method, rate in rates.items():
        click.echo(f"{method:24} {rate:8.1f} tokens/s")
    click.echo(f"speculative, each at its best γ: trtspec cpu / Hugging Face assisted = {ratio:.2f}")


if __name__ == "__main__":
    main()
