"""The parts of the public model over the LLM API that need no server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtspec.triton_repo.llm_api.acceptance import Drafted, speculation_of
from trtspec.triton_repo.llm_api.capabilities import Capabilities
from trtspec.triton_repo.llm_api.sampling import sampling_keywords
from trtspec.triton_repo.speculation.request import GenerationRequest, RequestError, Sampling

ALL = Capabilities(max_draft_len=4, fixed_length=True, one_engine=False, samples=True, penalties=True)
PLAIN = GenerationRequest(prompt_ids=(5, 6), max_tokens=9, num_draft_tokens=4, eos_ids=(2,))


def with_sampling(**values: Any) -> GenerationRequest:
    return replace(PLAIN, sampling=Sampling(**values))


def test_a_pair_that_is_greedy_refuses_to_sample_and_nothing_else() -> None:
    greedy = replace(ALL, samples=False)
    greedy.check(PLAIN)
    greedy.check(with_sampling(temperature=0.0))
    greedy.check(with_sampling(top_k=1, temperature=0.7))
    for values in ({"temperature": 0.7}, {"top_k": 3}, {"top_p": 0.9}):
        with pytest.raises(RequestError, match="built with --sampling greedy"):
            greedy.check(with_sampling(**values))


def test_penalties_are_refused_by_name_where_they_would_be_ignored() -> None:
    without = replace(ALL, penalties=False)
    without.check(with_sampling(repetition_penalty=1.0, presence_penalty=0.0))
    for name in ("repetition_penalty", "presence_penalty", "frequency_penalty"):
        with pytest.raises(RequestError, match=name):
            without.check(with_sampling(**{name: 0.5}))
        ALL.check(with_sampling(**{name: 0.5}))


def test_every_fault_is_said_at_once() -> None:
    request = replace(PLAIN, num_draft_tokens=1, use_draft_logits=True, return_logits=True)
    with pytest.raises(
        RequestError, match=r"num_draft_tokens is 1.*return_generation_logits, use_draft_logits"
    ):
        ALL.check(request)


def test_a_minimum_is_refused_only_where_draft_and_target_are_one_engine() -> None:
    request = replace(PLAIN, min_tokens=2)
    ALL.check(request)
    with pytest.raises(RequestError, match="min_tokens"):
        replace(ALL, one_engine=True).check(request)


def test_all_ends_of_text_are_sent() -> None:
    keywords = sampling_keywords(replace(PLAIN, eos_ids=(2, 7, 9)))
    assert (keywords["end_id"], keywords["stop_token_ids"]) == (2, [7, 9])
    assert sampling_keywords(replace(PLAIN, eos_ids=()))["end_id"] == -1


def test_a_temperature_alone_does_not_count_as_greedy() -> None:
    keywords = sampling_keywords(with_sampling(temperature=0.5))
    assert (keywords["temperature"], keywords["top_k"], keywords["top_p"]) == (0.5, 0, 1.0)


@given(st.lists(st.integers(0, 4), max_size=20))
def test_rounds_that_come_one_by_one_are_counted_by_position(kept: list[int]) -> None:
    steps = [1, *(count + 1 for count in kept)]
    drafted = Drafted(4 * len(kept), sum(kept))
    found = speculation_of(steps, drafted, 4)
    assert (found.rounds, found.proposed, found.accepted) == (len(kept), 4 * len(kept), sum(kept))
    assert sum(found.accepted_per_position) == sum(kept)
    assert sum(found.proposed_per_position) == 4 * len(kept)
    assert found.accepted_per_position == sorted(found.accepted_per_position, reverse=True)
    assert speculation_of(steps, None, 4) == found


def test_counts_that_disagree_are_told_without_positions() -> None:
    """Two rounds came in one response."""
    found = speculation_of([1, 6], Drafted(8, 4), 4)
    assert (found.rounds, found.proposed, found.accepted) == (2, 8, 4)
    assert found.accepted_per_position == found.proposed_per_position == []


def test_where_rounds_differ_in_length_only_what_is_said_is_told() -> None:
    found = speculation_of([1, 3, 1], Drafted(6, 2), 4, fixed_length=False)
    assert (found.rounds, found.proposed, found.accepted) == (2, 6, 2)
    assert found.accepted_per_position == []
    unsaid = speculation_of([1, 3, 1], None, 4, fixed_length=False)
    assert (unsaid.rounds, unsaid.proposed, unsaid.accepted) == (0, 0, 0)


def test_an_answer_of_one_token_had_no_round() -> None:
    found = speculation_of([1], None, 4)
    assert (found.rounds, found.proposed, found.accepted, found.accepted_per_position) == (0, 0, 0, [])
