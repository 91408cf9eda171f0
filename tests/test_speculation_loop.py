"""The loop over scripted engines: the answer is the target's, whatever the draft length."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import pytest
from engine_doubles import (
    Engine,
    FailingDouble,
    TargetDouble,
    deltas,
    hashed_rule,
    mostly,
    silent_double,
)
from hypothesis import given
from hypothesis import strategies as st

from trtspec.triton_repo.speculation.detokenizer import Detokenizer
from trtspec.triton_repo.speculation.draft_length import DraftLength, FixedDraftLength, PlainCall, Round, Step
from trtspec.triton_repo.speculation.loop import Call, EngineCallError, Generation, Reply
from trtspec.triton_repo.speculation.output import Delta, Output
from trtspec.triton_repo.speculation.request import (
    ADAPTIVE,
    GenerationRequest,
    Limits,
    RequestError,
    Sampling,
)

RULE = hashed_rule(50)
REQUEST = GenerationRequest(prompt_ids=(1, 2, 3), max_tokens=40, num_draft_tokens=4, eos_ids=())
LIMITS = Limits(vocab_size=50, max_seq_len=100, draft_max_seq_len=100, max_draft_len=8, default_draft_len=4)


def letters(ids: list[int]) -> str:
    """A tokenizer's decode: each id is one or two letters, so stop strings cross token borders."""
    return "".join(chr(97 + i % 26) + ("x" if i >= 26 else "") for i in ids)


def generation(
    request: GenerationRequest,
    *,
    draft_max_seq_len: int = 1000,
    draft_length: DraftLength | None = None,
    chunk_s: float = 1e6,
) -> Generation:
    output = Output(
        Detokenizer(letters),
        max_tokens=request.max_tokens,
        eos_ids=frozenset(request.eos_ids),
        stop_strings=request.stop_strings,
        min_tokens=request.min_tokens,
    )
    return Generation(
        request,
        output,
        draft_max_seq_len=draft_max_seq_len,
        draft_length=draft_length or FixedDraftLength(request.num_draft_tokens),
        chunk_s=chunk_s,
    )


def run(
    made: Generation, request: GenerationRequest, *, target: Engine | None = None, draft: Engine | None = None
) -> list[Delta]:
    end_ids = frozenset(request.eos_ids)
    target = target or TargetDouble(RULE, end_ids)
    draft = draft or TargetDouble(mostly(RULE, 4), end_ids)
    return list(deltas(made, target=target, draft=draft))


def answer(request: GenerationRequest, **engines: Engine) -> Delta:
    return sum(run(generation(request), request, **engines), Delta())


def ids(delta: Delta) -> list[int]:
    return [token.id for token in delta.tokens]


@given(
    num_draft_tokens=st.integers(1, 8),
    period=st.integers(1, 9),
    max_tokens=st.integers(1, 40),
    min_tokens=st.integers(0, 40),
    eos_ids=st.lists(st.integers(0, 49), max_size=4, unique=True),
    stop_strings=st.lists(st.text("abcxyz", min_size=1, max_size=4), max_size=3),
    prompt=st.lists(st.integers(0, 49), min_size=1, max_size=5),
)
def test_the_answer_does_not_depend_on_the_draft(
    num_draft_tokens, period, max_tokens, min_tokens, eos_ids, stop_strings, prompt
) -> None:
    request = GenerationRequest(
        prompt_ids=tuple(prompt),
        max_tokens=max_tokens,
        num_draft_tokens=0,
        eos_ids=tuple(eos_ids),
        min_tokens=min(min_tokens, max_tokens),
        stop_strings=tuple(stop_strings),
    )
    draft = TargetDouble(mostly(RULE, period), frozenset(eos_ids))
    plain = answer(request)
    assert answer(replace(request, num_draft_tokens=num_draft_tokens), draft=draft) == plain
    assert ids(plain) or plain.finish_reason == "stop"


def test_without_options_the_answer_is_the_rule_followed_to_the_end() -> None:
    expected = [1, 2, 3]
    for _ in range(40):
        expected.append(RULE(expected))
    found = answer(REQUEST)
    assert ids(found) == expected[3:]
    assert found.text == letters(expected[3:])
    assert found.finish_reason == "length"


def test_text_before_the_earliest_stop_string_is_the_text() -> None:
    whole = answer(REQUEST).text
    stops = (whole[20:23], whole[9:11])
    found = answer(replace(REQUEST, stop_strings=stops))
    cut = min(whole.find(stop) for stop in stops)
    assert found.text == whole[:cut]
    assert letters(ids(found)).startswith(found.text)
    assert len(letters(ids(found))) - len(found.text) <= 1
    assert found.finish_reason == "stop"
    assert whole[cut:].startswith(found.stop_reason)


