"""Greedy tokens that need no look between them: several passes in one compiled call, the same answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cpu_checkpoints import SIZES, copy_checkpoint, write_random
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, Qwen2Config

from trtspec.engines.cpu.engine import Engine
from trtspec.engines.cpu.model import Segment
from trtspec.engines.cpu.request import Chunk, Request
from trtspec.engines.cpu.sampling import SamplingParams

VOCAB = 61
PROMPT = [7, 21, 3, 44, 9, 12, 50, 8]
LONGEST_RUN = 8  # max_draft_len of these engines

token = st.integers(0, VOCAB - 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random(tmp_path_factory.mktemp("llama"), LlamaConfig(**SIZES))


@pytest.fixture(scope="module")
def engine(folder: Path) -> Engine:
    return Engine(folder)


def answers(engine: Engine, requests: list[Request]) -> list[Chunk]:
    """The answers to requests in flight together, each as one chunk."""
    sequences = [engine.submit(request) for request in requests]
    chunks: dict[int, list[Chunk]] = {id(sequence): [] for sequence in sequences}
    while engine.sequences:
        for sequence, chunk in engine.step():
            chunks[id(sequence)].append(chunk)
    found = [chunks[id(sequence)] for sequence in sequences]
    return [Chunk([t for c in each for t in c.ids], finish_reason=each[-1].finish_reason) for each in found]


def token_by_token(engine: Engine, requests: list[Request]) -> list[Chunk]:
    """The same, each token looked at: whoever streams gets every one by itself."""
    return answers(engine, [replace(request, streaming=True) for request in requests])


@st.composite
def short_requests(draw: st.DrawFn) -> Request:
    return Request(
        input_ids=draw(st.lists(token, min_size=1, max_size=12)),
        max_new_tokens=draw(st.integers(1, LONGEST_RUN)),
        end_id=draw(st.none() | token),
        stop_words=tuple(draw(st.lists(st.lists(token, min_size=1, max_size=2).map(tuple), max_size=3))),
    )


@settings(max_examples=100, deadline=None)
@given(st.lists(short_requests(), min_size=1, max_size=3), token)
def test_runs_give_what_single_steps_give_and_cache_it_right(
    engine: Engine, requests: list[Request], following: int
) -> None:
    found = answers(engine, requests)
    assert found == token_by_token(engine, requests)
    # Each goes on from what the run has left in the cache.
    longer = [
        Request(input_ids=[*request.input_ids, *chunk.ids, following], max_new_tokens=LONGEST_RUN)
        for request, chunk in zip(requests, found, strict=True)
    ]
    continued = answers(engine, longer)
    engine._cache = type(engine._cache)(6, 128)
    assert continued == token_by_token(engine, longer)


@pytest.mark.parametrize("count", range(1, LONGEST_RUN + 1))
def test_what_a_draft_is_asked_for_is_one_step(engine: Engine, count: int) -> None:
    request = Request(input_ids=PROMPT, max_new_tokens=count)
    expected = token_by_token(engine, [request])
    sequence, before = engine.submit(request), engine.computed_rows + engine.reused_rows
    ((sent, chunk),) = engine.step()
    assert (sent, [chunk]) == (sequence, expected)
    assert engine.computed_rows + engine.reused_rows == before + len(PROMPT) + count - 1


def test_no_pass_follows_the_end_of_every_answer(engine: Engine) -> None:
    (alone,) = token_by_token(engine, [Request(input_ids=PROMPT, max_new_tokens=LONGEST_RUN)])
    end = next(i for i, t in enumerate(alone.ids) if t not in alone.ids[:i] and i > 0)
    before = engine.computed_rows + engine.reused_rows
    request = Request(input_ids=PROMPT, max_new_tokens=LONGEST_RUN, end_id=alone.ids[end])
    assert answers(engine, [request]) == [Chunk(alone.ids[: end + 1], finish_reason="end_id")]
    assert engine.computed_rows + engine.reused_rows == before + len(PROMPT) + end


ONE_BY_ONE: list[dict[str, Any]] = [
    {"max_new_tokens": LONGEST_RUN + 1},
    {"streaming": True},
    {"return_log_probs": True},
    {"return_generation_logits": True},
    {"sampling": SamplingParams(temperature=1.0)},
    {"sampling": SamplingParams(repetition_penalty=1.1)},
    {"sampling": SamplingParams(min_tokens=1)},
    {"sampling": SamplingParams(bad_words=((1,),))},
]


@pytest.mark.parametrize("changes", ONE_BY_ONE, ids=lambda changes: next(iter(changes)))
def test_whoever_wants_more_goes_step_by_step_and_so_does_who_is_beside_him(
    engine: Engine, changes: dict[str, Any]
) -> None:
    other = Request(input_ids=PROMPT[::-1], max_new_tokens=4)
    sequences = [
        engine.submit(replace(Request(input_ids=PROMPT, max_new_tokens=6), **changes)),
        engine.submit(other),
    ]
    engine.step()
    assert [sequence.new_tokens for sequence in sequences] == [1, 1]
    while engine.sequences:
        engine.step()


def test_a_long_prompt_beside_it_is_not_made_to_wait(tmp_path: Path) -> None:
    sizes = SIZES | {"max_position_embeddings": 2048}
    engine = Engine(write_random(tmp_path, LlamaConfig(**sizes), max_seq_len=2048))
    long = engine.submit(Request(input_ids=PROMPT * 100, max_new_tokens=2))
    short = engine.submit(Request(input_ids=PROMPT, max_new_tokens=4))
    engine.step()
    assert (long.computed, short.new_tokens) == (512, 1)


@pytest.mark.parametrize("value", [0.0, float("nan")])
def test_of_equal_logits_and_of_none_the_first_id_is_taken(
    folder: Path, tmp_path: Path, value: float
) -> None:
    copy = copy_checkpoint(folder, tmp_path / "engine")
    tensors = load_file(copy / "model.safetensors")
    tensors["lm_head.weight"][5:] = value
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    engine, request = Engine(copy), Request(input_ids=PROMPT, max_new_tokens=4)
    assert answers(engine, [request]) == token_by_token(engine, [request])


@pytest.mark.parametrize("sign", [1, -1])
def test_ids_that_only_the_padding_has_are_never_taken(sign: int, tmp_path: Path) -> None:
    """All logits are equal, and with one of the signs less than the zeros of the padding."""
    folder = write_random(tmp_path, Qwen2Config(**SIZES), vocab_size=100)
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"][:] = sign * tensors["lm_head.weight"][0]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    engine, request = Engine(folder), Request(input_ids=PROMPT, max_new_tokens=4)
    assert [chunk.ids for chunk in answers(engine, [request])] == [[0] * 4]


def test_a_run_that_would_leave_the_cache_is_refused(engine: Engine) -> None:
    model: Any = engine._model
    with pytest.raises(IndexError, match="positions up to 128, the cache has 128"):
        model.run_greedily([Segment(0, 120, [1, 2, 3], 1)], [-1], 7)
    assert model.run_greedily([Segment(0, 120, [1, 2, 3], 1)], [-1], 6).shape == (1, 6)
