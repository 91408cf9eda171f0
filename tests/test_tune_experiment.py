"""A server of known times and acceptance, measured at a few points: the fit finds them, and what is best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from trtspec.build.tune.experiment import Experiment, choose, first_settings, run_experiment
from trtspec.build.tune.fitting import Fit, Sample, Setting, fit
from trtspec.build.tune.intervals import Estimate, proportion
from trtspec.errors import BuildError
from trtspec.theory import Costs, speed_up, tokens_by_position

LOADS = (1, 2, 4, 8)
LONGEST = 8


@dataclass
class ScriptedServer:
    """A double of a server: rounds take a + b n + (c + d n) γ, tokens without a draft e + f n."""

    acceptance: Sequence[float] = (0.8,) * LONGEST
    round_s: tuple[float, float, float, float] = (0.020, 0.002, 0.0015, 0.0002)
    token_s: tuple[float, float] = (0.018, 0.002)
    noise: float = 0.0
    seed: int = 0
    slower_after: int = 10**9
    asked: list[Setting] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)

    def seconds(self, setting: Setting) -> float:
        length, flying = setting.num_draft_tokens, setting.concurrency
        if not length:
            return self.token_s[0] + self.token_s[1] * flying
        a, b, c, d = self.round_s
        return a + b * flying + (c + d * flying) * length

    def speed_up(self, setting: Setting) -> float:
        if not setting.num_draft_tokens:
            return 1.0
        tokens = tokens_by_position(self.acceptance[: setting.num_draft_tokens])
        return tokens * self.seconds(Setting(0, setting.concurrency)) / self.seconds(setting)

    def best(self, flying: int) -> tuple[int, float]:
        found = {length: self.speed_up(Setting(length, flying)) for length in range(LONGEST + 1)}
        length = max(found, key=found.__getitem__)
        return length, found[length]

    def ask(self, setting: Setting) -> Sample:
        self.asked.append(setting)
        rounds = 25_000 if setting.num_draft_tokens else 0
        kept = np.cumprod(self.acceptance[: setting.num_draft_tokens])
        counts = (rounds, *(round(rounds * float(share)) for share in kept))
        tokens = 4 * sum(counts) if rounds else 100_000
        slower = 1.3 if len(self.asked) > self.slower_after else 1.0
        pause = slower * (1 + self.noise * float(self._random.standard_normal()))
        wall = self.seconds(setting) * (4 * rounds or tokens) / setting.concurrency * pause
        return Sample(tokens, wall, (counts,) * 4)


def quiet(line: str) -> None:
    pass


def experiment(server: ScriptedServer, points: int = 8, loads: Sequence[int] = LOADS) -> Experiment:
    return run_experiment(server.ask, LONGEST, loads, points=points, report=quiet)


@pytest.mark.parametrize(
    "server",
    [
        ScriptedServer(),
        ScriptedServer(acceptance=(0.9, 0.8, 0.7, 0.6, 0.5, 0.5, 0.4, 0.4)),
        ScriptedServer(round_s=(0.030, 0.001, 0.004, 0.0010)),
        ScriptedServer(acceptance=(0.95,) * LONGEST, round_s=(0.020, 0.004, 0.0005, 0.0)),
    ],
    ids=["usual", "falling acceptance", "dear drafts", "cheap drafts"],
)
def test_the_fit_finds_a_quiet_server_as_it_is(server: ScriptedServer) -> None:
    found = experiment(server)
    for point in found.points:
        truth = server.speed_up(Setting(point.num_draft_tokens, point.concurrency))
        assert point.speed_up.value == pytest.approx(truth, rel=0.04)
        assert point.speed_up.low <= truth <= point.speed_up.high
    for one in found.compared:
        assert abs(one.residual) < 0.03
    for load in found.advice.loads:
        length, gain = server.best(load.concurrency)
        assert server.speed_up(Setting(load.recommended, load.concurrency)) >= 0.98 * gain
        assert bool(load.recommended) == bool(length)


def test_measured_points_are_the_servers_own_rates() -> None:
    server = ScriptedServer()
    found = experiment(server)
    for one in found.compared:
        tokens = tokens_by_position(server.acceptance[: one.setting.num_draft_tokens])
        assert one.tokens_per_target_call == pytest.approx(tokens, rel=1e-4)
        rate = one.setting.concurrency * tokens / server.seconds(one.setting)
        assert one.tokens_per_s == pytest.approx(rate, rel=1e-4)
    assert found.acceptance_by_position == pytest.approx(server.acceptance, rel=1e-3)
    assert found.drift == pytest.approx(0)


def test_intervals_of_the_speed_up_hold_the_truth_at_the_stated_rate() -> None:
    held = total = 0
    for seed in range(60):
        server = ScriptedServer(noise=0.03, seed=seed)
        for point in experiment(server).points:
            if point.num_draft_tokens:
                truth = server.speed_up(Setting(point.num_draft_tokens, point.concurrency))
                held += point.speed_up.low <= truth <= point.speed_up.high
                total += 1
    # Points of one experiment move together: 60 experiments, not 1920 points, decide about the spread.
    assert held / total >= 0.95 - 3 * (0.95 * 0.05 / 60) ** 0.5


@pytest.mark.parametrize("points", [5, 6, 8])
def test_as_many_points_are_measured_as_asked_for_and_none_twice(points: int) -> None:
    server = ScriptedServer()
    found = experiment(server, points)
    settings = [one.setting for one in found.compared]
    assert len(settings) == len(set(settings)) == points
    assert settings[:5] == list(first_settings(LONGEST, LOADS))
    assert [one.predicted is not None for one in found.compared] == [False] * 5 + [True] * (points - 5)
    # Each three times, the base line again where there are later ones, and a warm-up.
    assert len(server.asked) == 1 + 3 * points + 3 * (points > 5)


def test_what_was_predicted_of_later_points_is_near_what_was_measured() -> None:
    for one in experiment(ScriptedServer()).compared:
        if one.predicted is not None:
            assert one.predicted == pytest.approx(one.tokens_per_s, rel=0.1)


def test_points_take_turns() -> None:
    server = ScriptedServer()
    experiment(server, 5)
    turns = [server.asked[1 + 5 * turn : 6 + 5 * turn] for turn in range(3)]
    assert all(set(turn) == set(turns[0]) for turn in turns)
    assert len({turn[0] for turn in turns}) == 3


def test_a_machine_that_slows_down_between_the_points_is_noticed_and_allowed_for() -> None:
    server = ScriptedServer(slower_after=16)  # a warm-up and three turns of the first five
    found = experiment(server)
    assert found.drift == pytest.approx(0.3)
    for point in found.points:
        truth = server.speed_up(Setting(point.num_draft_tokens, point.concurrency))
        assert point.speed_up.value == pytest.approx(truth, rel=0.04)


def test_further_points_are_near_the_best_or_where_least_is_known() -> None:
    server = ScriptedServer()
    first = {setting: [server.ask(setting)] for setting in first_settings(LONGEST, LOADS)}
    known = fit(first, {setting: server.seconds(setting) for setting in first})
    chosen = choose(known, LONGEST, LOADS, 3)
    gains = {
        setting: known.speed_up(setting).value
        / max(known.speed_up(Setting(length, setting.concurrency)).value for length in range(LONGEST + 1))
        for setting in chosen
    }
    others = [Setting(length, flying) for length in range(1, LONGEST + 1) for flying in LOADS]
    typical = float(np.median([known.uncertainty(setting) for setting in others]))
    assert len(set(chosen)) == 3
    assert all(gain > 0.97 or known.uncertainty(setting) > typical for setting, gain in gains.items())


def test_a_setting_that_is_believed_is_known_better() -> None:
    known = Fit(
        (0.8,), Estimate(0.8, 0.7, 0.9), {Setting(2, 1): 0.03, Setting(8, 1): 0.05}, {1: 0.02, 8: 0.04}
    )
    setting = Setting(5, 8)
    assert known.with_believed(setting).uncertainty(setting) < known.uncertainty(setting)
    assert known.with_believed(setting).speed_up(setting).value == pytest.approx(
        known.speed_up(setting).value, rel=0.05
    )
    plain = Setting(0, 4)
    assert known.with_believed(plain).uncertainty(plain) < known.uncertainty(plain)


def test_points_that_contradict_each_other_leave_the_speed_up_open() -> None:
    """As where a machine was held up while one of them was measured."""
    rounds = {Setting(2, 1): 0.0254, Setting(8, 1): 0.00036, Setting(4, 8): 0.0154}
    known = Fit((0.8,), Estimate(0.8, 0.7, 0.9), rounds, {1: 0.0027, 8: 0.014})
    found = known.speed_up(Setting(8, 8))
    assert 0 < found.low < found.value < found.high < float("inf")


def test_a_server_where_drafts_cost_too_much_is_told_not_to_speculate() -> None:
    server = ScriptedServer(acceptance=(0.3,) * LONGEST, round_s=(0.022, 0.002, 0.010, 0.001))
    advice = experiment(server).advice
    assert not advice.speculate
    assert advice.num_draft_tokens == 0
    assert "α is 0.30 (" in advice.reason
    top = max(advice.loads, key=lambda load: load.best.speed_up.value)
    assert top.break_even_acceptance is not None
    assert top.break_even_acceptance > 0.3


def test_costs_of_a_fit_give_its_speed_up_back() -> None:
    found = experiment(ScriptedServer())
    for load in found.advice.loads:
        for point in found.points:
            if point.concurrency == load.concurrency and point.num_draft_tokens:
                again = speed_up(
                    0.8, point.num_draft_tokens, Costs(load.costs.draft_step, 0, load.costs.round)
                )
                assert again == pytest.approx(point.speed_up.value, rel=0.01)


def test_one_load_and_one_draft_length_leave_two_points() -> None:
    server = ScriptedServer()
    found = run_experiment(server.ask, 1, (4,), report=quiet)
    assert [one.setting for one in found.compared] == [Setting(0, 4), Setting(1, 4)]
    assert found.points[1].speed_up.value == pytest.approx(server.speed_up(Setting(1, 4)), rel=0.02)


def test_acceptance_by_position_counts_those_whose_predecessors_were_kept() -> None:
    samples = {
        Setting(0, 1): [Sample(50, 1.0, ((0,), (0,)))],
        Setting(1, 1): [Sample(18, 1.0, ((6, 5), (4, 3)))],
        Setting(3, 1): [Sample(20, 1.0, ((5, 4, 3, 0), (5, 2))), Sample(20, 1.0, ((5, 4, 2), (5, 3, 2)))],
    }
    found = fit(samples, {Setting(0, 1): 1.0, Setting(1, 1): 1.0, Setting(3, 1): 1.0})
    assert found.acceptance == pytest.approx((21 / 30, 7 / 13, 0 / 7))
    assert found.overall == proportion([18, 10], [29, 21])
    assert found.tokens_per_target_call(2) == pytest.approx(1 + 0.7 + 0.7 * 7 / 13)
    assert found.tokens_per_target_call(5) == found.tokens_per_target_call(2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_draft_tokens": 0}, "draft lengths up to 0"),
        ({"concurrency": ()}, r"at \[\] in flight"),
        ({"concurrency": (0,)}, r"at \[0\] in flight"),
        ({"points": 4}, "4 points, expected 5 to 8"),
        ({"points": 9}, "9 points, expected 5 to 8"),
    ],
)
def test_options_out_of_range_are_refused(arguments: dict[str, Any], message: str) -> None:
    options: dict[str, Any] = {"max_draft_tokens": 4, "concurrency": (1,), "report": quiet, **arguments}
    with pytest.raises(BuildError, match=message):
        run_experiment(ScriptedServer().ask, **options)


def without_rounds(setting: Setting) -> Sample:
    return Sample(8, 1.0, ((0,), (0,)))


def without_tokens(setting: Setting) -> Sample:
    return Sample(0, 1.0, ((0,), (0,)))


@pytest.mark.parametrize(("ask", "length"), [(without_rounds, 2), (without_tokens, 0)])
def test_answers_in_which_nothing_can_be_counted_are_refused(
    ask: Callable[[Setting], Sample], length: int
) -> None:
    with pytest.raises(BuildError, match=f"^tune: answers with γ = {length} brought nothing to count"):
        run_experiment(ask, LONGEST, LOADS, report=quiet)


def test_prompts_that_differ_widen_the_interval_of_the_speed_up() -> None:
    def known(*kept: tuple[int, ...]) -> Fit:
        samples = {
            Setting(0, 1): [Sample(9, 1.0, ((0,),) * len(kept))],
            Setting(2, 1): [Sample(9, 1.0, kept)],
        }
        return fit(samples, {Setting(0, 1): 0.02, Setting(2, 1): 0.03})

    alike, apart = known(*((100, 60, 36),) * 6), known(*((100, 90, 81), (100, 30, 9)) * 3)
    narrow, wide = (one.speed_up(Setting(2, 1)) for one in (alike, apart))
    assert wide.high / wide.low > 1.3 * narrow.high / narrow.low
    assert alike.overall.value == pytest.approx(0.6)


def test_one_prompt_tells_nothing_about_others() -> None:
    samples = {Setting(0, 1): [Sample(9, 1.0, ((0,),))], Setting(1, 1): [Sample(9, 1.0, ((4, 2),))]}
    found = fit(samples, {Setting(0, 1): 0.02, Setting(1, 1): 0.03})
    assert found.overall == Estimate(0.5, 0.0, 1.0)
    assert found.tokens(1) == Estimate(1.5, 1.0, 2.0)
