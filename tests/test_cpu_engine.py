"""The engine: transformers' answers, the same for every draft length, every batch and every cache state."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cpu_checkpoints import (
    SIZES,
    copy_checkpoint,
    greedy,
    reference,
    reference_logits,
    write_random,
    write_settings,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from trtspec.engines.cpu.architecture import read_architecture
from trtspec.engines.cpu.engine import Engine
from trtspec.engines.cpu.errors import EngineLoadError, RequestError
from trtspec.engines.cpu.model import Model
from trtspec.engines.cpu.request import Chunk, Request
from trtspec.engines.cpu.sampling import SamplingParams
from trtspec.engines.cpu.weights import Weights

VOCAB = 61
PROMPT = [7, 21, 3, 44, 9, 12, 50, 8]

token = st.integers(0, VOCAB - 1)
words = st.lists(st.lists(token, min_size=1, max_size=2).map(tuple), max_size=2).map(tuple)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random(tmp_path_factory.mktemp("llama"), LlamaConfig(**SIZES))


@pytest.fixture(scope="module")
def engine(folder: Path) -> Engine:
    return Engine(folder)


@pytest.fixture(scope="module")
def bfloat16_engine(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return Engine(copy_checkpoint(folder, tmp_path_factory.mktemp("bf16") / "engine", dtype="bfloat16"))


def run(engine: Engine, request: Request) -> Chunk:
    """The whole answer as one chunk."""
    chunks = list(engine.generate(request))
    assert [chunk.finished for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    return merged(chunks)


def merged(chunks: list[Chunk]) -> Chunk:
    log_probs = [p for chunk in chunks for p in chunk.log_probs or []]
    logits = [chunk.logits for chunk in chunks if chunk.logits is not None]
    return Chunk(
        ids=[token for chunk in chunks for token in chunk.ids],
        log_probs=log_probs or None,
        logits=np.concatenate(logits) if logits else None,
        finish_reason=chunks[-1].finish_reason,
    )


Propose = Callable[[list[int], int], list[int]]


def speculate(engine: Engine, request: Request, propose: Propose, draft_length: int) -> Chunk:
    """The answer in rounds, each of which resends the whole sequence, as the serving loop does."""
    ids, chunks = list(request.input_ids), []
    while (new := len(ids) - len(request.input_ids)) < request.max_new_tokens:
        draft = propose(ids, min(draft_length, request.max_new_tokens - new - 1))
        sampling = replace(request.sampling, min_tokens=max(0, request.sampling.min_tokens - new))
        round_ = replace(
            request, input_ids=ids, draft_ids=draft, max_new_tokens=len(draft) + 1, sampling=sampling
        )
        chunks.append(run(engine, round_))
        ids = ids + chunks[-1].ids
        if chunks[-1].finish_reason in ("end_id", "stop_words"):
            break
    return merged(chunks)


def mostly_right(answer: list[int], prompt_length: int, wrong: float, seed: int) -> Propose:
    """A draft that knows the answer and lies with probability `wrong`, reproducibly at each position."""

    def propose(ids: list[int], count: int) -> list[int]:
        start = len(ids) - prompt_length
        known = (answer[start:] + [0] * count)[:count]
        lies = [random.Random(seed * 1000 + start + index) for index in range(count)]
        return [
            lie.randrange(VOCAB) if lie.random() < wrong else t for lie, t in zip(lies, known, strict=True)
        ]

    return propose


@st.composite
def requests(draw: st.DrawFn) -> Request:
    bias = draw(st.none() | st.lists(st.floats(-2, 2, width=16), min_size=VOCAB, max_size=VOCAB))
    prompt = draw(st.lists(token, min_size=1, max_size=12))
    sampling = SamplingParams(
        temperature=draw(st.sampled_from([None, 0.7, 1.3])),
        top_k=draw(st.sampled_from([None, 5])),
        top_p=draw(st.sampled_from([None, 0.9])),
        seed=draw(st.integers(0, 2**64 - 1)),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3])),
        presence_penalty=draw(st.sampled_from([0.0, 0.6, -0.5])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.4])),
        prompt_ignore_length=draw(st.sampled_from([0, len(prompt)])),
        min_tokens=draw(st.integers(0, 6)),
        bad_words=draw(words),
        embedding_bias=None if bias is None else np.array(bias, dtype=np.float32),
    )
    stops: list[tuple[int, ...]] = draw(st.lists(token.map(lambda t: (t,)), max_size=2))
    return Request(
        input_ids=prompt,
        max_new_tokens=draw(st.integers(1, 14)),
        end_id=draw(st.none() | token),
        stop_words=tuple(stops),
        sampling=sampling,
        return_log_probs=True,
        return_generation_logits=True,
    )


def same(one: Chunk, other: Chunk) -> bool:
    """Equal to the last bit."""
    assert one.logits is not None
    assert other.logits is not None
    return (
        one.ids == other.ids and one.log_probs == other.log_probs and np.array_equal(one.logits, other.logits)
    )


@settings(max_examples=60, deadline=None)
@given(requests(), st.integers(0, 8), st.sampled_from([0.0, 0.3, 1.0]), st.integers(0, 999))
def test_the_answer_does_not_depend_on_the_draft(
    engine: Engine, request: Request, draft_length: int, wrong: float, seed: int
) -> None:
    alone = run(engine, request)
    propose = mostly_right(alone.ids, len(request.input_ids), wrong, seed)
    assert same(speculate(engine, request, propose, draft_length), alone)


@pytest.mark.parametrize("draft_length", range(9))
@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(temperature=0.9, seed=5)])
def test_the_answer_is_the_same_for_every_draft_length(
    engine: Engine, sampling: SamplingParams, draft_length: int
) -> None:
    request = Request(
        input_ids=PROMPT,
        max_new_tokens=40,
        sampling=sampling,
        return_log_probs=True,
        return_generation_logits=True,
    )
    alone = run(engine, request)
    propose = mostly_right(alone.ids, len(PROMPT), 0.25, seed=draft_length)
    assert same(speculate(engine, request, propose, draft_length), alone)


@pytest.mark.parametrize("draft_length", [1, 4, 8])
def test_bfloat16_answers_do_not_depend_on_the_draft_length_either(
    bfloat16_engine: Engine, draft_length: int
) -> None:
    request = Request(
        input_ids=PROMPT, max_new_tokens=40, return_log_probs=True, return_generation_logits=True
    )
    alone = run(bfloat16_engine, request)
    propose = mostly_right(alone.ids, len(PROMPT), 0.25, seed=draft_length)
    assert same(speculate(bfloat16_engine, request, propose, draft_length), alone)


def test_good_draft_tokens_are_verified_in_one_pass(engine: Engine) -> None:
    answer = run(engine, Request(input_ids=PROMPT, max_new_tokens=9)).ids
    before = engine.computed_rows
    sequence = engine.submit(Request(input_ids=PROMPT, draft_ids=answer[:8], max_new_tokens=9))
    assert [(s, chunk.ids) for s, chunk in engine.step()] == [(sequence, answer)]
    assert engine.computed_rows == before + 1 + 8


def test_a_refused_draft_ends_the_request_with_the_targets_own_token(engine: Engine) -> None:
    answer = run(engine, Request(input_ids=PROMPT, max_new_tokens=4)).ids
    draft = [answer[0], (answer[1] + 1) % VOCAB, answer[2]]
    chunk = run(engine, Request(input_ids=PROMPT, draft_ids=draft, max_new_tokens=20))
    assert (chunk.ids, chunk.finish_reason) == (answer[:2], "verified")


def test_rejection_sampling_keeps_every_token_drawn_from_the_targets_own_logits(engine: Engine) -> None:
    sampling = SamplingParams(temperature=1.2, seed=77)
    drawn = run(
        engine,
        Request(input_ids=PROMPT, max_new_tokens=5, sampling=sampling, return_generation_logits=True),
    )
    request = Request(
        input_ids=PROMPT,
        max_new_tokens=6,
        draft_ids=drawn.ids,
        draft_logits=drawn.logits,
        sampling=replace(sampling, seed=78),
    )
    assert run(engine, request).ids[:5] == drawn.ids


CONFIGS: list[Any] = [
    LlamaConfig(**SIZES, tie_word_embeddings=True),
    MistralConfig(**SIZES, sliding_window=None),
    Qwen2Config(**SIZES),
    Qwen3Config(**SIZES, head_dim=16),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.model_type)
def test_greedy_answers_equal_transformers_generate(config: Any, tmp_path: Path) -> None:
    folder = write_random(tmp_path, config)
    answer = run(Engine(folder), Request(input_ids=PROMPT, max_new_tokens=40)).ids
    assert answer == greedy(reference(folder), PROMPT, 40)


@pytest.mark.parametrize("part", ["target", "draft"])
def test_greedy_answers_of_the_demo_pair_equal_transformers_generate(
    part: str, demo_pair: Path, tmp_path: Path
) -> None:
    folder = copy_checkpoint(demo_pair / part, tmp_path / part)
    prompt = list(range(500, 540))
    answer = run(Engine(folder), Request(input_ids=prompt, max_new_tokens=24)).ids
    assert answer == greedy(reference(folder), prompt, 24)


def test_log_probs_and_logits_are_those_of_the_raw_model(folder: Path, engine: Engine) -> None:
    request = Request(
        input_ids=PROMPT,
        max_new_tokens=20,
        sampling=SamplingParams(temperature=2.0, top_k=4, repetition_penalty=1.5, seed=1),
        return_log_probs=True,
        return_generation_logits=True,
    )
    chunk = run(engine, request)
    expected = reference_logits(reference(folder), PROMPT + chunk.ids)[len(PROMPT) - 1 : -1]
    assert chunk.logits == pytest.approx(expected.numpy(), abs=1e-4)
    log_probs = expected.log_softmax(-1)[range(20), chunk.ids]
    assert chunk.log_probs == pytest.approx(log_probs.tolist(), abs=1e-4)


def submit_all(engine: Engine, asked: list[Request]) -> list[Chunk]:
    """Run requests in flight together, a new one joining at every step."""
    chunks: dict[Any, list[Chunk]] = {}
    waiting = list(asked)
    while waiting or engine.sequences:
        if waiting:
            chunks[engine.submit(waiting.pop(0))] = []
        for sequence, chunk in engine.step():
            chunks[sequence].append(chunk)
    return [merged(parts) for parts in chunks.values()]


def varied_requests() -> list[Request]:
    draws = random.Random(3)
    return [
        Request(
            input_ids=[draws.randrange(VOCAB) for _ in range(draws.randint(1, 30))],
            max_new_tokens=draws.randint(1, 25),
            draft_ids=[draws.randrange(VOCAB) for _ in range(draws.choice([0, 0, 3]))],
            sampling=SamplingParams(temperature=draws.choice([None, 1.0]), seed=number),
            return_log_probs=True,
            return_generation_logits=True,
            streaming=bool(number % 2),
        )
        for number in range(9)
    ]


def test_requests_in_flight_together_get_the_bits_they_get_alone(folder: Path) -> None:
    asked = varied_requests()
    engine = Engine(folder)
    together = submit_all(engine, asked)
    alone = [run(Engine(folder), request) for request in asked]
    assert all(same(one, other) for one, other in zip(together, alone, strict=True))


def test_no_more_requests_run_at_once_than_the_engine_was_made_for(folder: Path) -> None:
    engine = Engine(folder)
    started = [engine.submit(Request(input_ids=[t], max_new_tokens=3, streaming=True)) for t in range(5)]
    assert [sequence for sequence, _ in engine.step()] == started[:3]


def test_a_long_prompt_does_not_hold_back_answers_in_flight(folder: Path, tmp_path: Path) -> None:
    engine = Engine(copy_checkpoint(folder, tmp_path / "long", max_seq_len=1400))
    running = engine.submit(Request(input_ids=PROMPT, max_new_tokens=20, streaming=True))
    engine.step()
    prompts = [[start, *range(60), *([7, 9, 4] * 400)] for start in (1, 2)]
    long = [engine.submit(Request(input_ids=prompt, max_new_tokens=2)) for prompt in prompts]
    finished: list[Any] = []
    steps = 0
    while len(finished) < 2:
        sent = engine.step()
        assert running in [sequence for sequence, _ in sent]
        finished += [sequence for sequence, _ in sent if sequence in long]
        steps += 1
    assert finished == long
    expected = reference(folder)
    assert long[0].tokens[-2:] == greedy(expected, prompts[0], 2)
    assert steps > 3


def test_nothing_cached_is_computed_again(folder: Path) -> None:
    engine = Engine(folder)
    first = run(engine, Request(input_ids=PROMPT, max_new_tokens=6)).ids
    assert (engine.computed_rows, engine.reused_rows) == (len(PROMPT) + 5, 0)
    continued = [*PROMPT, *first, 33, 34]
    run(engine, Request(input_ids=continued, max_new_tokens=1))
    assert engine.reused_rows == len(PROMPT) + 5
    assert engine.computed_rows == len(PROMPT) + 5 + 3


def test_a_reused_prefix_gives_the_answer_of_a_fresh_engine(folder: Path) -> None:
    engine = Engine(folder)
    prompts = [PROMPT, [*PROMPT, 1, 2, 3], [*PROMPT[:5], 40, 41], [*PROMPT, 1, 2, 9, 9], PROMPT[:3]]
    for prompt in prompts:
        request = Request(input_ids=prompt, max_new_tokens=12)
        assert run(engine, request).ids == run(Engine(folder), request).ids
    assert engine.reused_rows == 8 + 5 + 10 + 2


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_a_cancelled_request_frees_its_slot_and_sends_nothing_more(folder: Path, steps: int) -> None:
    engine = Engine(folder)
    endless = [engine.submit(Request(input_ids=[t], max_new_tokens=100, streaming=True)) for t in range(3)]
    for _ in range(steps):
        engine.step()
    waiting = engine.submit(Request(input_ids=PROMPT, max_new_tokens=2, streaming=True))
    engine.cancel(endless[1])
    assert endless[1].finish_reason == "cancelled"
    sent = [sequence for sequence, _ in engine.step()]
    assert endless[1] not in sent
    assert waiting in sent


def test_cancelling_what_has_ended_changes_nothing(engine: Engine) -> None:
    sequence = engine.submit(Request(input_ids=PROMPT, max_new_tokens=1))
    engine.step()
    engine.cancel(sequence)
    assert sequence.finish_reason == "length"


def test_closing_the_iterator_of_generate_cancels(engine: Engine) -> None:
    chunks = engine.generate(Request(input_ids=PROMPT, max_new_tokens=50, streaming=True))
    next(chunks)
    chunks.close()  # type: ignore[attr-defined]
    assert engine.sequences == []


def test_a_reset_drops_every_request_and_the_engine_goes_on(folder: Path) -> None:
    engine = Engine(folder)
    request = Request(input_ids=PROMPT, max_new_tokens=20)
    expected = run(engine, request).ids
    dropped = [engine.submit(request) for _ in range(5)]
    engine.step()
    assert engine.reset() == dropped
    assert engine.sequences == []
    assert run(engine, request).ids == expected


@pytest.mark.parametrize("streaming", [True, False])
def test_streaming_is_one_chunk_a_token_and_else_one_in_all(engine: Engine, streaming: bool) -> None:
    request = Request(input_ids=PROMPT, max_new_tokens=6, streaming=streaming)
    lengths = [len(chunk.ids) for chunk in engine.generate(request)]
    assert lengths == ([1] * 6 if streaming else [6])


def test_the_end_id_ends_the_answer_and_is_part_of_it(engine: Engine) -> None:
    answer = run(engine, Request(input_ids=PROMPT, max_new_tokens=12)).ids
    end = answer[5]
    chunk = run(engine, Request(input_ids=PROMPT, max_new_tokens=12, end_id=end))
    assert (chunk.ids, chunk.finish_reason) == (answer[: answer.index(end) + 1], "end_id")


def test_an_accepted_end_id_ends_the_answer_within_a_draft(folder: Path, engine: Engine) -> None:
    answer = run(engine, Request(input_ids=PROMPT, max_new_tokens=8)).ids
    end = answer[2]
    chunk = run(engine, Request(input_ids=PROMPT, max_new_tokens=9, draft_ids=answer, end_id=end))
    assert chunk.ids == answer[: answer.index(end) + 1]
    following = [*PROMPT, *chunk.ids, 5]
    # What was computed beyond the end must not be taken for the continuation.
    continued = Request(input_ids=following, max_new_tokens=4)
    assert run(engine, continued).ids == run(Engine(folder), continued).ids


@pytest.mark.parametrize("length", [1, 2, 3])
def test_generation_stops_after_a_stop_word_of_any_length(engine: Engine, length: int) -> None:
    answer = run(engine, Request(input_ids=PROMPT, max_new_tokens=12)).ids
    word = tuple(answer[4 : 4 + length])
    chunk = run(engine, Request(input_ids=PROMPT, max_new_tokens=12, stop_words=((VOCAB - 1, 0), word)))
    assert chunk.finish_reason == "stop_words"
    assert tuple(chunk.ids[-length:]) == word
    assert len(chunk.ids) <= 4 + length


def test_a_request_that_leaves_no_token_fails_alone(engine: Engine) -> None:
    impossible = SamplingParams(bad_words=tuple((t,) for t in range(VOCAB)))
    failing = engine.submit(Request(input_ids=[1], max_new_tokens=3, sampling=impossible))
    healthy = engine.submit(Request(input_ids=[2], max_new_tokens=1))
    sent = dict(engine.step())
    assert isinstance(sent[failing].error, RequestError)
    assert len(sent[healthy].ids) == 1
    assert engine.sequences == []


BIAS = np.zeros(VOCAB, dtype=np.float32)
NAN_BIAS = np.full(VOCAB, np.nan, dtype=np.float32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_ids": []}, "input_ids is empty"),
        ({"input_ids": [0, 61]}, r"input_ids holds 61, the vocabulary is 0\.\.60"),
        ({"input_ids": [-1]}, "input_ids holds -1"),
        ({"draft_ids": [99]}, "draft_input_ids holds 99"),
        ({"end_id": 61}, "end_id holds 61"),
        ({"stop_words": ((1, 70),)}, "stop_words_list holds 70"),
        ({"stop_words": ((),)}, "stop_words_list holds an empty word"),
        ({"max_new_tokens": 0}, "request_output_len is 0, expected at least 1"),
        ({"max_new_tokens": 128}, "1 prompt ids and 128 more exceed max_seq_len 128"),
        ({"input_ids": [1] * 125, "draft_ids": [1] * 8}, "exceed max_seq_len"),
        ({"draft_ids": [1] * 9}, "9 draft tokens, the engine was made for at most 8"),
        ({"draft_logits": np.zeros((1, VOCAB))}, r"draft_logits is \[1, 61\], expected \[0, 61\]"),
        ({"draft_ids": [1], "draft_logits": np.zeros((1, 3))}, r"is \[1, 3\], expected \[1, 61\]"),
    ],
)
def test_a_request_that_cannot_be_answered_is_refused(
    engine: Engine, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        engine.submit(replace(Request(input_ids=[1], max_new_tokens=1), **change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": -0.1}, "temperature is -0.1, expected 0 or more"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_p": 0.0}, r"runtime_top_p is 0\.0, expected a value in \(0, 1\]"),
        ({"top_p": 1.1}, "runtime_top_p is 1.1"),
        ({"top_k": -1}, "runtime_top_k is -1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0, expected more than 0"),
        ({"presence_penalty": float("nan")}, "presence_penalty is nan"),
        ({"frequency_penalty": float("inf")}, "frequency_penalty is inf"),
        ({"min_tokens": -1}, "min_tokens is -1"),
        ({"prompt_ignore_length": -1}, "prompt_ignore_length is -1"),
        ({"seed": 2**64}, "seed is"),
        ({"bad_words": ((),)}, "bad_words_list holds an empty word"),
        ({"embedding_bias": BIAS[:5]}, r"embedding_bias is \[5\], expected \[61\]"),
        ({"embedding_bias": NAN_BIAS}, "embedding_bias is NaN or infinite"),
    ],
)
def test_a_sampling_option_out_of_its_range_is_refused(
    engine: Engine, change: dict[str, Any], message: str
) -> None:
    request = Request(input_ids=[1], max_new_tokens=1, sampling=SamplingParams(**change))
    with pytest.raises(RequestError, match=message):
        engine.submit(request)


def test_every_fault_of_a_request_is_named_at_once(engine: Engine) -> None:
    request = Request(input_ids=[], max_new_tokens=0, sampling=SamplingParams(top_p=2.0, top_k=-2))
    with pytest.raises(RequestError, match=r"input_ids.*request_output_len.*runtime_top_p.*runtime_top_k"):
        engine.submit(request)


def test_a_request_may_fill_the_engine_to_its_last_position(engine: Engine) -> None:
    assert len(run(engine, Request(input_ids=[3] * 120, max_new_tokens=8)).ids) == 8


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dtype": "float16"}, r"engine\.json: dtype is 'float16', expected one of float32, bfloat16"),
        ({"max_seq_len": "many"}, r"engine\.json: .* not a number"),
        ({"max_batch_size": 0}, r"engine\.json: sizes .* leave no room"),
    ],
)
def test_settings_that_cannot_be_run_are_refused(
    folder: Path, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    copy = copy_checkpoint(folder, tmp_path / "copy")
    write_settings(copy, **settings)
    with pytest.raises(EngineLoadError, match=message):
        Engine(copy)


@pytest.mark.parametrize("name", ["engine.json", "config.json"])
def test_a_file_that_is_missing_or_broken_is_named(folder: Path, tmp_path: Path, name: str) -> None:
    copy = copy_checkpoint(folder, tmp_path / "copy")
    (copy / name).write_text("{")
    with pytest.raises(EngineLoadError, match=f"{name}: not JSON"):
        Engine(copy)
    (copy / name).write_text(json.dumps([]))
    with pytest.raises(EngineLoadError, match=f"{name}: expected a JSON object"):
        Engine(copy)
    (copy / name).unlink()
    with pytest.raises(EngineLoadError, match=f"{name}: not there"):
        Engine(copy)


def test_sharded_checkpoints_load_like_whole_ones(folder: Path, engine: Engine, tmp_path: Path) -> None:
    sharded = copy_checkpoint(folder, tmp_path / "sharded")
    (sharded / "model.safetensors").unlink()
    reference(folder).save_pretrained(sharded, max_shard_size="40KB")
    assert len(list(sharded.glob("*.safetensors"))) > 1
    request = Request(
        input_ids=PROMPT, max_new_tokens=8, return_generation_logits=True, return_log_probs=True
    )
    assert same(run(Engine(sharded), request), run(Engine(folder), request))


@pytest.fixture(scope="module")
def broken_token(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine folder in which one id's embedding is NaN; the head is another matrix."""
    copy = copy_checkpoint(folder, tmp_path_factory.mktemp("broken") / "engine")
    tensors = load_file(copy / "model.safetensors")
    tensors["model.embed_tokens.weight"][40] = float("nan")
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    return copy


