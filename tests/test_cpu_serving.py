"""The engine behind TensorRT-LLM's tensors: what goes in, what comes out, what is refused."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cpu_triton_double as double
import numpy as np
import pytest
from cpu_checkpoints import SIZES, write_random
from cpu_triton_double import Call
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig

from trtspec.engines.cpu.engine import Engine
from trtspec.engines.cpu.errors import RequestError
from trtspec.engines.cpu.request import Request
from trtspec.engines.cpu.sampling import SamplingParams
from trtspec.engines.cpu.tensors import read_request, read_words

PROMPT = [7, 21, 3, 44, 9]
REQUIRED: dict[str, Any] = {
    "input_ids": np.array([PROMPT], np.int32),
    "input_lengths": np.array([[5]], np.int32),
    "request_output_len": np.array([[6]], np.int32),
}
IDS = ("output_ids", "sequence_length")


def asked(**inputs: Any) -> dict[str, Any]:
    return REQUIRED | inputs


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = tmp_path_factory.mktemp("repository") / "tensorrt_llm"
    write_random(model / "1" / "engine", LlamaConfig(**SIZES))
    return model


@pytest.fixture(scope="module")
def model_class() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "triton_python_backend_utils", double.module())
        patch.delitem(sys.modules, "trtspec.engines.cpu.serving", raising=False)
        yield importlib.import_module("trtspec.engines.cpu.serving").TritonPythonModel
        patch.delitem(sys.modules, "trtspec.engines.cpu.serving")


def start(model_class: Any, repository: Path, **parameters: str) -> Any:
    model = model_class()
    config = {"parameters": {key: {"string_value": value} for key, value in parameters.items()}}
    model.initialize(
        {"model_repository": str(repository), "model_version": "1", "model_config": json.dumps(config)}
    )
    return model


@pytest.fixture
def model(model_class: Any, repository: Path) -> Iterator[Any]:
    model = start(model_class, repository)
    yield model
    model.finalize()


@pytest.fixture(scope="module")
def answer(repository: Path) -> list[int]:
    engine = Engine(repository / "1" / "engine")
    return [t for chunk in engine.generate(Request(input_ids=PROMPT, max_new_tokens=6)) for t in chunk.ids]


def execute(model: Any, outputs: tuple[str, ...] = IDS, **inputs: Any) -> Call:
    call = Call(asked(**inputs), outputs)
    model.execute([call])
    return call.wait()


def has_arrived(model: Any) -> bool:
    """Whether there is something that the engine's thread has not taken in."""
    return not model._arrived.empty()


def test_an_answer_is_the_prompt_and_the_new_tokens(model: Any, answer: list[int]) -> None:
    call = execute(model)
    assert call.output("output_ids").tolist() == [[PROMPT + answer]]
    assert call.output("sequence_length").tolist() == [[11]]
    assert [call.output(name).dtype for name in IDS] == [np.int32, np.int32]


@pytest.mark.parametrize("value", ["true", "1", "True"])
def test_the_model_can_be_configured_to_leave_the_prompt_out(
    model_class: Any, repository: Path, answer: list[int], value: str
) -> None:
    model = start(model_class, repository, exclude_input_in_output=value)
    excluded = execute(model)
    included = execute(model, exclude_input_in_output=np.array([[False]]))
    model.finalize()
    assert excluded.output("output_ids").tolist() == [[answer]]
    assert included.output("output_ids").tolist() == [[PROMPT + answer]]


def test_a_streamed_answer_is_its_new_tokens_one_by_one(model: Any, answer: list[int]) -> None:
    call = execute(model, streaming=np.array([[True]]))
    ids = [response.tensors[0].array.tolist() for response in call.responses]
    assert ids == [[[[token]]] for token in answer]


