"""verify: an honest server passes, and one that lies anywhere does not."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from scripted_server import Asked, Fault, ScriptedServer, Step, last
from toy_reference import END, VOCAB, ToyReference, UndecidedReference

from trtspec.client import (
    Client,
    Delta,
    InferRequest,
    InferResponse,
    InvalidArgument,
    MockTransport,
    ServerFailed,
)
from trtspec.client.verify import (
    AUTO,
    DEFAULT_PROMPTS,
    Case,
    Finding,
    HuggingFaceReference,
    Judge,
    Noise,
    Reference,
    Settings,
    Token,
    VerifyReport,
    compare_greedy,
    read_texts,
)
from trtspec.client.verify.html import to_html
from trtspec.errors import CheckpointError, ClientError

MAX_TOKENS = 12


def finish_of(ids: Sequence[int]) -> str:
    return "stop" if END in ids else "length"


def serving(ids: Sequence[int], finish: str, prompt_tokens: int | None = None) -> Client:
    """A client of a server that gives this answer, whatever it is asked."""
    outputs: dict[str, Any] = {
        "text_output": np.array([[b"x"]], object),
        "output_ids": np.array([ids], np.int64),
        "finish_reason": np.array([[finish.encode()]], object),
    }
    if prompt_tokens is not None:
        outputs |= {
            "num_input_tokens": np.array([[prompt_tokens]]),
            "num_output_tokens": np.array([[len(ids)]]),
        }
    return Client(transport=MockTransport(lambda request: [InferResponse(outputs, final=True)]))


def judged(
    client: Client,
    reference: Reference,
    prompts: Sequence[str],
    lengths: Sequence[int] = (0,),
    *,
    max_tokens: int = MAX_TOKENS,
    concurrency: int = 4,
) -> list[Case]:
    judge = Judge(reference, Noise("float32", reference.layers, reference.width))
    cases = compare_greedy(client, judge, prompts, lengths, max_tokens=max_tokens, concurrency=concurrency)
    return list(cases)


def case_of(prompt: str, ids: Sequence[int], finish: str, prompt_tokens: int | None = None) -> Case:
    client = serving(ids, finish, prompt_tokens)
    return judged(client, ToyReference(), [prompt])[0]


prompts = st.text("abcdefg", min_size=1)


@given(prompts)
def test_the_references_own_answer_passes(prompt: str) -> None:
    ids = ToyReference().answer(prompt, MAX_TOKENS)
    assert case_of(prompt, ids, finish_of(ids)).ok


@given(prompts, st.lists(st.integers(0, 2), min_size=MAX_TOKENS, max_size=MAX_TOKENS))
def test_of_two_tokens_that_tie_either_is_right_and_no_third(prompt: str, ranks: list[int]) -> None:
    reference, ids = UndecidedReference(), list[int]()
    for rank in ranks:
        ids.append((reference.next_token([*reference.encode(prompt), *ids]) + rank) % VOCAB)
        if ids[-1] == END:
            break
    client = serving(ids, finish_of(ids))
    case = judged(client, reference, [prompt])[0]
    assert case.ok is (2 not in ranks[: len(ids)])


@given(prompts)
def test_an_end_that_ties_may_be_kept_by_the_server(prompt: str) -> None:
    reference, ids = UndecidedReference(), list[int]()
    # Until the reference's runner-up is the end.
    while (token := reference.next_token([*reference.encode(prompt), *ids])) != VOCAB - 1:
        assume(token != END and len(ids) < MAX_TOKENS - 1)
        ids.append(token)
    assume(ids)
    for finish, ok in (("stop", True), ("length", False)):
        case = judged(serving(ids, finish), reference, [prompt])[0]
        assert case.ok is ok


# Few toy answers end by themselves, so many prompts are passed over.
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(prompts)
def test_a_server_may_keep_the_end_token_to_itself(prompt: str) -> None:
    ids = ToyReference().answer(prompt, MAX_TOKENS)
    assume(ids[-1] == END and len(ids) > 1)
    assert case_of(prompt, ids[:-1], "stop").ok
    assert not case_of(prompt, ids[:-1], "length").ok


@given(prompts, st.data())
def test_one_wrong_token_is_found_where_it_is(prompt: str, data: st.DataObject) -> None:
    ids = ToyReference().answer(prompt, MAX_TOKENS)
    position = data.draw(st.integers(0, len(ids) - 1))
    wrong = data.draw(
        st.sampled_from([i for i in (-1, *range(VOCAB), VOCAB, 2**31 - 1) if i != ids[position]])
    )
    served = [*ids[:position], wrong, *ids[position + 1 :]]
    difference = case_of(prompt, served, finish_of(served)).defect
    assert difference is not None
    assert difference.position == position
    assert difference.served is not None
    assert difference.served.id == wrong
    assert difference.expected == Token(ids[position], ToyReference().decode([ids[position]]))
    assert difference.margin == 0.5
    before = ToyReference().decode([*ToyReference().encode(prompt), *ids[:position]])
    assert before.endswith(difference.before)


@given(prompts, st.data())
def test_an_answer_that_ends_early_is_found(prompt: str, data: st.DataObject) -> None:
    ids = ToyReference().answer(prompt, MAX_TOKENS)
    length = data.draw(st.integers(0, len(ids) - 1))
    finish = data.draw(st.sampled_from(["length", "cancelled", "stop"]))
    assume(not (finish == "stop" and ids[length] == END))
    assume(length > 0)
    difference = case_of(prompt, ids[:length], finish).defect
    assert difference is not None
    assert (difference.position, difference.served) == (length, None)
    assert difference.expected is not None
    assert difference.expected.id == ids[length]


@given(prompts)
def test_an_answer_that_goes_on_is_found(prompt: str) -> None:
    ids = ToyReference().answer(prompt, MAX_TOKENS)
    more = ToyReference().next_token([*ToyReference().encode(prompt), *ids])
    difference = case_of(prompt, [*ids, more], "length").defect
    assert difference is not None
    assert (difference.position, difference.expected) == (len(ids), None)


def test_a_prompt_that_the_server_cuts_into_other_tokens_is_a_mismatch() -> None:
    ids = ToyReference().answer("abc", MAX_TOKENS)
    assert case_of("abc", ids, finish_of(ids), prompt_tokens=3).ok
    case = case_of("abc", ids, finish_of(ids), prompt_tokens=4)
    assert not case.ok
    assert (case.defect, case.prompt_tokens, case.expected_prompt_tokens) == (None, 4, 3)


def test_every_prompt_is_asked_with_every_draft_length_and_equal_answers_share_a_pass() -> None:
    reference = ToyReference()
    transport = MockTransport(lambda request: honest(request))
    cases = judged(Client(transport=transport), reference, ["ab", "cd"], (0, 3, 5))
    assert all(case.ok for case in cases)
    assert [(case.num_draft_tokens, case.prompt) for case in cases] == [
        (drafts, prompt) for drafts in (0, 3, 5) for prompt in ("ab", "cd")
    ]
    assert sorted(request.inputs["num_draft_tokens"].item() for request in transport.requests) == [
        0,
        0,
        3,
        3,
        5,
        5,
    ]
    assert reference.passes == 2


def honest(request: InferRequest) -> Iterator[InferResponse]:
    ids = ToyReference().answer(request.inputs["text_input"].item().decode(), MAX_TOKENS)
    for index in ids[:-1]:
        yield InferResponse({"output_ids": np.array([[index]])})
    finish = np.array([[finish_of(ids).encode()]], object)
    yield InferResponse({"output_ids": np.array([ids[-1:]]), "finish_reason": finish}, final=True)


def test_a_fault_that_one_draft_length_has_is_reported_for_it_alone() -> None:
    def handler(request: InferRequest) -> Iterator[InferResponse]:
        for number, response in enumerate(honest(request)):
            if number == 2 and request.inputs["num_draft_tokens"].item() == 3:
                wrong = (response.outputs["output_ids"] + 1) % VOCAB
                response = InferResponse({**response.outputs, "output_ids": wrong}, response.final)
            yield response

    client = Client(transport=MockTransport(handler))
    longer = [prompt for prompt in "abcdefg" if len(ToyReference().answer(prompt, MAX_TOKENS)) > 3][:2]
    report = VerifyReport("toy", cases=tuple(judged(client, ToyReference(), longer, range(5))))
    assert {case.num_draft_tokens for case in report.mismatches} == {3}
    assert [case.defect.position for case in report.mismatches if case.defect] == [2, 2]
    assert len(report.cases) == 10
    assert not report.ok


def test_as_many_answers_are_under_way_as_asked_for() -> None:
    together = threading.Barrier(3)

    def handler(request: InferRequest) -> Iterator[InferResponse]:
        together.wait(20)
        yield from honest(request)

    client = Client(transport=MockTransport(handler))
    assert all(case.ok for case in judged(client, ToyReference(), list("abcdef"), concurrency=3))


def test_a_failed_answer_ends_verification_and_what_is_under_way() -> None:
    under_way = threading.Barrier(2)

    def handler(request: InferRequest) -> Iterator[Delta]:
        prompt = request.inputs["text_input"].item()
        if prompt != b"next":
            under_way.wait(20)
        if prompt == b"bad":
            raise ServerFailed("engine died", request_id=request.id)
        while True:
            yield Delta("a", (1,))

    transport = MockTransport(handler)
    with pytest.raises(ServerFailed, match="engine died"):
        judged(Client(transport=transport), ToyReference(), ["bad", "good", "next"], concurrency=2)
    endless = {
        request.id for request in transport.requests[:] if request.inputs["text_input"].item() != b"bad"
    }
    assert set(transport.closed_early) == endless


def test_a_failed_answer_does_not_wait_for_a_server_that_is_silent() -> None:
    both = threading.Barrier(2)

    def script(asked: Asked) -> Iterator[Step | Fault]:
        both.wait(20)
        if asked.prompt == "bad":
            yield Fault("engine died", "INTERNAL")
        asked.over.wait(60)

    with ScriptedServer(script) as server, Client(server.url) as client:
        with pytest.raises(ServerFailed, match="engine died"):
            judged(client, ToyReference(), ["bad", "silent"], concurrency=2)
        assert [asked.was_cancelled() for asked in server.asked if asked.prompt == "silent"] == [True]


def test_the_default_prompts_are_64_different_ones() -> None:
    assert len(set(DEFAULT_PROMPTS)) == len(DEFAULT_PROMPTS) == 64


def test_prompts_are_read_from_lines_and_from_json_lines(tmp_path: Path) -> None:
    text, lines = tmp_path / "prompts.txt", tmp_path / "prompts.jsonl"
    text.write_bytes("one\r\n\n  two ß\n".encode())
    lines.write_text('"a\\nb"\n\n{"prompt": "c\u2028", "id": 1}\n', encoding="utf-8")
    assert read_texts(text) == ("one", "  two ß")
    assert read_texts(lines) == ("a\nb", "c\u2028")


def test_a_byte_order_mark_is_no_part_of_a_prompt(tmp_path: Path) -> None:
    for name, content in (("a.txt", "one"), ("b.jsonl", '"one"'), ("c.JSONL", '"one"')):
        (tmp_path / name).write_text(content, "utf-8-sig")
        assert read_texts(tmp_path / name) == ("one",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "found no prompts, expected one a line"),
        (b"\xff", r"prompts\.jsonl:1: found byte 0xff"),
        (b'"a"\n{', r"prompts\.jsonl:2: found no JSON"),
        (b'{"messages": [{"role": "user", "content": "a"}]}', "found messages, expected texts"),
        (b'{"question": "a"}', r"prompts\.jsonl:1: found .*, expected a string or"),
        (b"[1]", r"prompts\.jsonl:1: found \[1\], expected a string or"),
    ],
)
def test_a_file_without_prompts_is_refused_with_the_line(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(content)
    with pytest.raises(ClientError, match=message):
        read_texts(path)


@pytest.fixture(scope="module")
def demo_reference(demo_pair: Path) -> HuggingFaceReference:
    return HuggingFaceReference(demo_pair / "target")


DEMO_PROMPTS = ("def main(", "import os\n", "Grüße 🌍")


@pytest.fixture(scope="module")
def demo_answers(demo_pair: Path) -> dict[str, list[int]]:
    """What Hugging Face's own generate says, eight tokens each."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(demo_pair / "target", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(demo_pair / "target")
    answers = {}
    for prompt in DEMO_PROMPTS:
        inputs = tokenizer(prompt, return_tensors="pt")
        ids = model.generate(**inputs, max_new_tokens=8, do_sample=False)[0].tolist()
        answers[prompt] = ids[inputs["input_ids"].shape[1] :]
    return answers