def test_a_draft_token_without_finite_numbers_changes_no_token_before_it(
    folder: Path, broken_token: Path
) -> None:
    request = Request(input_ids=[5, 6, 7], max_new_tokens=1, return_log_probs=True)
    sound = run(Engine(folder), request)
    broken = run(Engine(broken_token), replace(request, max_new_tokens=2, draft_ids=[40]))
    assert (broken.ids[:1], (broken.log_probs or [])[:1]) == (sound.ids, sound.log_probs)


def test_a_token_without_finite_numbers_does_not_reach_the_next_request(
    folder: Path, broken_token: Path
) -> None:
    engine = Engine(broken_token)
    run(engine, Request(input_ids=[5, 6, 40], max_new_tokens=1))
    request = Request(input_ids=[5, 6, 7], max_new_tokens=1, return_log_probs=True)
    assert run(engine, request) == run(Engine(folder), request)
    assert engine.reused_rows == 2


@pytest.mark.parametrize("max_batch_size", [10**12, 10**20])
@pytest.mark.parametrize("hidden_act", ["silu", "gelu"])
def test_slots_that_no_machine_has_room_for_are_refused(
    max_batch_size: int, hidden_act: str, folder: Path, tmp_path: Path
) -> None:
    """With gelu it is transformers that computes the model."""
    copy = copy_checkpoint(folder, tmp_path / "copy", max_batch_size=max_batch_size)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"hidden_act": hidden_act}))
    with pytest.raises(EngineLoadError, match=rf"^engine\.json: {2 * max_batch_size} slots of 128 tokens"):
        Engine(copy)


def test_a_cache_that_there_is_no_memory_for_is_refused_with_its_size(
    folder: Path,
) -> None:
    architecture = read_architecture(json.loads((folder / "config.json").read_text()), 128)
    assert architecture is not None
    with pytest.raises(EngineLoadError, match=r"2000000000000 slots of 128 tokens takes [\d,]+ GB, .*"):
        Model(architecture, Weights(folder, torch.float32), slots=2 * 10**12, max_seq_len=128)
