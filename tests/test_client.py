"""The client's own logic, over a transport without a server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trtspec.client
import trtspec.client._errors
from trtspec.client import (
    Client,
    ClientError,
    Delta,
    InferRequest,
    InferResponse,
    InvalidArgument,
    MockTransport,
    Options,
    ServerFailed,
    Speculation,
    StreamBroken,
)
from trtspec.client._options import DATATYPES
from trtspec.triton_repo.contract import BLS_INPUTS, OUR_BLS_INPUTS

# One value of every option, and what it has to send: name, dtype, value. Dtypes are those of NVIDIA's
# tensorrt_llm_bls/config.pbtxt.
OPTIONS: dict[str, tuple[Any, list[tuple[str, str, list[Any]]]]] = {
    "max_tokens": (9, [("max_tokens", "int32", [9])]),
    "num_draft_tokens": (0, [("num_draft_tokens", "int32", [0])]),
    "stop_words": (["\n", "ß"], [("stop_words", "object", [b"\n", b"\xc3\x9f"])]),
    "bad_words": ("no", [("bad_words", "object", [b"no"])]),
    "end_id": (-1, [("end_id", "int32", [-1])]),
    "min_tokens": (3, [("min_tokens", "int32", [3])]),
    "temperature": (0.5, [("temperature", "float32", [0.5])]),
    "top_k": (4, [("top_k", "int32", [4])]),
    "top_p": (0.25, [("top_p", "float32", [0.25])]),
    "repetition_penalty": (2, [("repetition_penalty", "float32", [2.0])]),
    "presence_penalty": (0.5, [("presence_penalty", "float32", [0.5])]),
    "frequency_penalty": (-0.5, [("frequency_penalty", "float32", [-0.5])]),
    "seed": (2**64 - 1, [("seed", "uint64", [2**64 - 1])]),
    "embedding_bias": (
        {"a": 1.5, "b": -2.0},
        [
            ("embedding_bias_words", "object", [b"a", b"b"]),
            ("embedding_bias_weights", "float32", [1.5, -2.0]),
        ],
    ),
    "return_log_probs": (True, [("return_log_probs", "bool", [True])]),
    "return_generation_logits": (True, [("return_generation_logits", "bool", [True])]),
    "use_draft_logits": (True, [("use_draft_logits", "bool", [True])]),
    "return_prompt_ids": (True, [("return_prompt_ids", "bool", [True])]),
    # Our model says it without being asked.
    "return_perf_metrics": (True, []),
}
ALWAYS = {"text_input", "max_tokens", "stream", "exclude_input_in_output"}


def ask(prompt: Any = "x", **options: Any) -> InferRequest:
    """Return what the client sends."""
    transport = MockTransport(lambda request: [])
    Client(transport=transport).generate(prompt, **options)
    return transport.requests[0]


def answering(*items: Delta | InferResponse) -> Client:
    return Client(transport=MockTransport(lambda request: items))


def test_exports_are_all_the_public_names_there_are() -> None:
    public = {
        name
        for name, value in vars(trtspec.client).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert public == set(trtspec.client.__all__)
    assert trtspec.client.__all__ == sorted(trtspec.client.__all__)


def test_every_error_is_exported_and_in_the_drawn_tree() -> None:
    def tree(kind: type[Exception], depth: int) -> Iterator[tuple[int, str]]:
        for child in kind.__subclasses__():
            yield depth, child.__name__
            yield from tree(child, depth + 1)

    drawn = (trtspec.client._errors.__doc__ or "").splitlines()
    for depth, name in tree(ClientError, 0):
        assert name in trtspec.client.__all__
        assert any(line[4 * depth :].startswith((f"├── {name} ", f"└── {name} ")) for line in drawn)


def test_importing_the_client_brings_no_heavy_library() -> None:
    heavy = "{'torch', 'transformers', 'tokenizers', 'pydantic', 'rich', 'click', 'scipy', 'aiohttp'}"
    code = f"import sys, trtspec.client; assert not {heavy} & set(sys.modules), {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_client_sends_the_names_and_types_of_the_contract() -> None:
    contract = {tensor.name: tensor.dtype for tensor in (*BLS_INPUTS, *OUR_BLS_INPUTS)}
    sent = {name: "STRING" if datatype == "BYTES" else datatype for name, datatype in DATATYPES.items()}
    assert sent.items() <= contract.items()


def test_the_table_of_this_test_has_every_option() -> None:
    assert set(OPTIONS) == set(Options.__annotations__)


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_is_sent_as_its_tensor(option: str) -> None:
    value, expected = OPTIONS[option]
    inputs = ask(**{option: value}).inputs
    assert [(name, str(inputs[name].dtype), inputs[name].tolist()) for name, _, _ in expected] == [
        (name, dtype, [values]) for name, dtype, values in expected
    ]
    assert set(inputs) == ALWAYS | {name for name, _, _ in expected}


def test_what_is_not_given_is_left_to_the_server() -> None:
    assert set(ask().inputs) == ALWAYS
    assert set(ask(stop_words=[], bad_words=(), embedding_bias={}).inputs) == ALWAYS


@pytest.mark.parametrize("ids", [[1, 2, 3], (1, 2, 3), np.array([1, 2, 3]), range(1, 4)])
def test_a_prompt_of_token_ids_goes_in_place_of_text(ids: Any) -> None:
    inputs = ask(ids).inputs
    assert "text_input" not in inputs
    assert (str(inputs["input_ids"].dtype), inputs["input_ids"].tolist()) == ("int32", [[1, 2, 3]])


@pytest.mark.parametrize("prompt", [[], [[1]], [1.5], [-1], [2**31], b"bytes", ["a"], None])
def test_a_prompt_that_is_neither_text_nor_ids_is_refused(prompt: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^prompt: found .*, expected "):
        ask(prompt)


@pytest.mark.parametrize(
    "messages",
    [[{"role": "user"}], [{"role": "user", "content": 1}], [{"role": "a", "content": "b", "c": "d"}]],
)
def test_messages_of_another_form_are_refused_by_their_number(messages: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^messages\[0\]: found .*, expected the strings role and"):
        ask(messages)


def test_auto_leaves_the_draft_length_to_the_server() -> None:
    assert ask(num_draft_tokens="auto").inputs["num_draft_tokens"].tolist() == [[-1]]


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("max_tokens", 2**31, "a whole number from -2147483648 to 2147483647"),
        ("max_tokens", 1.0, "a whole number"),
        ("max_tokens", True, "a whole number"),
        ("seed", -1, "a whole number from 0 to 18446744073709551615"),
        ("temperature", "hot", "a finite number"),
        ("temperature", None, "a finite number"),
        ("temperature", float("nan"), "a finite number"),
        ("top_p", float("inf"), "a finite number"),
        ("temperature", 1e39, "a finite number"),
        ("num_draft_tokens", "some", "a whole number"),
        ("return_log_probs", 1, "True or False"),
        ("stop_words", [1], "a string or some strings"),
        ("stop_words", 5, "a string or some strings"),
        ("embedding_bias", {"a": "b"}, "a finite number"),
    ],
)
def test_a_value_that_its_tensor_cannot_hold_is_refused(option: str, value: Any, expected: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"^{option}: found .*, expected {expected}"):
        ask(**{option: value})


def test_text_that_is_no_unicode_is_refused_with_its_place() -> None:
    with pytest.raises(InvalidArgument, match=r"^stop_words: found '\\udcff' at character 1"):
        ask(stop_words=["a\udcff"])


def test_an_option_there_is_not_is_a_type_error_as_in_python() -> None:
    with pytest.raises(TypeError, match="no such option: max_token; there are max_tokens, "):
        ask(max_token=3)


def test_generate_asks_for_one_response_and_stream_for_many() -> None:
    transport = MockTransport(lambda request: [])
    client = Client(transport=transport)
    client.generate("x")
    list(client.stream("x"))
    assert [request.inputs["stream"].item() for request in transport.requests] == [False, True]


def test_a_call_may_have_a_deadline_of_its_own() -> None:
    transport = MockTransport(lambda request: [])
    client = Client(transport=transport, timeout_s=None)
    client.generate("x")
    client.generate("x", timeout_s=3.0)
    assert [request.timeout_s for request in transport.requests] == [None, 3.0]


@given(st.text(min_size=1), st.data())
def test_the_text_does_not_depend_on_where_the_server_cuts_it(text: str, data: st.DataObject) -> None:
    raw = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(raw) - 1)))))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    responses = [InferResponse({"text_output": np.array([[piece]], object)}) for piece in pieces]
    with answering(*responses).stream("x") as stream:
        deltas = list(stream)
    assert "".join(delta.text for delta in deltas) == stream.result.text == text


def test_bytes_that_end_inside_a_character_become_a_replacement() -> None:
    assert (
        answering(InferResponse({"text_output": np.array([[b"a\xc3"]], object)})).generate("x").text
        == "a\ufffd"
    )


def test_a_response_that_adds_nothing_is_no_delta() -> None:
    with answering(Delta("a"), Delta(), InferResponse({}), Delta("b")).stream("x") as stream:
        assert list(stream) == [Delta("a"), Delta("b")]


def test_tokens_without_text_are_a_delta() -> None:
    with answering(Delta("", (5,), (-0.5,))).stream("x") as stream:
        assert list(stream) == [Delta("", (5,), (-0.5,))]


@pytest.mark.parametrize("cuts", [(5,), (2, 3), (1, 1, 1, 1, 1)])
def test_logits_of_deltas_add_up_to_those_of_the_answer(cuts: tuple[int, ...]) -> None:
    rows_TV = np.arange(20, dtype=np.float32).reshape(5, 4)
    pieces = np.split(rows_TV, np.cumsum(cuts)[:-1])
    deltas = [Delta("x", tuple(range(len(piece))), generation_logits=piece) for piece in pieces]
    with answering(*deltas).stream("x", return_generation_logits=True) as stream:
        seen = [delta.generation_logits for delta in stream]
    for found, piece in zip(seen, pieces, strict=True):
        np.testing.assert_array_equal(found, piece)
    logits_TV = stream.result.generation_logits
    assert logits_TV is not None
    assert logits_TV.dtype == np.float32
    np.testing.assert_array_equal(logits_TV, rows_TV)


def test_logits_that_were_not_asked_for_are_none() -> None:
    # NVIDIA's models send a placeholder of one element.
    outputs = {"output_ids": np.array([[1]]), "generation_logits": np.zeros((1, 1, 1, 1), np.float32)}
    client = answering(InferResponse(outputs, final=True))
    assert client.generate("x").generation_logits is None
    assert answering(Delta("x")).generate("x", return_generation_logits=True).generation_logits is None


def test_answers_with_logits_can_be_compared() -> None:
    logits_TV = np.zeros((1, 4), np.float32)
    assert Delta("x", generation_logits=logits_TV) == Delta("x", generation_logits=logits_TV.copy())
    assert len({Delta("x", generation_logits=logits_TV), Delta("x")}) == 1


def test_the_result_waits_for_what_has_not_come() -> None:
    with answering(Delta("a", (1,)), Delta("b", (2,))).stream("x") as stream:
        assert next(stream).text == "a"
        assert stream.result.text == "ab"
        assert stream.result.token_ids == (1, 2)
        assert stream.result is stream.result


def test_what_a_server_does_not_report_is_none() -> None:
    answer = answering(InferResponse({"text_output": np.array([[b"a"]], object)}, final=True)).generate("x")
    assert (answer.finish_reason, answer.usage, answer.speculation) == (None, None, None)


def test_leaving_a_stream_early_cancels_and_leaving_it_at_its_end_does_not() -> None:
    transport = MockTransport(lambda request: [Delta("a"), Delta("b")])
    client = Client(transport=transport)
    with client.stream("x") as whole:
        list(whole)
    assert transport.closed_early == []
    with client.stream("x") as early:
        next(early)
    assert transport.closed_early == [early.request_id]
    assert (early.result.text, early.result.finish_reason) == ("a", "cancelled")
    assert (whole.result.text, whole.result.finish_reason) == ("ab", "stop")


def test_an_exception_in_the_block_cancels() -> None:
    transport = MockTransport(lambda request: [Delta("a"), Delta("b")])
    stream = Client(transport=transport).stream("x")

    def interrupted() -> None:
        with stream:
            next(stream)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert transport.closed_early == [stream.request_id]


def test_a_mock_may_fail_a_call_before_or_in_the_answer() -> None:
    def fail(request: InferRequest) -> Iterable[Delta]:
        yield Delta("a")
        raise ServerFailed("engine died", request_id=request.id, status="INTERNAL")

    with Client(transport=MockTransport(fail)).stream("x") as stream:
        assert next(stream).text == "a"
        with pytest.raises(ServerFailed, match="engine died"):
            next(stream)


def test_a_mock_says_what_it_was_asked_and_counts_what_it_says() -> None:
    transport = MockTransport(lambda request: [Delta("Hel", (1, 2)), Delta("lo", (3,))])
    answer = Client(transport=transport).generate("greet")
    assert (answer.text, answer.finish_reason) == ("Hello", "stop")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3
    assert transport.requests[0].inputs["text_input"].tolist() == [[b"greet"]]
    assert Client(transport=transport).is_ready()
    assert not Client(transport=MockTransport(lambda request: [], ready=False)).is_ready()


def test_speculation_counts_what_a_target_call_brings() -> None:
    speculation = Speculation(rounds=4, proposed=12, accepted=6, accepted_per_position=(3, 2, 1))
    assert speculation.mean_draft_tokens == 3.0
    assert speculation.acceptance == 0.5
    assert speculation.tokens_per_target_call == 2.5
    nothing = Speculation(rounds=0, proposed=0, accepted=0)
    assert (nothing.acceptance, nothing.tokens_per_target_call, nothing.mean_draft_tokens) == (0.0, 1.0, 0.0)


def test_a_failed_call_knows_its_request_and_status() -> None:
    error = StreamBroken("broke", request_id="r1", status="UNAVAILABLE")
    assert (str(error), error.request_id, error.status) == ("broke", "r1", "UNAVAILABLE")
