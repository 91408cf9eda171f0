"""verify, everything but greedy ids and sampling: noise, log-probs, options, text only, the reports."""

from __future__ import annotations

import io
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from processes import ends
from scripted_server import Asked, ScriptedServer, Step, last
from test_fp8_convert import to_fp8
from toy_reference import END, ToyReference, UndecidedReference

from trtspec.client import (
    CallFailed,
    Client,
    InferRequest,
    InferResponse,
    MockTransport,
    RequestRefused,
    ServerFailed,
)
from trtspec.client._mock import TRTSPEC_MODEL
from trtspec.client.verify import (
    AUTO,
    DTYPES,
    Case,
    Dtype,
    Finding,
    HuggingFaceReference,
    Judge,
    Noise,
    Settings,
    Verification,
    VerifyReport,
    verify,
)
from trtspec.client.verify.distribution import Shaping, Warp, log_probs, top_kl
from trtspec.client.verify.fp8 import load_fp8
from trtspec.client.verify.html import to_html
from trtspec.client.verify.junit import to_junit
from trtspec.client.verify.options import check_options
from trtspec.client.verify.self_test import KNOWN_IDS, KNOWN_LOGITS, formula, known_answer, self_test
from trtspec.client.verify.tokens import compare_tokens
from trtspec.engines.pair import EnginePair
from trtspec.errors import CheckpointError

EXACT = Noise("float32", 1, 1)
Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]