def test_one_pass_over_an_answer_chooses_what_generate_chose(
    demo_reference: HuggingFaceReference, demo_answers: dict[str, list[int]]
) -> None:
    for prompt, ids in demo_answers.items():
        logits = demo_reference.logits(demo_reference.encode(prompt), ids)
        assert logits.shape == (len(ids) + 1, demo_reference.vocab_size)
        assert logits.argmax(-1).tolist()[:-1] == ids


def test_the_reference_knows_its_vocabulary_and_its_end(demo_reference: HuggingFaceReference) -> None:
    assert (demo_reference.vocab_size, demo_reference.end_ids) == (4096, frozenset({2}))
    assert demo_reference.decode(demo_reference.encode("def f():\n    pass")) == "def f():\n    pass"


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path, demo_pair: Path) -> None:
    with pytest.raises(CheckpointError, match=r"found no Hugging Face folder, .*--reference"):
        HuggingFaceReference(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="transformers cannot load it"):
        HuggingFaceReference(tmp_path, demo_pair / "target")


def test_without_torch_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, demo_pair: Path
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(ClientError, match=r"needs torch, .*pip install 'trtspec\[build\]'"):
        HuggingFaceReference(demo_pair / "target")


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(typed: Run) -> Run:
    """Run `trtspec verify` in this process; exit code, stdout, stderr."""
    return partial(typed, "verify")


