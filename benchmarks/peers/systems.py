"""What is compared: each system loaded from its folder, as a function from a prompt to an answer.

All load inside their function, so that each needs only its own packages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Question:
    """A prompt to continue greedily, to the full length whatever the model says; draft length 0: plain."""

    prompt: list[int]
    draft_length: int
    new_tokens: int


@dataclass(frozen=True)
class Answer:
    """What was said, how long it took, and how often the models were run where that is known."""

    ids: list[int]
    seconds: float
    target_passes: int | None = None
    draft_passes: int | None = None


Ask = Callable[[Question], Answer]
# Seconds, from any start.
Clock = Callable[[], float]


@contextmanager
def hugging_face(folder: Path, dtype: str, clock: Clock) -> Iterator[Ask]:
    """transformers: generate, and assisted generation with a draft of constant length."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    loader: Any = AutoModelForCausalLM
    models = {
        role: loader.from_pretrained(folder / role, dtype=getattr(torch, dtype)).eval()
        for role in ("target", "draft")
    }
    passes = dict.fromkeys(models, 0)

    def count(role: str) -> Callable[..., None]:
        def counted(*_: object) -> None:
            passes[role] += 1

        return counted

    for role, model in models.items():
        model.generation_config.eos_token_id = None
        model.register_forward_pre_hook(count(role))
    draft = models["draft"]
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0

    def ask(question: Question) -> Answer:
        passes.update(target=0, draft=0)
        draft.generation_config.num_assistant_tokens = question.draft_length
        options = {"assistant_model": draft} if question.draft_length else {}
        started = clock()
        with torch.inference_mode():
            ids = models["target"].generate(
                torch.tensor([question.prompt]),
                attention_mask=torch.ones(1, len(question.prompt), dtype=torch.long),
                max_new_tokens=question.new_tokens,
                do_sample=False,
                pad_token_id=0,
                **options,
            )
        seconds = clock() - started
        return Answer(ids[0, len(question.prompt) :].tolist(), seconds, passes["target"], passes["draft"])

    yield ask


@contextmanager
def onnxruntime(folder: Path, dtype: str, clock: Clock) -> Iterator[Ask]:
    """onnxruntime-genai: a Generator, over the pair's genai_config.json where it drafts."""
    import numpy as np
    import onnxruntime_genai as genai

    plain, speculative = genai.Model(str(folder / "target")), genai.Model(str(folder))

    def ask(question: Question) -> Answer:
        model = speculative if question.draft_length else plain
        started = clock()
        params = genai.GeneratorParams(model)
        params.set_search_options(do_sample=False, max_length=len(question.prompt) + question.new_tokens)
        if question.draft_length:
            params.set_speculative_options(max_draft_tokens=question.draft_length)
        generator = genai.Generator(model, params)
        generator.append_tokens(np.array([question.prompt], dtype=np.int32))
        while not generator.is_done():
            generator.generate_next_token()
        ids = [int(token) for token in generator.get_sequence(0)[len(question.prompt) :]]
        seconds = clock() - started
        if not question.draft_length:
            return Answer(ids, seconds, question.new_tokens, 0)
        stats = generator.get_speculative_stats()
        return Answer(ids, seconds, stats["target_forward_passes"], stats["draft_forward_passes"])

    yield ask