def test_stop_strings_count_from_min_tokens_on() -> None:
    whole = answer(REQUEST)
    found = answer(replace(REQUEST, stop_strings=(whole.text[3:5],), min_tokens=30))
    assert len(found.tokens) >= 30


def test_every_end_token_ends_the_answer() -> None:
    whole = ids(answer(REQUEST))
    for end_id in (whole[5], whole[17]):
        found = answer(replace(REQUEST, eos_ids=(99, end_id)))
        assert ids(found) == whole[: whole.index(end_id) + 1]
        assert found.text == letters(ids(found)[:-1])
        assert found.finish_reason == "stop"


def test_text_that_may_begin_a_stop_string_is_held_back() -> None:
    whole = answer(REQUEST).text
    request = replace(REQUEST, stop_strings=(whole[10:13] + "?",), num_draft_tokens=0)
    found = run(generation(request), request)
    assert "".join(delta.text for delta in found) == whole
    last = next(i for i, delta in enumerate(found) if delta.finish_reason)
    sent = ""
    for delta in found[:last]:
        sent += delta.text
        assert not sent.endswith(whole[10:13])


def test_without_draft_the_first_token_comes_by_itself_and_others_as_time_allows() -> None:
    request = replace(REQUEST, num_draft_tokens=0)
    for chunk_s, tokens in ((0.0, [1] * 40), (1e6, [1, 39])):
        target = TargetDouble(RULE)
        found = sum(run(generation(request, chunk_s=chunk_s), request, target=target), Delta())
        assert found == answer(request)
        assert [call.max_new_tokens for call in target.calls] == tokens


def test_a_round_takes_one_draft_and_one_target_call() -> None:
    target, draft = TargetDouble(RULE), TargetDouble(RULE)
    assert len(ids(answer(replace(REQUEST, max_tokens=10), target=target, draft=draft))) == 10
    assert [len(call.draft_ids) for call in target.calls] == [4, 4]
    assert len(draft.calls) == 2


def test_rounds_and_acceptance_are_counted() -> None:
    request = replace(REQUEST, max_tokens=11)
    made = generation(request)
    run(made, request, draft=TargetDouble(mostly(RULE, 5)))
    # The prompt has 3 tokens and the draft is wrong for the token after 5, 10, … of them: rounds
    # keep 2, 4 and 2 of 4, 4 and 2 draft tokens and add one each.
    found = made.speculation
    assert (found.rounds, found.proposed, found.accepted) == (3, 10, 8)
    assert found.accepted_per_position == [3, 3, 1, 1]


def test_a_failing_draft_leaves_the_answer_and_says_so() -> None:
    made = generation(REQUEST)
    found = run(made, REQUEST, draft=FailingDouble(TargetDouble(RULE), good_calls=2))
    assert sum(found, Delta()) == answer(replace(REQUEST, num_draft_tokens=0))
    assert made.speculation.off_reason == "the draft failed: draft: gone"


def test_a_silent_draft_leaves_the_answer_and_says_so() -> None:
    made = generation(REQUEST)
    found = run(made, REQUEST, draft=silent_double)
    assert sum(found, Delta()) == answer(replace(REQUEST, num_draft_tokens=0))
    assert made.speculation.off_reason == "the draft returned no tokens"


def test_a_draft_that_says_more_than_it_was_asked_for_is_heard_that_far() -> None:
    def talkative(call: Call) -> Reply:
        return TargetDouble(RULE)(replace(call, max_new_tokens=call.max_new_tokens + 3))

    request = replace(REQUEST, num_draft_tokens=4)
    target = TargetDouble(RULE)
    assert ids(answer(request, target=target, draft=talkative)) == ids(answer(request))
    assert max(len(call.draft_ids) for call in target.calls) == 4


def test_speculation_ends_where_the_draft_engine_does() -> None:
    draft = TargetDouble(RULE)
    made = generation(REQUEST, draft_max_seq_len=20)
    assert sum(run(made, REQUEST, draft=draft), Delta()) == answer(replace(REQUEST, num_draft_tokens=0))
    assert all(len(call.input_ids) + call.max_new_tokens <= 20 for call in draft.calls)
    assert "20 tokens" in made.speculation.off_reason


def test_a_failing_target_ends_the_answer_with_its_message() -> None:
    target = FailingDouble(TargetDouble(RULE), good_calls=1)
    with pytest.raises(EngineCallError, match="gone"):
        answer(REQUEST, target=target)