@pytest.fixture
def demo_prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, DEMO_PROMPTS)))
    return path


GREEDY = ("--max-tokens", 8, "--part", "greedy", "--dtype", "float32")


class DemoServer(ScriptedServer):
    """A double that serves given answers of the demo target, in two deltas."""

    def __init__(self, answers: dict[str, list[int]], reference: HuggingFaceReference) -> None:
        super().__init__(self._answer)
        self._answers = answers
        self._reference = reference

    def _answer(self, asked: Asked) -> Iterator[Step]:
        ids = self._answers[asked.prompt]
        read = len(self._reference.encode(asked.prompt))
        yield Step("…", ids[:3])
        yield last("…", ids[3:], prompt_tokens=read, tokens=len(ids), finish="length")


def test_an_honest_server_is_exit_code_0(
    run: Run, demo_pair: Path, demo_reference: Any, demo_answers: Any, demo_prompts: Path
) -> None:
    with DemoServer(demo_answers, demo_reference) as server:
        args = [server.url, "--reference", demo_pair / "target", "--prompts", demo_prompts, *GREEDY]
        code, out, _ = run(*args, "--num-draft-tokens", "0-1,4")
        assert code == 0
        assert "no defect in 18 findings; judged as float32; reference:" in out
        rows = [line.split("│")[1:6] for line in out.splitlines() if line[:1] == "│"]
        assert [[cell.strip() for cell in row] for row in rows] == [
            [drafts, "6", "48", "6", "0"] for drafts in "014"
        ]
        code, out, err = run(*args, "--num-draft-tokens", "2", "--json")
    report = json.loads(out)
    assert (code, report["ok"], len(report["cases"]), err) == (0, True, 6, "")
    assert report["cases"][0]["token_ids"] == demo_answers[DEMO_PROMPTS[0]]


