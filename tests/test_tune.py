"""What is predicted of a pair before it is built: agreement, passes, speed-up, advice, published figures."""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from trtspec.build.tune.agreement import Agreement, pooled, replay
from trtspec.build.tune.huggingface_model import HuggingFaceModel
from trtspec.build.tune.intervals import Estimate, proportion, ratio
from trtspec.build.tune.measurement import Measured, TuneOptions, measure, measure_costs
from trtspec.build.tune.models import EngineModel, write_engine
from trtspec.build.tune.pass_time import PassTime, pass_time, unrest
from trtspec.build.tune.prediction import Point, advise, predict
from trtspec.build.tune.published import LEVIATHAN, TABLES
from trtspec.build.tune.tables import prediction_tables
from trtspec.errors import BuildError, CheckpointError, PairError
from trtspec.theory import Costs, break_even_acceptance, speed_up, tokens_per_target_call
from trtspec.triton_repo.speculation.draft_table import DraftTable, read_draft_tokens

LOADS = (1, 4)


def quiet(line: str) -> None:
    pass


def drawn(acceptance: float, prompts: int, tokens: int, seed: int = 0, spread: float = 0.0) -> Agreement:
    """Return a data set whose prompts have acceptances around a known one."""
    random = np.random.default_rng(seed)
    own = np.clip(acceptance + spread * (2 * random.random(prompts) - 1), 0, 1)
    matches = random.random((prompts, tokens)) < own[:, None]
    return Agreement("drawn", tuple(tuple(map(bool, row)) for row in matches))


def costing(
    agreement: Agreement, draft_step: float, verified_token: float = 0.0, plain_s: float = 0.02
) -> Measured:
    """Return a pair of known c and v, whose passes take the same at every load."""
    rows = tuple(range(1, 34))
    seconds = tuple(plain_s * (1 + verified_token * (count - 1)) for count in rows)
    curve = PassTime(rows, seconds)
    return Measured((agreement,), dict.fromkeys(LOADS, curve), dict.fromkeys(LOADS, draft_step * plain_s))