def test_scores_come_when_they_are_asked_for(model: Any, answer: list[int]) -> None:
    names = (*IDS, "cum_log_probs", "output_log_probs", "generation_logits")
    flags = {"return_log_probs": np.array([[True]]), "return_generation_logits": np.array([[True]])}
    call = execute(model, names, **flags)
    logits, log_probs = call.output("generation_logits"), call.output("output_log_probs")
    assert (logits.shape, logits.dtype) == ((1, 1, 6, 61), np.float32)
    assert logits[0, 0].argmax(-1).tolist() == answer
    exact = logits[0, 0].astype(np.float64)
    expected = exact[range(6), answer] - np.log(np.exp(exact).sum(-1))
    assert log_probs[0, 0] == pytest.approx(expected, abs=1e-5)
    assert call.output("cum_log_probs")[0, 0] == pytest.approx(expected.sum(), abs=1e-4)
    streamed = execute(model, names, streaming=np.array([[True]]), **flags)
    last = {tensor.tensor_name: tensor.array for tensor in streamed.responses[-1].tensors}
    assert last["cum_log_probs"][0, 0] == pytest.approx(expected.sum(), abs=1e-4)
    assert last["output_log_probs"].shape == (1, 1, 1)


def test_outputs_nobody_asked_for_are_not_sent(model: Any) -> None:
    call = execute(model, ("output_ids",), return_log_probs=np.array([[True]]))
    assert [tensor.tensor_name for tensor in call.responses[0].tensors] == ["output_ids"]


def test_draft_tokens_are_verified(model: Any, answer: list[int]) -> None:
    draft = [*answer[:2], (answer[2] + 1) % 61]
    call = execute(
        model, draft_input_ids=np.array([draft], np.int32), exclude_input_in_output=np.array([[True]])
    )
    assert call.output("output_ids").tolist() == [[answer[:3]]]


def test_many_requests_at_once_each_get_their_answer(model: Any, answer: list[int]) -> None:
    calls = [Call(asked(), IDS) for _ in range(10)]
    model.execute(calls)
    assert [call.wait().output("output_ids").tolist() for call in calls] == [[[PROMPT + answer]]] * 10


def test_stop_ends_the_request_in_flight_with_that_id_and_no_other(model: Any) -> None:
    long = {"request_output_len": np.array([[120]], np.int32), "streaming": np.array([[True]])}
    mine = Call(asked(**long), IDS, id="mine", until=lambda: mine.ended or has_arrived(model))
    other = Call(asked(**long), IDS, id="other")
    model.execute([mine, other])
    mine.wait(responses=1)
    stop = Call({"stop": np.array([[True]])}, IDS, id="mine")
    model.execute([stop])
    assert stop.wait().responses == []
    assert len(mine.wait().responses) < 120
    assert all(response.error is None for response in mine.responses)
    assert len(other.wait().responses) == 120


