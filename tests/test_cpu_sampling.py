"""The logits pipeline against Hugging Face's processors, and the draws against their distribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare, kstest, pearsonr
from transformers import LogitsProcessorList
from transformers.generation.logits_process import (
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from trtspec.engines.cpu.errors import RequestError
from trtspec.engines.cpu.noise import Purpose, gumbel, uniforms
from trtspec.engines.cpu.sampling import Sampler, SamplingParams

VOCAB = 23
END = 5

# A correct implementation fails each statistical test below with this probability, for its fixed seed.
FALSE_ALARM = 1e-6

token = st.integers(0, VOCAB - 1)
histories = st.lists(token, min_size=1, max_size=30)
# Values that no threshold can fall between by rounding: thousandths.
logits_rows = st.lists(st.integers(-4000, 4000), min_size=VOCAB, max_size=VOCAB, unique=True).map(
    lambda row: torch.tensor(row) / 1000
)


@st.composite
def params(draw: st.DrawFn) -> SamplingParams:
    bias = draw(st.none() | st.lists(st.integers(-3, 3), min_size=VOCAB, max_size=VOCAB))
    return SamplingParams(
        temperature=draw(st.sampled_from([0.4, 1.0, 1.7])),
        top_k=draw(st.sampled_from([None, 0, 2, 7, 100])),
        top_p=draw(st.sampled_from([None, 0.3, 0.85, 1.0])),
        repetition_penalty=draw(st.sampled_from([1.0, 0.8, 1.3])),
        min_tokens=draw(st.integers(0, 4)),
        bad_words=tuple(draw(st.lists(st.lists(token, min_size=1, max_size=3).map(tuple), max_size=3))),
        embedding_bias=None if bias is None else np.array(bias, dtype=np.float32),
    )


def hugging_face(params: SamplingParams, prompt_length: int) -> Any:
    """The processors generate() would build, in its order."""
    processors: list[Any] = []
    if params.embedding_bias is not None:
        biases: Any = {(i,): float(b) for i, b in enumerate(params.embedding_bias) if b != 0}
        processors += [SequenceBiasLogitsProcessor(biases)] if biases else []
    processors.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    if params.bad_words:
        processors.append(NoBadWordsLogitsProcessor([list(word) for word in params.bad_words]))
    if params.min_tokens:
        processors.append(MinNewTokensLengthLogitsProcessor(prompt_length, params.min_tokens, END))
    processors.append(TemperatureLogitsWarper(params.temperature or 1.0))
    if params.top_k:
        processors.append(TopKLogitsWarper(params.top_k))
    if params.top_p is not None and params.top_p < 1:
        processors.append(TopPLogitsWarper(params.top_p))
    return LogitsProcessorList(processors)


@settings(max_examples=150, deadline=None)
@given(params(), histories, st.integers(0, 5), st.lists(token, max_size=3), st.data())
def test_every_row_is_processed_as_hugging_face_would_with_its_history(
    params: SamplingParams, history: list[int], new: int, draft: list[int], data: st.DataObject
) -> None:
    new = min(new, len(history) - 1)
    logits = torch.stack([data.draw(logits_rows) for _ in range(len(draft) + 1)])
    scores = Sampler(params, [END]).scores(logits, history, new, draft)
    for row in range(len(draft) + 1):
        ids = torch.tensor([history + draft[:row]])
        expected = hugging_face(params, len(history) - new)(ids, logits[row : row + 1].clone())[0]
        assert torch.allclose(scores[row], expected, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(histories, st.lists(token, max_size=3), st.integers(0, 10), logits_rows)
def test_presence_and_frequency_penalties_count_what_follows_the_ignored_prompt(
    history: list[int], draft: list[int], ignored: int, row: torch.Tensor
) -> None:
    params = SamplingParams(presence_penalty=0.5, frequency_penalty=0.25, prompt_ignore_length=ignored)
    scores = Sampler(params, []).scores(row.expand(len(draft) + 1, -1), history, 0, draft)
    for index in range(len(draft) + 1):
        counted = (history + draft[:index])[ignored:]
        expected = [
            value - 0.5 * (t in counted) - 0.25 * counted.count(t) for t, value in enumerate(row.tolist())
        ]
        assert scores[index].tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("params", "greedy"),
    [
        (SamplingParams(), True),
        (SamplingParams(seed=3, repetition_penalty=1.2), True),
        (SamplingParams(temperature=0.0, top_p=0.9), True),
        (SamplingParams(top_k=1, temperature=2.0), True),
        (SamplingParams(temperature=1.0), False),
        (SamplingParams(top_p=0.9), False),
        (SamplingParams(top_k=0), False),
    ],
)
def test_nothing_given_temperature_zero_and_top_k_one_are_greedy(
    params: SamplingParams, greedy: bool
) -> None:
    assert params.greedy is greedy


def draws(params: SamplingParams, row: torch.Tensor, count: int) -> list[int]:
    sampler = Sampler(params, [])
    history: list[int] = []
    for _ in range(count):
        history += sampler.extend(row[None], history, 0, [], None)
    return history


def test_draws_have_the_distribution_of_the_softmax() -> None:
    row = torch.randn(VOCAB, generator=torch.Generator().manual_seed(1))
    counts = np.bincount(draws(SamplingParams(temperature=1.0, seed=11), row, 10_000), minlength=VOCAB)
    assert chisquare(counts, row.double().softmax(-1).numpy() * 10_000).pvalue > FALSE_ALARM


def test_draws_stay_within_top_k() -> None:
    row = torch.arange(VOCAB).float() / 4
    assert set(draws(SamplingParams(top_k=3, seed=2), row, 500)) == {VOCAB - 1, VOCAB - 2, VOCAB - 3}


def test_rejection_sampling_gives_the_targets_processed_distribution() -> None:
    """Draft and target use the same seeds, as they do when served: their noise must not conspire."""
    generator = torch.Generator().manual_seed(3)
    target_rows, draft_rows = torch.randn(3, 9, generator=generator), torch.randn(2, 9, generator=generator)
    firsts, seconds = [], []
    for seed in range(5_000):
        sampler = Sampler(SamplingParams(temperature=0.8, top_k=6, seed=seed), [])
        draft = [sampler.extend(draft_rows[k : k + 1], [1] * (4 + k), k, [], None)[0] for k in range(2)]
        tokens = sampler.extend(target_rows, [1] * 4, 0, draft, draft_rows)
        firsts.append(tokens[0])
        seconds += tokens[1:2]
    expected = Sampler(SamplingParams(temperature=0.8, top_k=6), []).scores(target_rows, [1], 0, [])
    for drawn, scores in ((firsts, expected[0]), (seconds, expected[1])):
        kept = scores > float("-inf")
        counts = np.bincount(drawn, minlength=9)
        assert counts[~kept.numpy()].sum() == 0
        frequencies = scores[kept].double().softmax(-1).numpy() * len(drawn)
        assert chisquare(counts[kept.numpy()], frequencies).pvalue > FALSE_ALARM


def test_a_draft_length_chosen_by_what_was_kept_leaves_the_distribution_as_it_is() -> None:
    """Three tokens of a Markov chain: two are drafted after a round that was kept, none after a refusal."""
    count, vocab, length = 1_500, 3, 3
    generator = torch.Generator().manual_seed(4)
    target, draft = torch.randn(2, vocab, vocab, generator=generator)
    answers = []
    for seed in range(count):
        sampler = Sampler(SamplingParams(temperature=1.0, seed=seed), [])
        ids, ahead = [0], 1
        while len(ids) <= length:
            drafted: list[int] = []
            for _ in range(ahead):
                last = [*ids, *drafted][-1]
                drafted += sampler.extend(draft[last][None], [*ids, *drafted], 0, [], None)
            before = [ids[-1], *drafted]
            new = sampler.extend(target[before], ids, 0, drafted, draft[before[:-1]] if drafted else None)
            ids += new
            ahead = 0 if len(new) <= len(drafted) else max(1, 2 * ahead)
        answers.append(ids[1 : length + 1])
    step = target.double().softmax(-1).numpy()
    expected = np.einsum("a,ab,bc->abc", step[0], step, step) * count
    counts = np.zeros_like(expected)
    np.add.at(counts, tuple(np.array(answers).T), 1)
    assert chisquare(counts.ravel(), expected.ravel()).pvalue > FALSE_ALARM


def test_the_noise_of_a_residual_draw_is_not_the_one_the_draft_has_used() -> None:
    """A draft that hardly knows one of two equal tokens: reused noise would favour the token it shuns."""
    target_rows = torch.tensor([[0.05, 0.475, 0.475], [1.0, 1.0, 1.0]]).log()
    draft_rows = torch.tensor([[0.6, 0.395, 0.005]]).log()
    drawn = []
    for seed in range(4000):
        sampler = Sampler(SamplingParams(temperature=1.0, seed=seed), [])
        draft = sampler.extend(draft_rows, [1, 1], 0, [], None)
        drawn.append(sampler.extend(target_rows, [1, 1], 0, draft, draft_rows)[0])
    expected = np.array([0.05, 0.475, 0.475]) * 4000
    assert chisquare(np.bincount(drawn, minlength=3), expected).pvalue > FALSE_ALARM


def test_shared_noise_makes_draft_and_target_agree_more_than_independent_draws_would() -> None:
    generator = torch.Generator().manual_seed(5)
    row = torch.randn(VOCAB, generator=generator)
    other = row + 0.3 * torch.randn(VOCAB, generator=generator)
    count = 4000
    target = draws(SamplingParams(temperature=1.0, seed=8), row, count)
    draft = draws(SamplingParams(temperature=1.0, seed=8), other, count)
    p, q = row.softmax(-1), other.softmax(-1)
    agreement = np.mean([a == b for a, b in zip(target, draft, strict=True)])
    distance = float((p - q).abs().sum() / 2)
    # The bound of Gumbel-max coupling, less five standard errors; independent draws agree far less.
    assert agreement > (1 - distance) / (1 + distance) - 5 * 0.5 / count**0.5
    assert agreement > 2 * float((p * q).sum())


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox 4x64 with ten rounds, from the paper (Salmon et al. 2011)."""
    for _ in range(10):
        high_low = [
            divmod(m * counter[i], 2**64) for m, i in ((0xD2E7470EE14C6C93, 0), (0xCA5A826395121157, 2))
        ]
        (high0, low0), (high1, low1) = high_low
        counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0]
        key = [(key[0] + 0x9E3779B97F4A7C15) % 2**64, (key[1] + 0xBB67AE8584CAA73B) % 2**64]
    return counter


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**31), st.sampled_from(Purpose))
def test_the_noise_is_philox_of_seed_purpose_and_position(seed: int, position: int, purpose: Purpose) -> None:
    blocks = [philox([block, position, 0, 0], [seed, purpose]) for block in (1, 2)]
    expected = [((word >> 11) + 0.5) / 2**53 for word in blocks[0] + blocks[1]]
    assert uniforms(seed, position, purpose, 8).tolist() == expected