class ScriptedModel:
    """A double of a model that counts up, errs at set places, and whose passes take what they are told."""

    def __init__(
        self, errs_at: Sequence[int], pass_s: float, per_row_s: float, per_sequence_s: float
    ) -> None:
        self._errs_at = set(errs_at)
        self._times = pass_s, per_row_s, per_sequence_s
        self.passes = 0

    def answer(self, prompt_ids: Sequence[int], max_tokens: int) -> list[int]:
        return [prompt_ids[-1] + 1 + k for k in range(max_tokens)]

    def agrees(self, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> list[bool]:
        assert list(answer_ids) == self.answer(prompt_ids, len(answer_ids))
        return [place not in self._errs_at for place in range(len(answer_ids))]

    def pass_seconds(self, sequences: int, rows: int, context: int) -> float:
        self.passes += 1
        fixed, per_row, per_sequence = self._times
        took = fixed + per_row * sequences * rows + per_sequence * sequences
        # A pause of the machine hits most of them.
        return took if self.passes % 5 == 0 else 3 * took


@given(st.lists(st.booleans(), max_size=40), st.integers(0, 8))
def test_a_replay_is_the_rounds_one_by_one(matches: list[bool], length: int) -> None:
    rounds = tokens = 0
    while tokens + length < len(matches):
        kept = len(list(itertools.takewhile(bool, matches[tokens : tokens + length])))
        tokens, rounds = tokens + kept + 1, rounds + 1
    assert replay(matches, length) == (rounds, tokens)


@pytest.mark.parametrize("length", [1, 3, 8])
def test_replayed_tokens_are_those_of_the_formula_where_acceptance_is_the_same_everywhere(
    length: int,
) -> None:
    found = drawn(0.7, 400, 300).tokens_per_target_call(length)
    assert found.value == pytest.approx(tokens_per_target_call(0.7, length), rel=0.01)
    assert found.low < tokens_per_target_call(0.7, length) < found.high


def test_short_answers_are_counted_by_their_acceptance() -> None:
    agreement = Agreement("short", ((True, False, True), (True, True, False)) * 6)
    expected = tokens_per_target_call(agreement.acceptance.value, 5)
    assert agreement.tokens_per_target_call(5).value == pytest.approx(expected)


def test_data_sets_are_pooled_token_by_token() -> None:
    one, other = drawn(0.5, 10, 20), drawn(0.9, 30, 40, seed=1)
    hits = sum(sum(m) for m in (*one.matches, *other.matches))
    assert pooled([one, other]).acceptance.value == hits / (10 * 20 + 30 * 40)


@pytest.mark.parametrize(("acceptance", "spread"), [(0.8, 0.0), (0.75, 0.2), (0.3, 0.25), (0.97, 0.02)])
def test_intervals_of_acceptance_hold_the_truth_at_the_stated_rate(acceptance: float, spread: float) -> None:
    held = 0
    for seed in range(400):
        found = drawn(acceptance, 20, 40, seed, spread).acceptance
        held += found.low <= acceptance <= found.high
    # Three standard errors below 95 %; above, up to what an interval of a proportion must give.
    assert held / 400 >= 0.95 - 3 * (0.95 * 0.05 / 400) ** 0.5
    assert held / 400 <= 0.999


def test_intervals_of_tokens_hold_the_truth_at_the_stated_rate() -> None:
    truth = drawn(0.75, 20_000, 60, seed=99, spread=0.2).tokens_per_target_call(4).value
    held = 0
    for seed in range(300):
        found = drawn(0.75, 25, 60, seed, spread=0.2).tokens_per_target_call(4)
        held += found.low <= truth <= found.high
    assert 0.95 - 3 * (0.95 * 0.05 / 300) ** 0.5 <= held / 300 <= 0.999


@pytest.mark.parametrize(("acceptance", "spread"), [(0.97, 0.03), (0.04, 0.04), (0.7, 0.2)])
def test_intervals_of_tokens_of_few_prompts_hold_the_truth(acceptance: float, spread: float) -> None:
    truth = drawn(acceptance, 20_000, 20, seed=99, spread=spread).tokens_per_target_call(4).value
    held = 0
    for seed in range(200):
        found = drawn(acceptance, 3, 20, seed, spread).tokens_per_target_call(4)
        held += found.low <= truth <= found.high
    assert held / 200 >= 0.95 - 3 * (0.95 * 0.05 / 200) ** 0.5


@pytest.mark.parametrize("match", [True, False])
def test_prompts_that_go_alike_do_not_make_the_speed_up_certain(match: bool) -> None:
    agreement = Agreement("few", ((match,) * 20,) * 3)
    found = agreement.tokens_per_target_call(4)
    assert found.value == (5 if match else 1)
    assert found.low < 1.1 if match else found.high > 4
    assert not predict(costing(agreement, 0.1), 4).advice.speculate


def test_tokens_counted_as_independent_would_promise_too_much() -> None:
    agreement = drawn(0.6, 12, 200, spread=0.4)
    wide = agreement.acceptance
    alone = proportion([int(m) for row in agreement.matches for m in row], [1] * (12 * 200))
    assert alone.high - alone.low < (wide.high - wide.low) / 3


def test_prompts_that_all_agree_leave_room_for_one_that_does_not() -> None:
    found = proportion([50, 50, 50], [50, 50, 50])
    assert found.value == found.high == 1
    # (1 - 0.95) / 2 is the chance of three out of three at that α; a quantile that knows its variance
    # from three prompts only is wider still.
    assert 0 < found.low < 0.025 ** (1 / 3)
    assert proportion([0, 0], [9, 9]).low == 0


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_prompts_have_no_interval(count: int) -> None:
    with pytest.raises(ValueError, match="at least 2"):
        proportion([3] * count, [5] * count)
    with pytest.raises(ValueError, match="at least 2"):
        ratio([3.0, 0.0], [5.0, 0.0], least=0, most=1)


def test_a_pass_takes_what_the_shortest_of_its_kind_took_and_never_less_than_smaller_ones() -> None:
    curve = pass_time({1: [0.03, 0.02, 0.09], 4: [0.5, 0.4, 0.6], 8: [0.05, 0.04, 0.04]})
    assert curve == PassTime((1, 4, 8), (0.02, 0.04, 0.04))
    assert curve.at(2) == pytest.approx(0.02 + 0.02 / 3)
    assert curve.at(20) == 0.04


def test_unrest_is_what_passes_usually_took_beyond_their_shortest() -> None:
    assert unrest([[1.0, 1.5, 9.0], [2.0, 2.0, 8.0], [1.0, 2.0, 2.0]]) == pytest.approx(0.5)


@pytest.mark.parametrize(("cost", "verified"), [(0.05, 0.0), (0.1, 0.03), (0.2, 0.01)])
def test_predictions_are_the_formulas_where_acceptance_and_costs_are_set(
    cost: float, verified: float
) -> None:
    found = predict(costing(drawn(0.8, 300, 200), cost, verified), 8, round_overhead_s=0.002)
    assert {(p.num_draft_tokens, p.concurrency) for p in found.points} == set(
        itertools.product(range(9), LOADS)
    )
    for point in found.points:
        expected = speed_up(0.8, point.num_draft_tokens, Costs(cost, verified, 0.1))
        assert point.speed_up.value == pytest.approx(expected, rel=0.02)
        assert point.speed_up.low <= expected <= point.speed_up.high


def test_speed_up_at_zero_draft_tokens_is_exactly_one() -> None:
    found = predict(costing(drawn(0.8, 10, 50), 0.1), 4)
    zeros = [p.speed_up for p in found.points if not p.num_draft_tokens]
    assert {(s.low, s.value, s.high) for s in zeros} == {(1.0, 1.0, 1.0)}


def test_a_good_and_cheap_draft_is_recommended() -> None:
    advice = predict(costing(drawn(0.8, 100, 100), 0.05, 0.05), 8).advice
    assert advice.speculate
    assert advice.num_draft_tokens in (5, 6, 7)  # the formula is flat there: 2.46, 2.47, 2.45
    assert advice.reason.startswith(f"speculate: γ = {advice.num_draft_tokens} gives 2.4")


def test_what_serving_may_add_before_the_gain_is_gone_is_told() -> None:
    measured = costing(drawn(0.8, 100, 100), 0.05)
    shown = "".join(
        part for part in prediction_tables(measured, predict(measured, 8)) if isinstance(part, str)
    )
    spare_s = [float(found) / 1000 for found in re.findall(r"([\d.]+) ms \(γ = \d at", shown)]
    assert len(spare_s) == len(LOADS)
    kept = predict(measured, 8, round_overhead_s=0.95 * spare_s[0])
    assert kept.advice.speculate
    assert not any("without what" in str(part) for part in prediction_tables(measured, kept))
    assert not predict(measured, 8, round_overhead_s=1.5 * spare_s[0]).advice.speculate


def test_a_bad_draft_is_not_recommended_and_the_number_that_decides_is_told() -> None:
    found = predict(costing(drawn(0.1, 100, 100), 0.25), 8)
    assert not found.advice.speculate
    assert found.advice.num_draft_tokens == 0
    assert found.advice.loads[0].break_even_acceptance == pytest.approx(0.25)
    alpha = found.acceptance
    assert f"α is {alpha.value:.2f}" in found.advice.reason
    assert found.advice.reason.startswith("do not speculate: the best draft length, γ = 1")
    assert found.advice.reason.endswith("it would have to be above 0.25")


def test_a_draft_as_slow_as_the_target_could_not_gain_at_any_acceptance() -> None:
    found = predict(costing(drawn(0.9, 50, 100), 1.1), 8)
    assert found.advice.num_draft_tokens == 0
    assert found.advice.loads[0].break_even_acceptance is None
    assert found.advice.reason.endswith("a draft step costs 1.10 target steps")


def test_what_is_too_near_to_tell_is_not_recommended() -> None:
    found = predict(costing(drawn(0.34, 6, 60, seed=3), 0.3), 3)
    load = found.advice.loads[0]
    assert load.best.speed_up.low < 1 < load.best.speed_up.value
    assert found.advice.num_draft_tokens == 0
    assert "too near to tell, give more prompts" in found.advice.reason


def test_where_speculation_pays_at_some_loads_only_a_table_says_at_which() -> None:
    agreement = drawn(0.8, 100, 100)
    cheap, dear = (costing(agreement, 0.05, verified).target[1] for verified in (0.0, 1.0))
    found = predict(Measured((agreement,), {1: cheap, 16: dear}, {1: 0.001, 16: 0.001}), 8)
    assert [load.recommended > 0 for load in found.advice.loads] == [True, False]
    best = found.advice.loads[0].recommended
    assert found.advice.table == ((1, best), (16, 0))
    assert found.advice.num_draft_tokens == f"1:{best},16:0"
    assert found.advice.as_dict()["num_draft_tokens"] == f"1:{best},16:0"
    assert "not at 16 in flight" in found.advice.reason


def test_a_draft_length_that_is_near_the_best_at_every_load_is_for_all() -> None:
    agreement = drawn(0.8, 100, 100)
    curves = {n: costing(agreement, 0.05, v).target[1] for n, v in ((1, 0.04), (4, 0.06))}
    found = predict(Measured((agreement,), curves, dict.fromkeys(curves, 0.001)), 8)
    assert isinstance(found.advice.num_draft_tokens, int)
    for load in found.advice.loads:
        chosen = next(
            p
            for p in found.points
            if (p.num_draft_tokens, p.concurrency) == (found.advice.num_draft_tokens, load.concurrency)
        )
        assert chosen.speed_up.value >= 0.95 * load.fastest


def points(speed_ups: Sequence[Sequence[float]], certain: Sequence[bool]) -> list[Point]:
    """Points at 1, 2, 4 … in flight, of γ from 1 on; where not certain, no gain is sure."""
    found = []
    for number, (gains, sure) in enumerate(zip(speed_ups, certain, strict=True)):
        for length, gain in enumerate((1.0, *gains)):
            low = gain if sure or not length else min(gain, 0.9)
            estimate = Estimate(low, gain, gain)
            found.append(Point(length, 2**number, Estimate(1.0, 1.0, 1.0), estimate))
    return found


@given(
    speed_ups=st.lists(st.lists(st.floats(0.5, 3), min_size=4, max_size=4), min_size=1, max_size=6),
    data=st.data(),
)
def test_the_table_is_near_the_best_at_every_load_and_0_where_nothing_surely_gains(
    speed_ups: list[list[float]], data: st.DataObject
) -> None:
    certain = data.draw(st.lists(st.booleans(), min_size=len(speed_ups), max_size=len(speed_ups)))
    given_points = points(speed_ups, certain)
    costs = {(point.num_draft_tokens, point.concurrency): Costs(0.1) for point in given_points}
    found = advise(given_points, Estimate(0.5, 0.5, 0.5), costs)
    table = DraftTable(found.table)
    for load, gains in zip(found.loads, speed_ups, strict=True):
        length = table.at(load.concurrency)
        assert (length == 0) == (load.recommended == 0)
        assert (1.0, *gains)[length] >= 0.95 * load.fastest
    lengths = [length for _, length in found.table]
    assert all(one != next_one for one, next_one in itertools.pairwise(lengths))
    expected = table if len(lengths) > 1 else lengths[0]
    assert read_draft_tokens(str(found.num_draft_tokens)) == expected


def test_loads_that_can_share_a_draft_length_do() -> None:
    speed_ups = [[1.5, 2.0, 1.9, 1.0], [1.4, 1.75, 1.8, 1.0], [1.3, 1.1, 1.0, 0.9], [0.9, 0.8, 0.7, 0.6]]
    given_points = points(speed_ups, [True] * 4)
    costs = {(point.num_draft_tokens, point.concurrency): Costs(0.1) for point in given_points}
    found = advise(given_points[::-1], Estimate(0.5, 0.5, 0.5), costs)
    assert found.num_draft_tokens == "1:2,4:1,8:0"


@given(st.floats(0.01, 0.5), st.floats(0, 0.3), st.integers(1, 12))
def test_break_even_is_where_the_speed_up_is_one(cost: float, verified: float, length: int) -> None:
    costs = Costs(cost, verified)
    found = break_even_acceptance(length, costs)
    assert found is not None
    assert speed_up(found, length, costs) == pytest.approx(1)
    assert break_even_acceptance(length, Costs(cost, 1.0)) is None


def test_models_with_set_answers_and_times_are_measured_as_set() -> None:
    target = ScriptedModel([], pass_s=0.010, per_row_s=0.0005, per_sequence_s=0.001)
    draft = ScriptedModel([3, 7], pass_s=0.001, per_row_s=0.0, per_sequence_s=0.0002)
    options = TuneOptions(max_draft_tokens=5, concurrency=(1, 8), max_tokens=12)
    found = measure(target, draft, {"a": [[1], [2, 3]], "b": [[4], [5]]}, options, report=quiet)
    assert [a.dataset for a in found.agreements] == ["a", "b"]
    assert found.agreements[0].acceptance.value == pytest.approx(10 / 12)
    assert found.target[1].at(1) == pytest.approx(0.0115)
    assert found.target[8].at(6) == pytest.approx(0.010 + 48 * 0.0005 + 0.008)
    assert found.draft_step_s == pytest.approx({1: 0.0012, 8: 0.0026})
    assert found.unrest == pytest.approx(2.0)


def test_a_draft_that_knows_no_token_of_the_answers_is_refused() -> None:
    class Unknowing(ScriptedModel):
        def agrees(self, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> list[bool]:
            return []

    models = [kind([], 0.01, 0.0, 0.0) for kind in (ScriptedModel, Unknowing)]
    with pytest.raises(BuildError, match=r"^chat: fewer than two prompts"):
        measure(*models, {"chat": [[1], [2]]}, TuneOptions(), report=quiet)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (TuneOptions(max_draft_tokens=0), "max_draft_tokens is 0, expected at least 1"),
        (TuneOptions(concurrency=()), r"concurrency is \[\]"),
        (TuneOptions(concurrency=(0, 2)), r"concurrency is \[0, 2\]"),
        (TuneOptions(max_draft_tokens=8, max_tokens=8), "max_tokens is 8, expected more than the 8"),
    ],
)
def test_options_out_of_range_are_refused(options: TuneOptions, message: str) -> None:
    with pytest.raises(BuildError, match=message):
        options.check()