def test_a_client_that_has_gone_frees_its_place(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # At every step: this model would be done before a tenth of a second is over.
    monkeypatch.setattr(sys.modules[type(model).__module__], "_CANCELLATION_CHECK_S", 0.0)
    long = {"request_output_len": np.array([[120]], np.int32), "streaming": np.array([[True]])}
    gone: list[Call] = []
    gone += [Call(asked(**long), IDS, until=lambda: gone[-1].cancelled) for _ in range(3)]
    model.execute(gone)
    gone[0].wait(responses=1)
    for call in gone:
        call.cancelled = True
    assert len(execute(model).responses) == 1
    for call in gone:
        last = call.wait().responses[-1].error
        assert last is not None
        assert last.code == double.TritonError.CANCELLED


def test_a_failing_step_fails_what_is_in_flight_and_the_engine_lives_on(
    model: Any, answer: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault is in the model's forward pass, where a double stands in for one call."""
    decoder = model._engine._model
    monkeypatch.setattr(model._engine, "_model", FailingDecoder(decoder))
    calls = [Call(asked(), IDS) for _ in range(5)]
    model.execute(calls)
    failed = [call for call in calls if call.wait().responses[-1].error is not None]
    assert failed
    assert all("out of memory, says the double" in str(call.error) for call in failed)
    assert execute(model).output("output_ids").tolist() == [[PROMPT + answer]]


def test_a_caller_that_cannot_be_told_does_not_keep_the_others_waiting(
    model: Any, answer: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model._engine, "_model", FailingDecoder(model._engine._model))
    calls = [Unreachable(asked(), IDS), Call(asked(), IDS), Unreachable(asked(), IDS)]
    model.execute(calls)
    assert calls[1].wait().responses
    assert execute(model).output("output_ids").tolist() == [[PROMPT + answer]]


class Unreachable(Call):
    """One whose connection has gone."""

    def send(self, response: double.InferenceResponse | None = None, flags: int = 0) -> None:
        raise RuntimeError("gone, says the double")


class FailingDecoder:
    """Fails once, then does what the real one does."""

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder
        self._failed = False

    def forward(self, segments: Any) -> Any:
        if not self._failed:
            self._failed = True
            raise RuntimeError("out of memory, says the double")
        return self._decoder.forward(segments)

    def copy_prefix(self, source: int, destination: int, length: int) -> None:
        self._decoder.copy_prefix(source, destination, length)


def test_unloading_ends_what_is_in_flight(model_class: Any, repository: Path) -> None:
    model = start(model_class, repository)
    long = {"request_output_len": np.array([[120]], np.int32), "streaming": np.array([[True]])}
    call = Call(asked(**long), IDS, until=lambda: has_arrived(model))
    model.execute([call])
    call.wait(responses=1)
    model.finalize()
    last = call.wait().responses[-1]
    assert last.error is not None
    assert "unloaded" in str(last.error)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"request_output_len": np.array([[0]])}, "request_output_len is 0"),
        ({"input_ids": np.array([[99]]), "input_lengths": np.array([[1]])}, "input_ids holds 99"),
        ({"embedding_bias": np.zeros((1, 4), np.float32)}, r"embedding_bias is \[4\], expected \[61\]"),
        ({"beam_width": np.array([[2]])}, r"beam_width is \[2\], the cpu engine supports only 1"),
    ],
)
def test_what_the_engine_refuses_is_an_invalid_argument(
    model: Any, inputs: dict[str, Any], message: str
) -> None:
    error = execute(model, **inputs).error
    assert error.code == double.TritonError.INVALID_ARG
    # The text says so too: a model that asks through Triton is not told the code.
    assert re.match(f"refused: .*{message}", str(error))


UNSUPPORTED = [
    "draft_acceptance_threshold",
    "decoder_input_ids",
    "prompt_embedding_table",
    "prompt_vocab_size",
    "lora_task_id",
    "lora_weights",
    "lora_config",
    "guided_decoding_guide_type",
    "guided_decoding_guide",
    "runtime_top_p_min",
    "runtime_top_p_decay",
    "len_penalty",
    "early_stopping",
    "lookahead_window_size",
    "retention_token_range_starts",
    "an_input_of_the_future",
]


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_an_input_that_would_have_to_be_ignored_is_refused_by_name(name: str) -> None:
    with pytest.raises(RequestError, match=f"^{name} is not supported"):
        read_request(asked(**{name: np.zeros((1, 1))}))


@pytest.mark.parametrize(
    ("name", "harmless", "refused"),
    [
        ("beam_width", 1, 4),
        ("num_return_sequences", 1, 2),
        ("return_context_logits", False, True),
        ("return_perf_metrics", False, True),
    ],
)
def test_an_option_is_accepted_only_at_the_value_that_changes_nothing(
    name: str, harmless: object, refused: object
) -> None:
    assert read_request(asked(**{name: np.array([[harmless]])})) == read_request(REQUIRED)
    with pytest.raises(
        RequestError, match=rf"{name} is \[{refused}\], the cpu engine supports only {harmless}"
    ):
        read_request(asked(**{name: np.array([[refused]])}))


def test_all_unsupported_inputs_are_named_at_once() -> None:
    extra = {"lora_task_id": np.array([1]), "beam_width": np.array([3])}
    with pytest.raises(RequestError, match=r"beam_width is \[3\].*lora_task_id is not supported"):
        read_request(asked(**extra))


