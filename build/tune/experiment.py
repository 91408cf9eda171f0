"""Five to eight points of a server, chosen by the model that is fitted to them, and what follows.

The first ones span draft lengths and loads. Each further one is where the model thinks that the best
might be: near its optimum, or where it knows least. Points are asked in turns, several times, so that
drift of the machine hits them alike; γ = 0 alone is asked again with the later ones, to tell how much
the machine has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from trtspec.build.tune.fitting import Fit, Sample, Setting, fit
from trtspec.build.tune.intervals import Estimate
from trtspec.build.tune.prediction import Advice, Point, advise
from trtspec.errors import BuildError

FEWEST_POINTS, MOST_POINTS = 5, 8
REPEATS = 3

Ask = Callable[[Setting], Sample]


@dataclass(frozen=True)
class Compared:
    """A measured point beside the model."""

    setting: Setting
    tokens_per_s: float  # of all requests in flight
    predicted: float | None  # before it was measured; None for the first points
    fitted: float
    tokens_per_target_call: float

    @property
    def residual(self) -> float:
        """What was measured beyond the fit, as a share of it."""
        return self.tokens_per_s / self.fitted - 1


@dataclass(frozen=True)
class Experiment:
    """What a server showed."""

    compared: tuple[Compared, ...]
    points: tuple[Point, ...]
    advice: Advice
    acceptance_by_position: tuple[float, ...]
    acceptance: Estimate  # α over all positions
    drift: float  # how much longer γ = 0 took with the later points than with the first

    def as_dict(self) -> dict[str, Any]:
        """Return it in JSON's types."""
        return {
            "advice": self.advice.as_dict(),
            "points": [asdict(point) for point in self.points],
            "measured": [
                {
                    **asdict(one.setting),
                    "tokens_per_target_call": one.tokens_per_target_call,
                    "tokens_per_s": one.tokens_per_s,
                    "predicted_tokens_per_s": one.predicted,
                    "fitted_tokens_per_s": one.fitted,
                    "residual": one.residual,
                }
                for one in self.compared
            ],
            "acceptance": asdict(self.acceptance),
            "acceptance_by_position": list(self.acceptance_by_position),
            "drift": self.drift,
        }


def run_experiment(
    ask: Ask,
    max_draft_tokens: int,
    concurrency: Sequence[int],
    *,
    points: int = MOST_POINTS,
    report: Callable[[str], None] = print,
) -> Experiment:
    """Measure up to `points` settings and return what they show.

    Args:
        ask: asks the same prompts at a setting, and returns what came.
        report: called with a line for each round of questions.

    Raises:
        BuildError: an option is out of range, or answers have no round in them.
    """
    if not FEWEST_POINTS <= points <= MOST_POINTS:
        raise BuildError(f"tune: {points} points, expected {FEWEST_POINTS} to {MOST_POINTS}")
    if max_draft_tokens < 1 or not concurrency or min(concurrency) < 1:
        raise BuildError(
            f"tune: draft lengths up to {max_draft_tokens} at {list(concurrency)} in flight, "
            "expected numbers from 1 on"
        )
    first = first_settings(max_draft_tokens, concurrency)
    anchor = first[0]
    ask(max(first, key=lambda setting: (setting.concurrency, setting.num_draft_tokens)))  # a warm-up
    samples = _ask_in_turns(ask, first, report)
    seconds = {setting: _seconds(setting, runs) for setting, runs in samples.items()}
    before = fit(samples, seconds)
    chosen = choose(before, max_draft_tokens, concurrency, points - len(first))
    drift = 1.0
    if chosen:
        later = _ask_in_turns(ask, (anchor, *chosen), report)
        drift = _seconds(anchor, later[anchor]) / seconds[anchor]
        seconds |= {setting: _seconds(setting, later[setting]) / drift for setting in chosen}
        samples |= {setting: later[setting] for setting in chosen}
    after = fit(samples, seconds)
    compared = tuple(
        Compared(
            setting,
            _tokens_per_s(setting, samples[setting], seconds[setting]),
            before.tokens_per_s(setting) if setting in chosen else None,
            after.tokens_per_s(setting),
            _tokens_per_round(samples[setting]),
        )
        for setting in samples
    )
    advised = _points(after, max_draft_tokens, concurrency)
    costs = {(p.num_draft_tokens, p.concurrency): after.costs(p.concurrency) for p in advised}
    advice = advise(advised, after.overall, costs)
    return Experiment(compared, advised, advice, after.acceptance, after.overall, drift - 1)