def test_stderr_says_how_far_it_has_come(
    run: Run, demo_pair: Path, demo_reference: Any, demo_answers: Any, demo_prompts: Path
) -> None:
    with DemoServer(demo_answers, demo_reference) as server:
        args = [server.url, "--reference", demo_pair / "target", "--prompts", demo_prompts, *GREEDY]
        _, _, err = run(*args, "--num-draft-tokens", "0,3", "--part", "reference")
    alone = [f"greedy: {n} draft tokens, each prompt alone" for n in (0, 3)]
    assert err.splitlines() == [
        *("reference: …", "greedy: …", "greedy: 0 draft tokens", "greedy: 3 draft tokens"),
        *alone,
    ]


def test_a_lying_server_is_exit_code_3_and_the_lie_is_shown(
    run: Run, demo_pair: Path, demo_reference: Any, demo_answers: Any, demo_prompts: Path
) -> None:
    right = demo_answers[DEMO_PROMPTS[1]]
    wrong = [*right[:5], (right[5] + 1) % 4096, *right[6:]]
    with DemoServer({**demo_answers, DEMO_PROMPTS[1]: wrong}, demo_reference) as server:
        args = [server.url, "--reference", demo_pair / "target", "--prompts", demo_prompts, *GREEDY]
        code, out, _ = run(*args, "--num-draft-tokens", "4")
        code_json, out_json, _ = run(*args, "--num-draft-tokens", "4", "--json")
    decode = demo_reference.decode
    assert (code, code_json) == (3, 3)
    assert "2 of 6 findings are defects" in out
    served, expected = (f"{decode([ids[5]])!r} ({ids[5]})" for ids in (wrong, right))
    before = decode([*demo_reference.encode(DEMO_PROMPTS[1]), *right[:5]])[-40:]
    assert f"'import os\\n' with 4 draft tokens: position 5 after {before!r}: served {served}, " in out
    assert f"the reference says {expected}, " in out
    (difference,) = json.loads(out_json)["cases"][1]["differences"]
    assert difference["verdict"] == "defect"
    assert difference["gap"] > difference["bound"] > 0
    assert (difference["position"], difference["served"]["id"], difference["expected"]["id"]) == (
        5,
        wrong[5],
        right[5],
    )