@pytest.mark.parametrize("shape", [(1,), (1, 1)])
def test_scalars_come_with_and_without_a_trailing_dimension(shape: tuple[int, ...]) -> None:
    def scalar(value: object, dtype: Any) -> Any:
        return np.full(shape, value, dtype)

    request = read_request(
        asked(
            request_output_len=scalar(9, np.int32),
            end_id=scalar(2, np.int32),
            pad_id=scalar(0, np.int32),
            temperature=scalar(0.5, np.float32),
            runtime_top_k=scalar(4, np.int32),
            runtime_top_p=scalar(0.75, np.float32),
            seed=scalar(2**64 - 1, np.uint64),
            repetition_penalty=scalar(1.5, np.float32),
            presence_penalty=scalar(0.25, np.float32),
            frequency_penalty=scalar(0.125, np.float32),
            prompt_ignore_length=scalar(3, np.int32),
            min_tokens=scalar(2, np.int32),
            return_log_probs=scalar(True, np.bool_),
            streaming=scalar(True, np.bool_),
        )
    )
    assert request == Request(
        input_ids=PROMPT,
        max_new_tokens=9,
        draft_ids=[],
        end_id=2,
        sampling=SamplingParams(
            temperature=0.5,
            top_k=4,
            top_p=0.75,
            seed=2**64 - 1,
            repetition_penalty=1.5,
            presence_penalty=0.25,
            frequency_penalty=0.125,
            prompt_ignore_length=3,
            min_tokens=2,
        ),
        return_log_probs=True,
        streaming=True,
    )


def test_what_is_not_given_is_the_default() -> None:
    expected = Request(input_ids=PROMPT, max_new_tokens=6, draft_ids=[], sampling=SamplingParams())
    assert read_request(REQUIRED) == expected


def test_draft_logits_lose_their_batch_dimension() -> None:
    request = read_request(
        asked(draft_input_ids=np.array([[4, 5]], np.int32), draft_logits=np.zeros((1, 2, 61), np.float32))
    )
    assert request.draft_ids == [4, 5]
    assert request.draft_logits is not None
    assert request.draft_logits.shape == (2, 61)


def test_the_prompt_ends_at_input_lengths() -> None:
    assert read_request(asked(input_lengths=np.array([[3]]))).input_ids == PROMPT[:3]
    with pytest.raises(RequestError, match="input_lengths is 6, input_ids holds 5 ids"):
        read_request(asked(input_lengths=np.array([[6]])))


@pytest.mark.parametrize("name", ["input_lengths", "request_output_len"])
def test_a_required_input_that_is_missing_is_named(name: str) -> None:
    with pytest.raises(RequestError, match=f"{name} is missing"):
        read_request({key: value for key, value in REQUIRED.items() if key != name})


def test_two_values_for_a_scalar_are_refused() -> None:
    with pytest.raises(RequestError, match=r"seed is \[1, 2\], expected one value"):
        read_request(asked(seed=np.array([[1, 2]])))


@given(st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=4), max_size=5), st.integers(0, 3))
def test_word_lists_are_read_back_as_they_were_written(words: list[list[int]], padding: int) -> None:
    flat = [token for word in words for token in word]
    ends = np.cumsum([len(word) for word in words]).tolist() if words else []
    width = max(len(flat), 1) + padding
    layout = np.zeros((1, 2, width), np.int32)
    layout[0, 1] = -1
    layout[0, 0, : len(flat)] = flat
    layout[0, 1, : len(ends)] = ends
    assert read_words({"w": layout}, "w") == tuple(tuple(word) for word in words)


@pytest.mark.parametrize("ends", [[2, 2], [3, 1], [9, -1], [0, -1]])
def test_word_lists_with_impossible_offsets_are_refused(ends: list[int]) -> None:
    layout = np.array([[[1, 2, 3], [*ends, -1]]], np.int32)
    with pytest.raises(RequestError, match=r"bad_words_list has offsets .* rise within 1\.\.3"):
        read_words({"bad_words_list": layout}, "bad_words_list")


def test_a_word_list_of_another_layout_is_refused() -> None:
    with pytest.raises(RequestError, match=r"stop_words_list is \[1, 3\], expected \[1, 2, n\]"):
        read_words({"stop_words_list": np.array([[1, 2, 3]])}, "stop_words_list")