def first_settings(max_draft_tokens: int, concurrency: Sequence[int]) -> tuple[Setting, ...]:
    """Return settings that span draft lengths and loads; the first is γ = 0 at the smallest load."""
    fewest, most = min(concurrency), max(concurrency)
    short, middle = max(1, max_draft_tokens // 4), max(1, max_draft_tokens // 2)
    wanted = (
        Setting(0, fewest),
        Setting(0, most),
        Setting(short, fewest),
        Setting(max_draft_tokens, fewest),
        Setting(middle, most),
    )
    return tuple(dict.fromkeys(wanted))


def choose(known: Fit, max_draft_tokens: int, concurrency: Sequence[int], count: int) -> tuple[Setting, ...]:
    """Return the settings that might be the best by the largest margin, one after the other.

    Each choice takes the ones before it to have come out as expected.
    """
    candidates = [
        setting
        for setting in map(Setting, *zip(*product(range(max_draft_tokens + 1), concurrency), strict=True))
        if setting not in known.round_s
        and (setting.num_draft_tokens or setting.concurrency not in known.token_s)
    ]
    chosen: list[Setting] = []
    for _ in range(min(count, len(candidates))):
        best = {
            flying: max(
                known.speed_up(Setting(length, flying)).value for length in range(max_draft_tokens + 1)
            )
            for flying in concurrency
        }

        def promise(setting: Setting, best: dict[int, float] = best, known: Fit = known) -> float:
            hoped = known.speed_up(setting).value * (1 + 2 * known.uncertainty(setting))
            return hoped / best[setting.concurrency]

        found = max(candidates, key=promise)
        candidates.remove(found)
        chosen.append(found)
        known = known.with_believed(found)
    return tuple(chosen)


def _ask_in_turns(
    ask: Ask, settings: Sequence[Setting], report: Callable[[str], None]
) -> dict[Setting, list[Sample]]:
    samples: dict[Setting, list[Sample]] = {setting: [] for setting in settings}
    names = ", ".join(f"γ {s.num_draft_tokens} at {s.concurrency}" for s in settings)
    for turn in range(REPEATS):
        report(f"turn {turn + 1} of {REPEATS}: {names}")
        for setting in (*settings[turn:], *settings[:turn]):
            samples[setting].append(ask(setting))
    return samples


def _seconds(setting: Setting, runs: Sequence[Sample]) -> float:
    """Return the seconds of a round of a request, at γ = 0 of a token, in the quickest run."""
    counts = [run.rounds if setting.num_draft_tokens else run.tokens for run in runs]
    if not all(counts):
        raise BuildError(
            f"tune: answers with γ = {setting.num_draft_tokens} brought nothing to count; ask for more "
            "tokens, of prompts that are not answered at once"
        )
    return min(setting.concurrency * run.seconds / n for run, n in zip(runs, counts, strict=True))


def _tokens_per_round(runs: Sequence[Sample]) -> float:
    rounds = sum(run.rounds for run in runs)
    return 1 + sum(run.accepted for run in runs) / rounds if rounds else 1.0


def _tokens_per_s(setting: Setting, runs: Sequence[Sample], seconds: float) -> float:
    """Return the tokens a second that come with rounds of so many seconds."""
    return setting.concurrency * _tokens_per_round(runs) / seconds


def _points(known: Fit, max_draft_tokens: int, concurrency: Sequence[int]) -> tuple[Point, ...]:
    points = []
    for flying, length in product(concurrency, range(max_draft_tokens + 1)):
        gain = known.speed_up(Setting(length, flying))
        points.append(Point(length, flying, known.tokens(length), gain))
    return tuple(points)