def test_an_engine_that_stops_by_itself_ends_the_answer() -> None:
    for num_draft_tokens in (0, 4):
        found = answer(replace(REQUEST, num_draft_tokens=num_draft_tokens), target=silent_double)
        assert (found.finish_reason, ids(found)) == ("stop", [])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt_ids": ()}, "no tokens"),
        ({"prompt_ids": (1, 50)}, "1 ids outside the vocabulary of 50"),
        ({"max_tokens": -1}, "max_tokens is -1"),
        ({"max_tokens": 98}, "= 101, the engine holds 100"),
        ({"min_tokens": 41}, "min_tokens is 41"),
        ({"num_draft_tokens": 9}, "built for 0 to 8"),
        ({"num_draft_tokens": -2}, "is -2; the engine was built for 0 to 8, and -1 adapts"),
        ({"stop_strings": ("",)}, "empty string"),
        (
            {"sampling": Sampling(temperature=-0.1)},
            "temperature is -0.1, expected a finite number, at least 0",
        ),
        ({"sampling": Sampling(temperature=math.nan)}, "temperature is nan"),
        ({"sampling": Sampling(top_p=1.5)}, "top_p is 1.5"),
        ({"sampling": Sampling(top_k=-1)}, "top_k is -1"),
        ({"sampling": Sampling(repetition_penalty=0.0)}, "repetition_penalty is 0.0"),
        ({"sampling": Sampling(presence_penalty=math.inf)}, "presence_penalty is inf"),
        ({"max_tokens": -1, "prompt_ids": ()}, "no tokens.*; max_tokens is -1"),
    ],
)
def test_what_cannot_be_served_is_refused(change, message) -> None:
    with pytest.raises(RequestError, match=message):
        replace(REQUEST, **change).check(LIMITS)


@dataclass
class ScriptedLength:
    """A double of a draft length: takes its steps from a list, over and over, and notes what it hears."""

    script: list[Step]
    rounds: list[Round] = field(default_factory=list)
    plain_calls: list[PlainCall] = field(default_factory=list)
    off_reason: str = ""
    taken: int = 0

    def choose(self, remaining: int) -> Step:
        step = self.script[self.taken % len(self.script)]
        self.taken += 1
        if step.draft_tokens:
            return FixedDraftLength(step.draft_tokens).choose(remaining)
        return Step(plain_tokens=min(step.plain_tokens, remaining))

    def record_round(self, done: Round) -> None:
        self.rounds.append(done)

    def record_plain(self, done: PlainCall) -> None:
        self.plain_calls.append(done)


STEPS = st.integers(1, 8).map(lambda n: Step(draft_tokens=n)) | st.integers(1, 20).map(
    lambda n: Step(plain_tokens=n)
)


@given(
    script=st.lists(STEPS, min_size=1, max_size=6),
    period=st.integers(1, 9),
    max_tokens=st.integers(1, 40),
    eos_ids=st.lists(st.integers(0, 49), max_size=3, unique=True),
    stop_strings=st.lists(st.text("abcxyz", min_size=1, max_size=4), max_size=2),
)
def test_the_answer_does_not_depend_on_how_lengths_vary(
    script, period, max_tokens, eos_ids, stop_strings
) -> None:
    request = replace(
        REQUEST, max_tokens=max_tokens, eos_ids=tuple(eos_ids), stop_strings=tuple(stop_strings)
    )
    length = ScriptedLength(script)
    made = generation(request, draft_length=length)
    found = sum(run(made, request, draft=TargetDouble(mostly(RULE, period), frozenset(eos_ids))), Delta())
    assert found == answer(replace(request, num_draft_tokens=0))
    # Every step is heard of, and what is heard is what was done.
    assert len(length.rounds) + len(length.plain_calls) == length.taken
    assert sum(done.proposed for done in length.rounds) == made.speculation.proposed
    assert sum(done.accepted for done in length.rounds) == made.speculation.accepted
    assert sum(made.speculation.proposed_per_position) == made.speculation.proposed
    assert sum(made.speculation.accepted_per_position) == made.speculation.accepted


def test_a_chunk_without_a_draft_is_one_call() -> None:
    target = TargetDouble(RULE)
    # The first token comes by itself.
    length = ScriptedLength([Step(plain_tokens=16), Step(plain_tokens=16), Step(draft_tokens=3)])
    request = replace(REQUEST, max_tokens=19)
    run(generation(request, draft_length=length), request, target=target, draft=TargetDouble(RULE))
    assert [(call.max_new_tokens, len(call.draft_ids)) for call in target.calls] == [(1, 0), (16, 0), (2, 1)]


def test_without_tokens_to_generate_no_engine_is_asked() -> None:
    target = TargetDouble(RULE)
    request = replace(REQUEST, max_tokens=0)
    made = generation(request)
    assert run(made, request, target=target) == []
    assert not target.calls
    assert made.next_call() is None


@pytest.mark.parametrize(("setting", "default"), [("0", 0), ("5", 5), ("auto", ADAPTIVE)])
def test_a_repository_says_how_far_a_request_speculates_that_does_not_say(setting: str, default: int) -> None:
    sizes = {"vocab_size": "50", "max_seq_len": "100", "draft_max_seq_len": "90", "max_draft_len": "8"}
    assert Limits.of(sizes | {"num_draft_tokens": setting}) == Limits(50, 100, 90, 8, default)