PROMPTS = ("def read(path):\n", "import os\n", "class Stack:\n    def push(self")


@pytest.fixture(scope="module")
def models(
    demo_pair: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[EngineModel, EngineModel]]:
    folder = tmp_path_factory.mktemp("engines")
    sizes = {"max_seq_len": 96, "sequences": 2, "vocab_size": 4096}
    target, draft = (
        EngineModel(write_engine(demo_pair / role, folder / role, **sizes), (2,))
        for role in ("target", "draft")
    )
    return target, draft


def prompt_ids(demo_pair: Path) -> list[list[int]]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(demo_pair / "target" / "tokenizer.json"))
    return [list(tokenizer.encode(text).ids) for text in PROMPTS]


def test_the_engine_and_transformers_answer_and_agree_alike(
    demo_pair: Path, models: tuple[EngineModel, EngineModel]
) -> None:
    theirs = [
        HuggingFaceModel(demo_pair / role, (2,), "cpu", dtype="float32") for role in ("target", "draft")
    ]
    for ids in prompt_ids(demo_pair):
        answer = models[0].answer(ids, 20)
        assert answer == theirs[0].answer(ids, 20)
        matches = models[1].agrees(ids, answer)
        assert matches == theirs[1].agrees(ids, answer)
        assert len(matches) == len(answer)
        assert models[0].agrees(ids, answer) == [True] * len(answer)