def test_what_cannot_be_verified_is_exit_code_1(run: Run, demo_pair: Path, tmp_path: Path) -> None:
    for args, message in (
        (["localhost:1", "--reference", tmp_path], "found no Hugging Face folder"),
        (["localhost:1", "--reference", demo_pair / "target"], "localhost:1: no server took the request"),
        (
            ["localhost:1", "--reference", demo_pair / "target", "--prompts", tmp_path / "no"],
            "cannot be read",
        ),
    ):
        code, out, err = run(*args)
        assert (code, out) == (1, "")
        assert message in err


def test_what_was_found_is_reported_when_the_server_fails_later(
    run: Run, demo_pair: Path, demo_reference: Any, demo_answers: Any, demo_prompts: Path, tmp_path: Path
) -> None:
    class Failing(DemoServer):
        def _answer(self, asked: Asked) -> Iterator[Any]:
            if asked.prompt == DEMO_PROMPTS[2]:
                yield Fault("out of memory", "INTERNAL")
            yield from super()._answer(asked)

    junit = tmp_path / "report.xml"
    with Failing(demo_answers, demo_reference) as server:
        args = [server.url, "--reference", demo_pair / "target", "--prompts", demo_prompts, *GREEDY]
        code, out, err = run(*args, "--num-draft-tokens", "0", "--concurrency", "1", "--junit", junit)
    assert code == 1
    assert "out of memory" in err
    assert "stopped before the end; no defect in 2 findings" in out
    assert '<error message="stopped before the end' in junit.read_text()


def test_a_server_built_for_fewer_draft_tokens_is_verified_up_to_those(
    run: Run, demo_pair: Path, demo_reference: Any, demo_answers: Any, demo_prompts: Path
) -> None:
    class UpToTwo(DemoServer):
        def _answer(self, asked: Asked) -> Iterator[Any]:
            drafts = asked.values["num_draft_tokens"][0]
            if not 0 <= drafts <= 2:
                yield Fault(
                    f"num_draft_tokens is {drafts}; the engine was built for 0 to 2", "INVALID_ARGUMENT"
                )
            yield from super()._answer(asked)

    with UpToTwo(demo_answers, demo_reference) as server:
        args = [server.url, "--reference", demo_pair / "target", "--prompts", demo_prompts, *GREEDY]
        code, out, _ = run(*args, "--json")
        asked = len(server.asked)
        code_asked, out_asked, err = run(*args, "--num-draft-tokens", "0-3")
        before = len(server.asked) - asked
    report = json.loads(out)
    assert (code, {case["num_draft_tokens"] for case in report["cases"]}) == (0, {0, 1, 2})
    assert [found["name"] for found in report["findings"]] == [f"{n} draft tokens" for n in range(8, 2, -1)]
    # What was asked for by name is an error, before anything is compared.
    assert (code_asked, out_asked, before) == (1, "", 1)
    assert "num_draft_tokens is 3" in err


def test_a_report_that_could_not_be_written_is_refused_before_the_start(run: Run, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "no/report"):
        for option in ("--junit", "--html"):
            code, out, err = run("localhost:1", "--reference", tmp_path, option, path)
            assert (code, out) == (2, "")
            assert "expected a file to write" in err
    (tmp_path / "loop").symlink_to("loop")
    code, _, err = run("localhost:1", "--reference", tmp_path, "--html", tmp_path / "loop")
    assert (code, "loop: cannot be written: Too many levels" in err) == (2, True)
    same = tmp_path / "report"
    code, _, err = run("localhost:1", "--reference", tmp_path, "--html", same, "--junit", same)
    assert (code, "found one file for several of --json, --junit, --html" in err) == (2, True)
    code, _, err = run("localhost:1", "--reference", tmp_path, "--html", "-", "--json")
    assert (code, "--json and --html would both be on stdout" in err) == (2, True)