# Noise


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_bound_holds_for_transformers_in_that_dtype_and_is_not_idle(demo_pair: Path, dtype: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    ids = torch.tensor([[1, *range(40, 100)]])
    rows = {}
    for name in (dtype, "float64"):
        options: Any = {"dtype": getattr(torch, name)}
        model = AutoModelForCausalLM.from_pretrained(demo_pair / "target", **options)
        with torch.inference_mode():
            rows[name] = model(ids, use_cache=False).logits[0].double().numpy()
    noise = Noise(dtype, 16, 256)  # type: ignore[arg-type]
    # Of two logits: what they are off by together.
    off = [np.ptp(a - b) for a, b in zip(rows[dtype], rows["float64"], strict=True)]
    bounds = [noise.bound(row) for row in rows["float64"]]
    # Over a whole vocabulary some pair is worse than the bound for one pair; chosen tokens are not.
    best = rows["float64"].argmax(-1)
    at_best = [abs((a - b)[i] - np.median(a - b)) for a, b, i in zip(*rows.values(), best, strict=True)]
    assert all(value <= bound for value, bound in zip(at_best, bounds, strict=True))
    assert max(off) > min(bounds) / 20


@pytest.fixture(scope="module")
def fp8_target(demo_pair: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo target in FP8; each token's inputs by a scale of their own, which needs no calibration."""
    folder = tmp_path_factory.mktemp("fp8") / "target"
    to_fp8(demo_pair / "target", folder, format="hf", static=False)
    return folder


@pytest.mark.parametrize("dtype", ["fp8", "fp8-float32"])
def test_the_bound_holds_for_fp8_in_a_computation_that_rounds_otherwise(
    fp8_target: Path, dtype: Dtype
) -> None:
    import torch

    def rounded(module: Any, inputs: Any, output: Any) -> Any:
        if not torch.is_tensor(output):
            return (rounded(module, inputs, output[0]), *output[1:])
        if dtype == "fp8":
            return output.bfloat16().float()
        return output * (1 + 2.0**-22 * torch.randn(output.shape, generator=generator))

    generator = torch.Generator().manual_seed(1)
    ids = torch.tensor([[1, *range(40, 100)]])
    rows = []
    for model in (load_fp8(fp8_target), load_fp8(fp8_target)):
        if rows:
            for name, module in model.named_modules():
                if name.startswith("model.layers.") or not list(module.children()):
                    module.register_forward_hook(rounded)
        with torch.inference_mode():
            rows.append(model(ids, use_cache=False).logits[0].double().numpy())
    noise, (right, other) = Noise(dtype, 16, 256), rows
    second, best = np.argsort(right, -1)[:, -2:].T
    every = np.arange(len(right))
    off = np.abs((other - right)[every, best] - (other - right)[every, second])
    shares = off / [noise.bound(row) for row in right]
    assert 0.05 < shares.max() < 1
    divergences = [top_kl(*pair, 20) for pair in zip(right, other, strict=True)]
    assert 0.002 < np.mean(divergences) / np.mean([noise.kl(row) for row in right]) < 1
    assert all(kl <= noise.largest_kl(row) for kl, row in zip(divergences, right, strict=True))


DTYPE_ORDER: tuple[Dtype, ...] = ("float32", "float16", "bfloat16", "fp8-float32", "fp8")


def test_a_coarser_dtype_has_a_larger_bound() -> None:
    row = np.random.default_rng(0).normal(0, 2, 1000)
    bounds = [Noise(dtype, 32, 4096).bound(row) for dtype in DTYPE_ORDER]
    assert bounds == sorted(bounds)
    assert bounds[0] < 0.01 < bounds[1] < bounds[-1] < 2
    assert set(DTYPES) == set(DTYPE_ORDER)


@pytest.mark.parametrize(
    ("quantized", "computes", "judged"),
    [
        (False, "bfloat16", "bfloat16"),
        (True, "bfloat16", "fp8"),
        (True, "float32", "fp8-float32"),
    ],
)
def test_a_pair_is_judged_by_what_its_target_computes_in(
    built_pair: EnginePair, quantized: bool, computes: str, judged: Dtype
) -> None:
    target = built_pair.manifest.target
    settings = target.settings.model_copy(update={"dtype": computes})
    changed = target.model_copy(update={"settings": settings, "quantization": quantized or None})
    manifest = built_pair.manifest.model_copy(update={"target": changed})
    assert manifest.served_dtype == judged


def test_masked_logits_say_nothing_about_the_noise() -> None:
    row = np.random.default_rng(0).normal(0, 2, 1000)
    assert EXACT.bound(np.append(row, -np.inf)) == pytest.approx(EXACT.bound(row))


# What the reference's logits become


rows = st.lists(st.floats(-8, 8), min_size=2, max_size=30).map(np.array)


@given(rows, st.floats(0.2, 3), st.integers(0, 35), st.floats(0.05, 1))
@example(np.array([np.nextafter(8.0, 0.0), 8.0]), 1.5, 0, 0.75)
def test_probabilities_are_those_of_hugging_faces_warpers(
    row: np.ndarray[Any, Any], temperature: float, top_k: int, top_p: float
) -> None:
    import torch
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    scores = torch.tensor(row)[None]
    scores = TemperatureLogitsWarper(temperature)(None, scores)
    if top_k:
        scores = TopKLogitsWarper(top_k)(None, scores)
    expected = TopPLogitsWarper(top_p)(None, scores) if top_p < 1 else scores
    reached = np.cumsum(np.sort(scores[0].softmax(-1).numpy())[::-1])
    assume(np.abs(reached - top_p).min() > 1e-12)  # rounding would decide
    p_V, allowed_V = Warp(temperature, top_k, top_p).probabilities(row)
    # Of equal logits either may be kept.
    np.testing.assert_allclose(np.sort(p_V), np.sort(expected[0].softmax(-1).numpy()), atol=1e-9)
    assert allowed_V[p_V > 0].all()


def test_a_token_that_noise_lifts_over_the_edge_may_be_drawn() -> None:
    row = np.array([2.0, 1.0, 0.99, -5.0])
    assert Warp(top_k=2).probabilities(row)[1].tolist() == [True, True, False, False]
    p_V, allowed_V = Warp(top_k=2).probabilities(row, slack=0.02)
    assert (p_V[2], allowed_V.tolist()) == (0, [True, True, True, False])


def test_a_token_that_noise_lets_into_top_p_may_be_drawn() -> None:
    # The best alone has more than top_p, by less than noise takes away.
    row = np.log([0.901, 0.06, 0.039])
    assert Warp(top_p=0.9).probabilities(row)[1].tolist() == [True, False, False]
    assert Warp(top_p=0.9).probabilities(row, slack=0.05)[1].tolist() == [True, True, False]


@given(
    rows,
    st.data(),
    st.floats(0.01, 1.5),
    st.floats(0.3, 2),
    st.integers(0, 12),
    st.sampled_from([0.5, 0.9, 1]),
)
def test_whatever_noise_within_the_slack_draws_is_allowed(
    row: Array, data: st.DataObject, slack: float, temperature: float, top_k: int, top_p: float
) -> None:
    off = data.draw(st.lists(st.floats(0, slack * 0.999), min_size=len(row), max_size=len(row)))
    warp = Warp(temperature, top_k, top_p)
    drawn = warp.probabilities(row + np.array(off))[0] > 0
    assert warp.probabilities(row, slack=slack)[1][drawn].all()


def test_shaping_does_what_each_option_says() -> None:
    row = np.array([3.0, -2.0, 1.0, 0.5])
    history = [1, 2, 0, 0]
    assert Shaping(bias={2: 1.5}).apply(row, history, 2).tolist() == [3, -2, 2.5, 0.5]
    assert Shaping(repetition_penalty=2).apply(row, history, 2).tolist() == [1.5, -4, 0.5, 0.5]
    # The last two ids are the answer's.
    assert Shaping(presence_penalty=1).apply(row, history, 2).tolist() == [2, -2, 1, 0.5]
    assert Shaping(frequency_penalty=1).apply(row, history, 2).tolist() == [1, -2, 1, 0.5]
    assert Shaping(bad_words=[[0, 3], [2, 1], [2]]).apply(row, history, 2).tolist() == [
        3,
        -2,
        -math.inf,
        -math.inf,
    ]
    ends = Shaping(min_tokens=3, end_ids=frozenset({0}))
    assert ends.apply(row, history, 2)[0] == -math.inf
    assert ends.apply(row, history, 3)[0] == 3
    assert row.tolist() == [3, -2, 1, 0.5]


# A server made from the toy reference, with every option; faults are put into it


class ToyServer:
    """A double of a server: greedy, one token after the other, text as NVIDIA's or ids as ours."""

    def __init__(
        self,
        ignores: str = "",
        *,
        text_only: bool = False,
        log_prob_offset: float = 0.0,
        logits: Callable[[Array, int], Array] | None = None,
    ) -> None:
        self.reference = ToyReference()
        self.reference.runner_up = 0.8
        self._ignores = ignores
        self._text_only = text_only
        self._offset = log_prob_offset
        # (rows that are served, the draft length) -> what is served in their place
        self._logits = logits or (lambda rows_TV, drafts: rows_TV)

    def client(self) -> Client:
        return Client(transport=MockTransport(self))

    def __call__(self, request: InferRequest) -> Iterator[InferResponse]:
        inputs = {name: array for name, array in request.inputs.items() if name != self._ignores}
        if int(inputs["num_draft_tokens"][0, 0]) < 0:
            raise RequestRefused("no such draft length", request_id=request.id)
        prompt = self.reference.encode(inputs["text_input"].item().decode())
        ids, scores, finish, text, stop = self._answer(prompt, inputs)
        outputs: Arrays = {"text_output": np.array([[text.encode()]], object)}
        if not self._text_only:
            outputs |= {
                "output_ids": np.array([ids], np.int32),
                "finish_reason": np.array([[finish.encode()]], object),
                "stop_reason": np.array([[stop.encode()]], object),
            }
            if "return_log_probs" in inputs:
                outputs["output_log_probs"] = np.array([[scores]], np.float32) + self._offset
            if "return_generation_logits" in inputs:
                rows_TV = self.reference.logits(prompt, ids)[:-1].astype(np.float32)
                drafts = int(inputs["num_draft_tokens"][0, 0])
                outputs["generation_logits"] = self._logits(rows_TV, drafts)[None, None]
        yield InferResponse(outputs, final=True)

    def _answer(self, prompt: list[int], inputs: Any) -> tuple[list[int], list[float], str, str, str]:
        def given(name: str, default: float) -> Any:
            return inputs[name].ravel()[0] if name in inputs else default

        def words(name: str) -> list[str]:
            return [word.decode() for word in inputs[name].ravel()] if name in inputs else []

        encode = self.reference.encode
        weights = inputs.get("embedding_bias_weights", np.zeros((1, 0))).ravel()
        biased = zip(words("embedding_bias_words"), weights, strict=False)
        end = int(given("end_id", END))
        shaping = Shaping(
            bias={i: w for word, w in biased for i in encode(word)},
            repetition_penalty=float(given("repetition_penalty", 1)),
            presence_penalty=float(given("presence_penalty", 0)),
            frequency_penalty=float(given("frequency_penalty", 0)),
            bad_words=[v for w in words("bad_words") for v in (encode(w), encode(f" {w}"))],
            min_tokens=int(given("min_tokens", 0)),
            end_ids=frozenset({end}),
        )
        sampled = float(given("temperature", 0)) > 0
        rng = np.random.default_rng(int(given("seed", 0)))
        ids: list[int] = []
        scores: list[float] = []
        while len(ids) < int(given("max_tokens", 0)):
            row = self.reference.logits([*prompt, *ids], ())[0]
            shaped = shaping.apply(row, [*prompt, *ids], len(ids))
            noise = rng.gumbel(size=len(row)) if sampled else 0
            ids.append(int((shaped + noise).argmax()))
            scores.append(float(log_probs(row)[ids[-1]]))
            text = self.reference.decode(ids)
            for stop in words("stop_words"):
                if stop in text:
                    kept = text.index(stop)
                    return ids[:kept], scores[:kept], "stop", text[:kept], stop
            if ids[-1] == end:
                return ids, scores, "stop", text if not self._text_only else text[:-1], ""
        return ids, scores, "length", self.reference.decode(ids), ""


# Those with long answers.
PROMPTS = [
    p
    for p in ("abc", "fade", "bed", "cab", "deaf", "face", "ab", "dd")
    if len(ToyReference().answer(p, 24)) > 12
][:3]


def option_findings(server: ToyServer) -> dict[str, Finding]:
    judge = Judge(server.reference, EXACT)
    found = check_options(server.client(), judge, PROMPTS, [0])
    return {finding.name.removesuffix(", 0 draft tokens"): finding for finding in found}


def test_options_that_work_are_found_to_work() -> None:
    verdicts = {name: finding.verdict for name, finding in option_findings(ToyServer()).items()}
    assert len(PROMPTS) == 3
    # The toy writes words of letters that it does not part by spaces.
    assert set(verdicts.values()) <= {"ok", "skipped"}
    assert [name for name, verdict in verdicts.items() if verdict == "skipped"] == []


@pytest.mark.parametrize(
    ("ignored", "shown_by"),
    [
        ("stop_words", "stop_words"),
        ("end_id", "end_id"),
        ("min_tokens", "min_tokens"),
        ("bad_words", "bad_words"),
        ("embedding_bias_weights", "embedding_bias"),
        ("repetition_penalty", "repetition_penalty"),
        ("presence_penalty", "presence_penalty"),
        ("frequency_penalty", "frequency_penalty"),
        ("seed", "seed"),
        ("return_log_probs", "return_log_probs"),
    ],
)
def test_an_option_that_is_ignored_is_a_defect(ignored: str, shown_by: str) -> None:
    found = option_findings(ToyServer(ignored))
    assert {name for name, finding in found.items() if finding.verdict == "defect"} == {
        shown_by,
        *(("min_tokens",) if ignored == "end_id" else ()),
    }


SETTINGS = Settings(
    prompts=PROMPTS,
    num_draft_tokens=(0, 2, AUTO),
    max_tokens=16,
    alone=2,
    parts=("reference", "greedy", "log-probs"),
)


def test_a_right_server_passes_and_a_length_it_does_not_know_is_left_out() -> None:
    server = ToyServer()
    report = verify(server.client(), server.reference, SETTINGS)
    assert (report.ok, report.complete) == (True, True)
    assert [(case.num_draft_tokens, case.alone) for case in report.cases] == [
        *([(0, False)] * 3 + [(2, False)] * 3),
        *([(0, True)] * 2 + [(2, True)] * 2),
    ]
    assert {finding.part for finding in report.others} == {"reference", "log-probs"}


def test_log_probs_that_are_off_by_more_than_noise_are_a_defect() -> None:
    server = ToyServer(log_prob_offset=1e-3)
    report = verify(server.client(), server.reference, SETTINGS)
    assert {finding.part for finding in report.findings if finding.verdict == "defect"} == {"log-probs"}
    assert "off by 0.001" in next(f.detail for f in report.others if f.verdict == "defect")


def test_log_probs_that_are_no_numbers_are_a_defect() -> None:
    server = ToyServer(log_prob_offset=math.nan)
    report = verify(server.client(), server.reference, SETTINGS)
    found = {f.name: f.verdict for f in report.others if f.part == "log-probs"}
    assert {verdict for name, verdict in found.items() if not name.startswith("logits")} == {"defect"}


# Logits


def full_kl(p_V: Array, q_V: Array) -> float:
    """By the definition, over the whole vocabulary."""
    from scipy.special import log_softmax, rel_entr

    return float(rel_entr(*(np.exp(log_softmax(row_V)) for row_V in (p_V, q_V))).sum())


@given(st.integers(0, 2**32 - 1), st.integers(2, 60), st.floats(1e-4, 3))
def test_the_divergence_is_the_definitions_and_cells_put_together_lose_some(
    seed: int, vocab: int, off: float
) -> None:
    rng = np.random.default_rng(seed)
    p_V = rng.normal(0, 3, vocab)
    q_V = p_V + rng.normal(0, off, vocab)
    assert top_kl(p_V, q_V, vocab) == pytest.approx(full_kl(p_V, q_V), abs=1e-12)
    assert 0 <= top_kl(p_V, q_V, 5) <= full_kl(p_V, q_V) + 1e-12
    assert top_kl(p_V, p_V + 7, 5) == pytest.approx(0, abs=1e-28)


def test_the_divergence_is_by_hand_that_of_the_top_and_the_rest() -> None:
    p, q = (0.5, 0.2, 0.15, 0.15), (0.25, 0.5, 0.2, 0.05)
    expected = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    assert top_kl(np.log(p), np.log(q), 1) == pytest.approx(expected)


def test_a_token_that_the_server_cannot_say_is_an_infinite_divergence() -> None:
    p_V = np.zeros(4)
    assert top_kl(p_V, np.array([0, -np.inf, 0, 0]), 2) == math.inf
    # What the reference cannot say either is no difference.
    assert top_kl(np.array([0, -np.inf, 0, 0]), np.array([0, -np.inf, 0, 0]), 2) == 0
    for wrong in (math.nan, math.inf):
        assert math.isnan(top_kl(p_V, np.array([0, wrong, 0, 0]), 2))


@given(st.integers(0, 2**32 - 1), st.sampled_from(DTYPES))
def test_no_logits_within_the_bound_diverge_by_more_than_the_largest_divergence(
    seed: int, dtype: Dtype
) -> None:
    rng, noise = np.random.default_rng(seed), Noise(dtype, 16, 256)
    row_V = rng.normal(0, 3, 50)
    # Each off by half of it, up or down: the most that two may be off.
    off_V = rng.choice([-0.5, 0.5], 50) * noise.bound(row_V)
    assert full_kl(row_V, row_V + off_V) <= noise.largest_kl(row_V) * (1 + 1e-6)


def logit_findings(server: ToyServer) -> list[Finding]:
    report = verify(server.client(), server.reference, replace(SETTINGS, parts=("log-probs",)))
    return [finding for finding in report.others if finding.name.startswith("logits")]


def test_the_references_own_logits_pass_at_both_draft_lengths() -> None:
    found = logit_findings(ToyServer())
    assert [finding.verdict for finding in found] == ["ok"] * 6
    assert {finding.name.split(":")[0] for finding in found} == {
        "logits, 0 draft tokens",
        "logits, 2 draft tokens",
    }
    for finding in found:
        assert 0 <= finding.numbers["mean_kl"] <= finding.numbers["allowed_mean_kl"] < 1e-12


def test_a_vocabulary_that_is_padded_is_cut_to_the_references() -> None:
    def padded(rows_TV: Array, drafts: int) -> Array:
        return np.pad(rows_TV, ((0, 0), (0, 9)), constant_values=50)

    assert {finding.verdict for finding in logit_findings(ToyServer(logits=padded))} == {"ok"}


def other_temperature(rows_TV: Array, drafts: int) -> Array:
    return rows_TV / np.float32(1.1)


def test_logits_of_another_temperature_are_a_defect_in_every_report() -> None:
    server = ToyServer(logits=other_temperature)
    report = verify(server.client(), server.reference, replace(SETTINGS, parts=("log-probs",)))
    wrong = [finding for finding in report.others if finding.verdict == "defect"]
    assert [finding.name.split(",")[0] for finding in wrong] == ["logits"] * 6
    # The log-probs are right: only logits show it.
    assert {f.verdict for f in report.others if not f.name.startswith("logits")} == {"ok"}
    row_V = server.reference.logits([1], ())[0]
    assert wrong[0].numbers["mean_kl"] == pytest.approx(full_kl(row_V, row_V / 1.1), rel=1e-5)
    words = "KL divergence of the top 20 and the rest"
    assert words in wrong[0].detail
    assert words in to_html(report)
    failures = ElementTree.fromstring(to_junit(report)).findall("testsuite/testcase/failure")
    assert [words in str(failure.get("message")) for failure in failures] == [True] * 6
    assert (
        json.loads(json.dumps(report.as_dict()))["findings"][-1]["numbers"].keys() == wrong[0].numbers.keys()
    )


@pytest.mark.parametrize(
    "fault",
    [
        lambda rows_TV, drafts: rows_TV if drafts == 0 else np.roll(rows_TV, 1, 0),
        lambda rows_TV, drafts: rows_TV if drafts == 0 else rows_TV[:-1],
        lambda rows_TV, drafts: rows_TV if drafts == 0 else rows_TV[:, :-1],
        lambda rows_TV, drafts: rows_TV if drafts == 0 else np.full_like(rows_TV, np.nan),
    ],
    ids=["rows shifted", "a row lacks", "a column lacks", "no numbers"],
)
def test_logits_that_are_wrong_with_a_draft_are_a_defect_there(fault: Any) -> None:
    verdicts = [finding.verdict for finding in logit_findings(ToyServer(logits=fault))]
    assert verdicts == ["ok"] * 3 + ["defect"] * 3


def test_one_position_that_is_off_is_a_defect_though_the_mean_is_not() -> None:
    def one_off(rows_TV: Array, drafts: int) -> Array:
        rows_TV[3, rows_TV[3].argmax()] += np.float32(1e-6)
        return rows_TV

    server = ToyServer(logits=one_off)
    # So deep that noise may be larger than the rounding of float32 logits.
    server.reference.layers = 64
    found = logit_findings(server)
    assert {finding.verdict for finding in found} == {"defect"}
    for finding in found:
        numbers = finding.numbers
        assert numbers["mean_kl"] < numbers["allowed_mean_kl"]
        assert numbers["largest_kl"] == numbers["kl_nearest_its_limit"] > numbers["its_limit"]
        assert "nearest its limit is position 3: " in finding.detail


@pytest.mark.parametrize("error", [RequestRefused, ServerFailed])
def test_an_engine_that_hands_out_no_logits_is_skipped(error: type[CallFailed]) -> None:
    server = ToyServer()

    def without(request: InferRequest) -> Iterator[InferResponse]:
        if "return_generation_logits" in request.inputs:
            raise error("the engine was built without gather_generation_logits", request_id=request.id)
        yield from server(request)

    client = Client(transport=MockTransport(without))
    report = verify(client, server.reference, replace(SETTINGS, parts=("log-probs",)))
    assert report.complete
    (skipped,) = [finding for finding in report.others if finding.verdict == "skipped"]
    assert skipped.name == "logits"
    assert "without gather_generation_logits" in skipped.detail


def test_a_model_without_logits_is_not_asked_for_them() -> None:
    server = ToyServer()
    outputs = {name: spec for name, spec in TRTSPEC_MODEL.outputs.items() if name != "generation_logits"}
    transport = MockTransport(server, metadata=replace(TRTSPEC_MODEL, outputs=outputs))
    report = verify(Client(transport=transport), server.reference, replace(SETTINGS, parts=("log-probs",)))
    assert [f.name for f in report.others if f.verdict == "skipped"] == ["logits"]
    assert not any("return_generation_logits" in request.inputs for request in transport.requests)


def test_numbers_that_json_has_not_are_null_in_it() -> None:
    server = ToyServer(log_prob_offset=math.nan)
    read = verify(server.client(), server.reference, SETTINGS).as_dict()
    assert None in [finding["numbers"].get("largest_error", 0) for finding in read["findings"]]
    json.dumps(read, allow_nan=False)


# Token ids of prompts and conversations


@pytest.mark.parametrize(
    ("served", "verdict", "detail"),
    [
        ([1, 2, 3], "ok", "3 tokens"),
        ([1, 2, 4], "defect", "3 tokens, expected 3; they part at 2: served [4], expected [3]"),
        ([1, 2], "defect", "they part at 2: served [], expected [3]"),
        ([6, 6, 1, 2, 3], "defect", "begins with BOS (6) twice"),
    ],
)
def test_what_the_server_reads_is_compared_id_by_id(served: list[int], verdict: str, detail: str) -> None:
    class Chatting(ToyReference):
        bos_id = 6

        def render(self, messages: Any) -> list[int] | None:
            return [1, 2, 3]

    def handler(request: InferRequest) -> Iterator[InferResponse]:
        yield InferResponse({"prompt_ids": np.array([served], np.int32)}, final=True)

    client = Client(transport=MockTransport(handler))
    found = list(compare_tokens(client, Chatting(), ["abc"]))
    assert [finding.verdict for finding in found] == [verdict] * 3
    assert all(detail in finding.detail for finding in found)


def test_a_server_that_does_not_tell_its_tokens_is_skipped() -> None:
    def handler(request: InferRequest) -> Iterator[InferResponse]:
        raise RequestRefused("max_tokens is 0", request_id=request.id)
        yield

    found = list(compare_tokens(Client(transport=MockTransport(handler)), ToyReference(), ["abc"]))
    assert {finding.verdict for finding in found} == {"skipped"}
    assert "the reference has no chat template" in found[-1].detail


# NVIDIA's model: text, no ids


def text_only_case(reference: ToyReference, text: str, prompt: str) -> Case:
    def handler(request: InferRequest) -> Iterator[InferResponse]:
        yield InferResponse({"text_output": np.array([[text.encode()]], object)}, final=True)

    client = Client(transport=MockTransport(handler))
    settings = Settings([prompt], max_tokens=12, parts=("greedy",), alone=0)
    return verify(client, reference, settings).cases[0]


def test_a_text_without_ids_is_read_along_the_reference() -> None:
    server = ToyServer(text_only=True)
    parts = ("greedy", "log-probs", "options", "sampling")
    report = verify(server.client(), server.reference, Settings(PROMPTS, (0, 2), max_tokens=16, parts=parts))
    assert report.ok, [f for f in report.findings if f.verdict == "defect"]
    assert all(case.from_text for case in report.cases)
    skipped = {finding.part for finding in report.others if finding.verdict == "skipped"}
    assert skipped == {"log-probs", "options", "sampling"}


@given(st.data())
def test_one_wrong_letter_of_a_text_is_found_where_it_is(data: st.DataObject) -> None:
    reference = ToyReference()
    text = reference.decode(reference.answer(PROMPTS[0], 12))
    position = data.draw(st.integers(0, len(text) - 1))
    wrong = data.draw(st.sampled_from([letter for letter in "abcdef" if letter != text[position]]))
    case = text_only_case(reference, text[:position] + wrong + text[position + 1 :], PROMPTS[0])
    assert case.defect is not None
    assert case.defect.position == position


class PairReference(ToyReference):
    """Knows "ab" as one token as well, 7, and means it wherever it says a and then b."""

    vocab_size = 8

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return super().encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join("ab" if i == 7 else "·abcdef"[i] for i in token_ids)

    def logits(self, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> Any:
        narrow = np.zeros((len(answer_ids) + 1, 8))
        for n in range(len(narrow)):
            seen = [*prompt_ids, *answer_ids[:n]]
            narrow[n, 7 if len(seen) % 3 == 0 else self.next_token(seen)] = 1.0
        return narrow


def test_a_text_that_the_tokenizer_would_cut_otherwise_is_no_difference() -> None:
    reference, ids = PairReference(), list[int]()
    while len(ids) < 12:
        ids.append(int(reference.logits([1, 2, 3, *ids], ())[0].argmax()))
    assert 7 in ids
    assert reference.encode(reference.decode(ids)) != ids
    case = text_only_case(reference, reference.decode(ids), "abc")
    assert case.ok
    assert list(case.token_ids) == ids


# The reference


def test_the_known_answer_is_what_a_llama_is_defined_to_say() -> None:
    np.testing.assert_allclose(llama_by_hand(), KNOWN_LOGITS, atol=1e-6)
    assert known_answer().verdict == "ok"


def llama_by_hand() -> np.ndarray[Any, Any]:
    """Two layers, two heads of four that share keys and values, in numpy and float64."""

    def w(name: str, *shape: int) -> np.ndarray[Any, Any]:
        return formula(f"{name}.weight", shape).astype(np.float64)

    def norm(x: np.ndarray[Any, Any], name: str) -> Any:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * w(name, 8)

    x = w("model.embed_tokens", 8, 8)[list(KNOWN_IDS)]
    angles = np.arange(len(x))[:, None] * 10000.0 ** (-np.arange(0, 4, 2) / 4)
    cos, sin = np.tile(np.cos(angles), 2), np.tile(np.sin(angles), 2)

    def rotated(x: np.ndarray[Any, Any]) -> Any:
        return x * cos + np.concatenate([-x[:, 2:], x[:, :2]], -1) * sin

    for layer in ("model.layers.0", "model.layers.1"):
        h = norm(x, f"{layer}.input_layernorm")
        q = h @ w(f"{layer}.self_attn.q_proj", 8, 8).T
        k, v = (h @ w(f"{layer}.self_attn.{name}_proj", 4, 8).T for name in "kv")
        heads = []
        for head in (q[:, :4], q[:, 4:]):
            scores = rotated(head) @ rotated(k).T / 2
            scores[np.triu_indices(len(x), 1)] = -np.inf
            weights = np.exp(scores)
            heads.append(weights / weights.sum(-1, keepdims=True) @ v)
        x = x + np.concatenate(heads, -1) @ w(f"{layer}.self_attn.o_proj", 8, 8).T
        h = norm(x, f"{layer}.post_attention_layernorm")
        gate, up = (h @ w(f"{layer}.mlp.{name}_proj", 12, 8).T for name in ("gate", "up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w(f"{layer}.mlp.down_proj", 8, 12).T
    return np.asarray((norm(x, "model.norm") @ w("lm_head", 8, 8).T)[-1, : len(KNOWN_LOGITS)])


def test_the_demo_reference_proves_itself_and_says_who_it_is(demo_pair: Path) -> None:
    found = {finding.name: finding for finding in self_test(HuggingFaceReference(demo_pair / "target"))}
    assert {finding.verdict for finding in found.values()} == {"ok"}
    assert set(found) == {"identity", "known answer", "one pass"}
    for part in ("transformers", "torch", "sha256 model.safetensors", "float32"):
        assert part in found["identity"].detail


def test_a_reference_that_the_engines_were_built_from_says_so(
    built_pair: EnginePair, demo_pair: Path
) -> None:
    source = built_pair.manifest.target.source
    assert source is not None
    reference = HuggingFaceReference(demo_pair / "target", built_from=source.files)
    (found,) = [finding for finding in reference.proofs() if finding.name == "source"]
    count = len(source.files)
    assert (found.verdict, found.detail) == (
        "ok",
        f"the {count} files that the engines were built from, by SHA-256",
    )


def test_a_reference_of_other_files_names_them(demo_pair: Path) -> None:
    files = {"config.json": "0" * 64, "model.safetensors.index.json": "0" * 64}
    reference = HuggingFaceReference(demo_pair / "target", built_from=files)
    (found,) = [finding for finding in reference.proofs() if finding.name == "source"]
    assert found.verdict == "note"
    assert found.detail.startswith(f"{demo_pair / 'target'} is not what the engines were built from, ")
    assert found.detail.endswith(
        ": config.json differs; model.safetensors.index.json is missing (of 2 files of the manifest, "
        "by SHA-256)"
    )
    assert VerifyReport("toy", others=(found,)).ok


def test_without_a_manifest_nothing_is_said_of_the_source(demo_pair: Path) -> None:
    assert [finding.name for finding in HuggingFaceReference(demo_pair / "target").proofs()] == [
        "known answer"
    ]


def test_the_code_that_comes_with_a_reference_is_never_run(
    demo_pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(demo_pair / "target", tmp_path / "own")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nraise ValueError('ran')\n")
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 9))
    with pytest.raises(CheckpointError, match="trust_remote_code"):
        HuggingFaceReference(folder)
    assert not (tmp_path / "ran").exists()


def test_a_reference_that_reads_otherwise_in_one_pass_is_a_defect() -> None:
    class Forgetful(ToyReference):
        def logits(self, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> Any:
            return super().logits(prompt_ids if not answer_ids else prompt_ids[:1] * 2, answer_ids)

    assert [f.verdict for f in self_test(Forgetful()) if f.name == "one pass"] == ["defect"]


# Reports


@pytest.fixture
def report() -> VerifyReport:
    """With a tie, a defect and a text that would break a page or a file."""
    prompt = "abc"
    reference = UndecidedReference()
    right = reference.next_token(reference.encode(prompt))
    served = [(right + 1) % 7, 3, 3, 3, 3, 3, 3]

    def handler(request: InferRequest) -> Iterator[InferResponse]:
        finish = np.array([[b"length"]], object)
        yield InferResponse({"output_ids": np.array([served]), "finish_reason": finish}, final=True)

    client = Client(transport=MockTransport(handler))
    found = verify(client, reference, Settings([prompt], max_tokens=7, parts=("greedy",), alone=0))
    bad = Finding("options", "<script>alert(1)</script>\x00\ud800", "defect", "a < b & 'c'")
    return VerifyReport(
        "toy", cases=found.cases, others=(bad, Finding("sampling", "all", "skipped", "no ids"))
    )


def test_a_tie_goes_on_and_a_defect_ends_an_answer(report: VerifyReport) -> None:
    differences = report.cases[0].differences
    assert [found.verdict for found in differences][:1] == ["tie"]
    assert [found.verdict for found in differences].count("defect") == 1
    assert differences[-1].verdict == "defect"
    assert differences[0].gap <= differences[0].bound < differences[-1].gap


def test_the_page_shows_differences_and_loads_nothing(report: VerifyReport) -> None:
    page = to_html(report)
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "a &lt; b &amp;" in page
    for loader in ("src=", "href=", "url(", "@import", "http:", "https:", "//"):
        assert loader not in page
    assert 'class="tie"' in page
    assert 'class="defect"' in page
    assert "default-src 'none'" in page


def test_junit_is_xml_that_counts_what_failed(report: VerifyReport) -> None:
    root = ElementTree.fromstring(to_junit(report))
    suites = {suite.get("name"): suite for suite in root}
    assert {name: (s.get("tests"), s.get("failures"), s.get("skipped")) for name, s in suites.items()} == {
        "greedy": ("1", "1", "0"),
        "options": ("1", "1", "0"),
        "sampling": ("1", "0", "1"),
    }
    failure = suites["greedy"].find("testcase/failure")
    assert failure is not None
    assert "the reference says" in str(failure.get("message"))


def test_the_report_is_json_without_nan(report: VerifyReport) -> None:
    read = json.loads(json.dumps(report.as_dict(), allow_nan=False))
    assert (read["ok"], len(read["cases"]), len(read["findings"])) == (False, 1, 2)


def test_a_stopped_verification_has_what_it_found() -> None:
    server, seen = ToyServer(), list[object]()

    def stop_at_the_second(found: Finding | Case) -> None:
        seen.append(found)
        if len(seen) == 3:
            raise KeyboardInterrupt

    settings = Settings(PROMPTS, (0, 2), max_tokens=16, parts=("greedy",))
    verification = Verification(server.client(), server.reference, settings, on_finding=stop_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        verification.run()
    assert (verification.report.complete, len(verification.report.cases)) == (False, 3)


# A process that a background job starts ignores SIGINT.
INTERRUPTIBLE = """
import signal
from trtspec.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""


def test_ctrl_c_ends_the_command_with_what_it_has(tmp_path: Path, demo_pair: Path) -> None:
    under_way = threading.Event()

    def script(asked: Asked) -> Iterator[Step]:
        under_way.set()
        asked.over.wait(60)
        yield last("x", [5], prompt_tokens=3, tokens=1, finish="length")

    page = tmp_path / "report.html"
    with ScriptedServer(script) as server:
        arguments = [server.url, "--reference", str(demo_pair / "target"), "--html", str(page), *ONE_ANSWER]
        code, out, _ = interrupted(arguments, under_way)
    assert code == 130
    assert "stopped before the end; no defect in 3 findings" in out
    assert "stopped before the end" in page.read_text("utf-8")


ONE_ANSWER = ("--num-draft-tokens", "0", "--concurrency", "1", "--part", "greedy", "--part", "reference")
NOTHING = "trtspec verify: stopped before anything was compared\n"


def interrupted(arguments: Sequence[str], when: threading.Event) -> tuple[int, str, str]:
    """Run the command and interrupt it; exit code, stdout, stderr."""
    command = [sys.executable, "-c", INTERRUPTIBLE, "verify", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as running:
        started = when.wait(120)
        running.send_signal(signal.SIGINT if started else signal.SIGKILL)
        out, err = running.communicate(timeout=60)
    return running.returncode, out, err


def test_ctrl_c_before_the_first_finding_says_that_nothing_was_compared(
    tmp_path: Path, demo_pair: Path
) -> None:
    under_way = threading.Event()

    def script(asked: Asked) -> Iterator[Step]:
        under_way.set()
        asked.over.wait(60)
        yield last("x", [5], prompt_tokens=3, tokens=1, finish="length")

    page = tmp_path / "report.html"
    with ScriptedServer(script) as server:
        arguments = [server.url, "--reference", str(demo_pair / "target"), "--html", str(page)]
        found = interrupted([*arguments, "--part", "greedy", "--json"], under_way)
    assert found == (130, "", NOTHING)
    assert not page.exists()


# Interrupts itself where transformers is first imported, which is where the reference loads.
INTERRUPTED_WHILE_LOADING = """
import signal, sys
class Interrupt:
    def find_spec(self, name, path, target=None):
        if name == "transformers":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
"""


def test_ctrl_c_while_the_reference_loads_says_that_nothing_was_compared(demo_pair: Path) -> None:
    arguments = ["verify", "localhost:1", "--reference", str(demo_pair / "target")]
    command = [sys.executable, "-c", INTERRUPTED_WHILE_LOADING + INTERRUPTIBLE, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", NOTHING)


def test_ctrl_c_while_the_server_starts_says_that_nothing_was_compared(
    built_pair: EnginePair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, starts = tmp_path / "pid", threading.Event()
    binary = tmp_path / "bin" / "tritonserver"
    binary.parent.mkdir()
    # A double of a server that never becomes ready.
    binary.write_text(f"#!/bin/sh\necho $$ > {started}\nexec sleep 600\n")
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", str(binary.parent), prepend=os.pathsep)

    def watch() -> None:
        while not (started.exists() and started.read_text()):
            time.sleep(0.05)
        starts.set()

    threading.Thread(target=watch, daemon=True).start()
    code, out, err = interrupted([str(built_pair.path)], starts)
    assert (code, out) == (130, "")
    assert err.endswith(NOTHING)
    assert ends(int(started.read_text()))


# The pytest fixture


def test_the_plugin_imports_neither_torch_nor_numpy() -> None:
    script = "import sys, trtspec.pytest_plugin; print({'torch', 'numpy', 'tritonclient'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
    pyproject = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    assert '[project.entry-points.pytest11]\ntrtspec = "trtspec.pytest_plugin"' in pyproject


def test_a_users_test_fails_where_the_server_is_wrong(tmp_path: Path, demo_pair: Path) -> None:
    (tmp_path / "test_served.py").write_text(
        "def test_served(trtspec_verify):\n"
        "    import os\n"
        "    trtspec_verify(os.environ['URL'], reference=os.environ['REFERENCE'], prompts=['def main('],\n"
        "                   max_tokens=4, parts=('greedy',), alone=0, num_draft_tokens=[0])\n"
    )

    def wrong(asked: Asked) -> Iterator[Step]:
        yield last("x", [5, 5, 5, 5], prompt_tokens=3, tokens=4, finish="length")

    command = [sys.executable, "-m", "pytest", "-q", "-p", "trtspec.pytest_plugin", "test_served.py"]
    with ScriptedServer(wrong) as server:
        environment = {
            "URL": server.url,
            "REFERENCE": str(demo_pair / "target"),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PATH": "",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=120
        )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 of 1 findings are defects" in done.stdout
    assert "position 0" in done.stdout