@contextmanager
def openvino(folder: Path, dtype: str, clock: Clock) -> Iterator[Ask]:
    """openvino-genai: the stateful pipeline plain, continuous batching (which drafting needs) with a draft.

    Everything is told to be float32: by default the cache is 8-bit and the arithmetic what the processor
    does fastest.
    """
    import numpy as np
    import openvino_genai as genai
    from openvino import Tensor

    exact = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "INFERENCE_NUM_THREADS": 1}
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size, scheduler.enable_prefix_caching = 1, False
    plain = genai.LLMPipeline(str(folder / "target"), "CPU", ATTENTION_BACKEND="SDPA", **exact)
    speculative = genai.LLMPipeline(
        str(folder / "target"),
        "CPU",
        scheduler_config=scheduler,
        draft_model=genai.draft_model(str(folder / "draft"), "CPU", **exact),
        **exact,
    )

    def ask(question: Question) -> Answer:
        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = question.new_tokens, True, False
        if question.draft_length:
            config.num_assistant_tokens = question.draft_length
        ids = np.array([question.prompt], dtype=np.int64)
        started = clock()
        inputs = genai.TokenizedInputs(Tensor(ids), Tensor(np.ones_like(ids)))
        result = (speculative if question.draft_length else plain).generate(inputs, config)
        seconds = clock() - started
        answer = [int(token) for token in result.tokens[0]]
        return Answer(answer, seconds, *((None, None) if question.draft_length else (len(answer), 0)))

    yield ask


@contextmanager
def trtspec_engine(folder: Path, dtype: str, clock: Clock) -> Iterator[Ask]:
    """Our engines in process: each round sends the whole sequence again, as the server's loop does."""
    import torch

    from trtspec.engines.cpu.engine import Engine
    from trtspec.engines.cpu.request import Request

    torch.set_num_threads(1)
    target, draft = Engine(folder / "target"), Engine(folder / "draft")

    def tokens(engine: Engine, ids: list[int], count: int, draft_ids: list[int]) -> list[int]:
        request = Request(input_ids=ids, max_new_tokens=count, draft_ids=draft_ids)
        return [token for chunk in engine.generate(request) for token in chunk.ids]

    def ask(question: Question) -> Answer:
        for engine in (target, draft):
            _forget(lambda prompt, engine=engine: tokens(engine, prompt, 1, []))
        ids, end = list(question.prompt), len(question.prompt) + question.new_tokens
        rounds = proposals = 0
        started = clock()
        while question.draft_length and len(ids) < end:
            count = min(question.draft_length, end - len(ids) - 1)
            proposed = tokens(draft, ids, count, []) if count else []
            ids += tokens(target, ids, len(proposed) + 1, proposed)
            rounds, proposals = rounds + 1, proposals + count
        if not question.draft_length:
            ids += tokens(target, ids, question.new_tokens, [])
            rounds = question.new_tokens
        seconds = clock() - started
        return Answer(ids[len(question.prompt) :], seconds, rounds, proposals)

    yield ask


@contextmanager
def trtspec_served(folder: Path, dtype: str, clock: Clock) -> Iterator[Ask]:
    """The pair built, written as a repository and served by a real Triton, asked by the client over gRPC."""
    from trtspec.client import Client
    from trtspec.triton_repo.server import FREE_PORTS, serve

    with serve(folder, FREE_PORTS) as server, Client(server.grpc_url) as client:

        def ask(question: Question) -> Answer:
            _forget(lambda prompt: client.generate(prompt, max_tokens=4, num_draft_tokens=2))
            started = clock()
            options: dict[str, Any] = {"num_draft_tokens": question.draft_length}
            with client.stream(question.prompt, max_tokens=question.new_tokens, **options) as stream:
                result = stream.result
            seconds = clock() - started
            return Answer(list(result.token_ids), seconds)

        yield ask


def _forget(ask: Callable[[list[int]], object]) -> None:
    """Ask short things until the engine's cache, of two sequences, holds no earlier prompt."""
    for token in (1, 2):
        ask([token])


@contextmanager
def memory(folder: Path, dtype: str, clock: Clock) -> Iterator[Ask]:
    """No model: a product of a float32 matrix of 1 GiB and a vector, for the bandwidth decoding can have."""
    import torch

    torch.set_num_threads(1)
    matrix, vector = torch.ones(1 << 14, 1 << 14), torch.ones(1 << 14)

    def ask(question: Question) -> Answer:
        started = clock()
        matrix @ vector
        return Answer([], clock() - started)

    yield ask


SYSTEMS = {
    system.__name__: system
    for system in (hugging_face, onnxruntime, openvino, trtspec_engine, trtspec_served, memory)
}