def test_ids_that_a_model_does_not_know_end_what_it_reads(
    demo_pair: Path, models: tuple[EngineModel, EngineModel]
) -> None:
    theirs = HuggingFaceModel(demo_pair / "draft", (2,), "cpu", dtype="float32")
    for model in (models[1], theirs):
        assert len(model.agrees([1, 5], [7, 9, 5000, 8])) == 2
        assert model.agrees([1, 4096], [7]) == []


def test_a_timed_pass_adds_the_rows_asked_for_and_no_others(models: tuple[EngineModel, EngineModel]) -> None:
    seconds = itertools.count()
    model = models[0]
    model._clock = lambda: float(next(seconds))
    for sequences, rows in ((1, 1), (2, 1), (2, 5), (1, 9)):
        model.pass_seconds(sequences, rows, 40)
        before = model._engine.computed_rows
        assert model.pass_seconds(sequences, rows, 40) == 1.0
        assert model._engine.computed_rows - before == sequences * rows


def test_transformers_are_timed_between_two_looks_at_the_clock(demo_pair: Path) -> None:
    ticks = itertools.count()
    model = HuggingFaceModel(
        demo_pair / "draft", (2,), "cpu", dtype="float32", clock=lambda: float(next(ticks))
    )
    assert model.pass_seconds(3, 4, 10) == 1.0
    assert model.pass_seconds(1, 1, 1) == 1.0