@pytest.mark.parametrize("purpose", Purpose)
def test_uniforms_are_uniform_and_open(purpose: Purpose) -> None:
    numbers = np.concatenate([uniforms(1, position, purpose, 50) for position in range(400)])
    assert 0 < numbers.min() < numbers.max() < 1
    assert kstest(numbers, "uniform").pvalue > FALSE_ALARM


def test_purposes_positions_and_seeds_are_uncorrelated() -> None:
    base = uniforms(9, 1, Purpose.SAMPLE, 5000)
    others: Sequence[tuple[int, int, Purpose]] = (
        (9, 1, Purpose.ACCEPT),
        (9, 1, Purpose.RESIDUAL),
        (9, 2, Purpose.SAMPLE),
        (10, 1, Purpose.SAMPLE),
    )
    for seed, position, purpose in others:
        assert pearsonr(base, uniforms(seed, position, purpose, 5000)).pvalue > FALSE_ALARM


def test_the_largest_seed_and_a_far_position_are_numbers_like_any_other() -> None:
    assert np.isfinite(gumbel(2**64 - 1, 2**31, Purpose.SAMPLE, 100)).all()


def test_a_request_that_leaves_no_token_is_refused() -> None:
    params = SamplingParams(bad_words=tuple((t,) for t in range(VOCAB)))
    with pytest.raises(RequestError, match="leave no token to choose"):
        Sampler(params, []).extend(torch.zeros(1, VOCAB), [1], 0, [], None)


def test_a_dead_end_behind_a_refused_draft_token_does_not_matter() -> None:
    params = SamplingParams(bad_words=tuple((3, t) for t in range(VOCAB)))
    row = torch.zeros(2, VOCAB)
    row[:, 4] = 1
    assert Sampler(params, []).extend(row, [1], 0, [3], None) == [4]