@pytest.mark.parametrize("option", ["--junit", "--html"])
def test_a_report_can_be_printed(run: Run, demo_pair: Path, option: str) -> None:
    with ScriptedServer(lambda _: [last("x", [5], prompt_tokens=3, tokens=1, finish="length")]) as server:
        arguments = ("--reference", demo_pair / "target", "--part", "reference", "--num-draft-tokens", "0")
        code, out, _ = run(server.url, *arguments, option, "-")
        assert (code, out.startswith(("<?xml", "<!doctype"))) == (0, True)
        report = "--junit" if option == "--html" else "--html"
        code, out, err = run(server.url, *arguments, option, "/dev/full", report, "-")
        assert (code, out.startswith(("<?xml", "<!doctype"))) == (1, True)
        assert "/dev/full: cannot be written: No space left on device" in err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["x", "--num-draft-tokens", "0-99999999999"], "expected at most 1024"),
        (["localhost:8001"], "is no folder; for a running server pass --reference HF_DIR"),
        (["x", "--num-draft-tokens", "8-0"], "found '8-0', expected lengths like 4, 0,3,5, 0-8 or auto"),
        (["x", "--num-draft-tokens", "two"], "found 'two', expected lengths"),
        (["x", "--num-draft-tokens", "-1"], "found '-1', expected lengths"),
        (["x", "--num-draft-tokens", "auto"], "expected 0,auto"),
        (["x", "--max-tokens", "0"], "0 is not in the range"),
    ],
)
def test_wrong_usage_is_exit_code_2(run: Run, args: list[str], message: str) -> None:
    code, out, err = run(*args)
    assert (code, out) == (2, "")
    assert message in err


def test_a_report_without_mismatches_is_ok_where_something_was_compared() -> None:
    assert VerifyReport("toy", others=(Finding("tokens", "one", "ok"),)).ok
    skipped = VerifyReport("toy", others=(Finding("tokens", "one", "skipped", "why"),) * 2)
    assert (skipped.ok, skipped.compared, skipped.skipped) == (False, False, ("tokens: 2 skipped: why",))
    assert not VerifyReport("toy").ok
    assert "<h1>Nothing was compared</h1>" in to_html(skipped)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"parts": ("greedy", "fingerprnt")}, "parts: found fingerprnt, expected some of reference, "),
        ({"parts": ()}, "parts: found none, expected at least one"),
        ({"prompts": []}, "prompts: found none"),
        ({"num_draft_tokens": range(0)}, "num_draft_tokens: found none"),
        ({"prompts": "def main("}, r"prompts: found 'def main\(', expected a list; write \['def main\('\]"),
        ({"parts": "greedy"}, r"parts: found 'greedy', expected a list; write \['greedy'\]"),
        ({"num_draft_tokens": (AUTO,)}, "num_draft_tokens: found -1 alone, which says of no length"),
        ({"num_draft_tokens": (0, "auto")}, "found 'auto', expected numbers from 0 on, and -1 for auto"),
        ({"num_draft_tokens": (0, -7)}, "num_draft_tokens: found -7"),
        ({"dtype": "int8"}, "dtype: found 'int8', expected one of float32, "),
        ({"max_tokens": 0}, "max_tokens: found 0, expected a whole number, at least 1"),
        (
            {"concurrency": 0, "alone": -1},
            "concurrency: found 0, .* at least 1; alone: found -1, .* at least 0",
        ),
        ({"draws": 39}, "draws: found 39, expected a whole number, at least 40"),
        ({"sampling_prompts": 0}, "sampling_prompts: found 0"),
        ({"option_prompts": 1.5}, "option_prompts: found 1.5"),
        ({"seed": -5}, "seed: found -5"),
        ({"alarm_rate": 0.0}, "alarm_rate: found 0.0, expected a probability between 0 and 1"),
    ],
)
def test_settings_that_would_compare_nothing_or_make_no_sense_are_refused(
    wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        Settings(**wrong)


def test_a_reference_that_is_cut_short_is_an_error_of_ours(demo_pair: Path, tmp_path: Path) -> None:
    folder = tmp_path / "target"
    shutil.copytree(demo_pair / "target", folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:500])
    with pytest.raises(CheckpointError, match="transformers cannot load it"):
        HuggingFaceReference(folder)
