"""What travels to the engines: rows that stack, and what each kind of engine can carry."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtspec.engines.cpu.errors import RequestError
from trtspec.engines.cpu.tensors import join_rows, read_request, split_rows
from trtspec.triton_repo.contract import LEAF_INPUTS, LEAF_OUTPUTS
from trtspec.triton_repo.speculation.engine_tensors import EngineInputs, read_replies, stack
from trtspec.triton_repo.speculation.loop import Call
from trtspec.triton_repo.speculation.request import GenerationRequest, Sampling
from trtspec.triton_repo.speculation.runtime import RUNTIMES

CPU, TENSORRT = RUNTIMES["cpu"], RUNTIMES["tensorrt"]
PLAIN = GenerationRequest(prompt_ids=(5, 6, 7), max_tokens=9, num_draft_tokens=2, eos_ids=(2, 3))
EVERYTHING = replace(
    PLAIN,
    sampling=Sampling(
        temperature=0.5,
        top_k=4,
        top_p=0.5,
        repetition_penalty=1.5,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        seed=7,
        bias_V=np.zeros(10, np.float32),
        bad_words=((1, 2), (3,)),
    ),
    return_log_probs=True,
    return_logits=True,
)
NUMPY_TYPES = {"INT32": np.int32, "FP32": np.float32, "BOOL": np.bool_, "UINT64": np.uint64}


def call(ids: list[int], **options) -> Call:
    return Call(
        engine=options.pop("engine", "target"),
        input_ids=np.array(ids, np.int32),
        max_new_tokens=options.pop("max_new_tokens", 3),
        **options,
    )


FULL_CALL = call(
    [5, 6, 7, 8],
    min_new_tokens=1,
    draft_ids=(1, 2),
    draft_logits_KV=np.zeros((2, 10), np.float32),
    return_log_probs=True,
    return_logits=True,
)


def test_what_tensorrt_engines_are_sent_is_in_their_contract() -> None:
    inputs = EngineInputs(EVERYTHING, TENSORRT).of(FULL_CALL).inputs
    contract = {tensor.name: tensor for tensor in LEAF_INPUTS}
    for name, array in inputs.items():
        assert array.dtype == NUMPY_TYPES[contract[name].dtype], name
        assert array.shape[0] == 1, name
        dims = contract[name].dims
        assert array.ndim == 1 + len(dims), name
        assert all(dim in (-1, size) for dim, size in zip(dims, array.shape[1:], strict=True)), name
    required = {tensor.name for tensor in LEAF_INPUTS if not tensor.optional}
    assert required <= inputs.keys()


def test_what_engines_are_asked_for_is_in_their_contract() -> None:
    outputs = EngineInputs(EVERYTHING, TENSORRT).of(FULL_CALL).outputs
    assert set(outputs) <= {tensor.name for tensor in LEAF_OUTPUTS}


def test_the_cpu_engine_reads_what_it_is_sent() -> None:
    asked = read_request(EngineInputs(EVERYTHING, CPU).of(FULL_CALL).inputs)
    assert (list(asked.input_ids), list(asked.draft_ids)) == ([5, 6, 7, 8], [1, 2])
    assert (asked.end_id, asked.stop_words) == (2, ((3,),))
    assert asked.sampling.bad_words == ((1, 2), (3,))
    assert asked.sampling.prompt_ignore_length == 3
    assert asked.sampling.seed == 7


def test_an_option_that_is_not_set_is_not_sent() -> None:
    sent = EngineInputs(PLAIN, CPU).of(call([5, 6, 7])).inputs.keys()
    assert sent == {
        *("input_ids", "input_lengths", "request_output_len"),
        *("end_id", "stop_words_list", "exclude_input_in_output"),
    }


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_rows_come_out_of_a_stack_as_they_went_in(lengths) -> None:
    made = [EngineInputs(EVERYTHING, CPU).of(call(list(range(1, n + 1)), draft_ids=(4,))) for n in lengths]
    assert len({request.kind for request in made}) == 1
    rows = split_rows(stack(made))
    for row, request in zip(rows, made, strict=True):
        assert list(read_request(row).input_ids) == request.inputs["input_ids"][0].tolist()


def test_calls_of_different_shapes_are_of_different_kinds() -> None:
    inputs = EngineInputs(PLAIN, CPU)
    calls = [
        call([5]),
        call([5], draft_ids=(1,)),
        call([5], draft_ids=(1, 2)),
        call([5], return_log_probs=True),
        call([5], min_new_tokens=2),
    ]
    assert len({inputs.of(each).kind for each in calls}) == len(calls)
    assert inputs.of(call([5])).kind == inputs.of(call([5, 6], max_new_tokens=8)).kind


def test_requests_whose_tensors_differ_in_rows_are_refused() -> None:
    tensors = {"input_lengths": np.ones((2, 1), np.int32), "seed": np.ones((1, 1), np.uint64)}
    with pytest.raises(RequestError, match="input_lengths has 2 rows, seed has 1"):
        split_rows(tensors)


@given(
    rows=st.lists(
        st.lists(st.tuples(st.integers(0, 9), st.floats(-5, 0, width=32)), max_size=4),
        min_size=1,
        max_size=4,
    ),
)
def test_replies_come_out_of_a_response_as_they_went_in(rows) -> None:
    outputs = [
        {
            "output_ids": np.array([[[i for i, _ in row]]], np.int32),
            "output_log_probs": np.array([[[p for _, p in row]]], np.float32),
            "generation_logits": np.full((1, 1, len(row), 3), len(row), np.float32),
            "sequence_length": np.array([[len(row)]], np.int32),
        }
        for row in rows
    ]
    for reply, expected in zip(read_replies(join_rows(outputs)), rows, strict=True):
        assert list(reply.ids) == [i for i, _ in expected]
        assert list(reply.log_probs) == [p for _, p in expected]
        assert reply.logits_TV.shape == (len(expected), 3)
        assert (reply.logits_TV == len(expected)).all()


# What an engine carries across rounds


@pytest.mark.parametrize("penalty", ["presence_penalty", "frequency_penalty"])
def test_penalties_that_start_anew_each_round_switch_speculation_off(penalty: str) -> None:
    request = replace(PLAIN, sampling=Sampling(**{penalty: 0.5}))
    assert "penalty" in TENSORRT.speculation_off_reason(request)
    assert CPU.speculation_off_reason(request) == ""
    assert TENSORRT.speculation_off_reason(PLAIN) == ""


def test_tensorrt_engines_are_not_sent_what_they_do_not_know() -> None:
    request = replace(PLAIN, sampling=Sampling(presence_penalty=0.5))
    assert "prompt_ignore_length" in EngineInputs(request, CPU).of(call([5])).inputs
    assert "prompt_ignore_length" not in EngineInputs(request, TENSORRT).of(call([5])).inputs


def test_seeds_of_tensorrt_engines_differ_by_round_and_role_and_repeat() -> None:
    places = [
        (seed, role, n) for seed in (0, 1, 2**64 - 1) for role in ("target", "draft") for n in range(200)
    ]
    seeds = [TENSORRT.call_seed(*place) for place in places]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert seeds == [TENSORRT.call_seed(*place) for place in places]
    # Bits of neighbouring rounds are as good as independent: half of them differ.
    flips = [bin(a ^ b).count("1") for a, b in pairwise(seeds)]
    assert 30 < sum(flips) / len(flips) < 34


def test_seeds_of_cpu_engines_are_the_answers() -> None:
    assert {CPU.call_seed(7, role, n) for role in ("target", "draft") for n in range(9)} == {7}