def test_what_transformers_cannot_load_is_said_with_the_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"^{tmp_path}: cannot be loaded on cpu"):
        HuggingFaceModel(tmp_path, (), "cpu")


def test_a_pair_is_measured_from_its_checkpoints(demo_pair: Path) -> None:
    options = TuneOptions(max_draft_tokens=2, concurrency=(1,), max_tokens=8)
    found = measure_costs(demo_pair / "target", demo_pair / "draft", {"code": PROMPTS}, options, report=quiet)
    (agreement,) = found.agreements
    assert agreement.dataset == "code"
    assert len(agreement.matches) == 3
    assert found.target[1].rows == (1, 2, 3)
    assert found.draft_step_s[1] > 0


def test_a_draft_that_computes_nan_is_refused_rather_than_found_to_agree_with_nobody(
    demo_pair: Path, tmp_path: Path
) -> None:
    draft = shutil.copytree(demo_pair / "draft", tmp_path / "draft")
    weights = load_file(draft / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"] * float("nan")
    (draft / "model.safetensors").unlink()
    save_file(weights, draft / "model.safetensors")
    options = TuneOptions(max_draft_tokens=2, concurrency=(1,), max_tokens=6)
    with pytest.raises(CheckpointError, match=r"draft: its logits are NaN or Inf; the checkpoint is damaged"):
        measure_costs(demo_pair / "target", draft, {"code": PROMPTS}, options, report=quiet)


def test_a_pair_that_does_not_fit_is_refused_by_the_check(demo_pair: Path, tmp_path: Path) -> None:
    import json
    import shutil

    shutil.copytree(demo_pair / "draft", tmp_path / "draft")
    file = tmp_path / "draft" / "tokenizer.json"
    content = json.loads(file.read_text())
    words = content["model"]["vocab"]
    first, second = list(words)[300:302]
    words[first], words[second] = words[second], words[first]
    file.write_text(json.dumps(content))
    with pytest.raises(PairError, match="trtspec check"):
        measure_costs(demo_pair / "target", tmp_path / "draft", {"code": PROMPTS}, TuneOptions())


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        (("one",), TuneOptions(), "^code: 1 prompts, expected at least 2"),
        ((), TuneOptions(), "^code: 0 prompts"),
        (("a", "b" * 9000), TuneOptions(), "the context is 2048; shorten prompts or answers"),
    ],
)
def test_prompts_that_cannot_be_tried_are_refused(
    demo_pair: Path, prompts: Sequence[str], options: TuneOptions, message: str
) -> None:
    with pytest.raises(BuildError, match=message):
        measure_costs(demo_pair / "target", demo_pair / "draft", {"code": prompts}, options, report=quiet)


def test_the_published_predictions_of_t5_are_reproduced() -> None:
    rows = [row for row in TABLES if row.source == LEVIATHAN]
    assert len(rows) == 12
    for row in rows:
        assert row.predicted is not None
        assert row.stated is not None
        # They print one digit, of an α and c with two.
        assert row.predicted == pytest.approx(row.stated, abs=0.08)
        assert row.residual == pytest.approx(row.measured / row.predicted - 1)


def test_what_was_published_without_an_acceptance_tells_the_one_it_needs() -> None:
    for row in (row for row in TABLES if row.acceptance is None):
        assert row.predicted is None
        assert row.residual is None
        assert row.implied_acceptance is not None
        again = speed_up(row.implied_acceptance, row.num_draft_tokens, Costs(row.cost_ratio))
        assert again == pytest.approx(row.measured)
