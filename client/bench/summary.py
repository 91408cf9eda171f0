"""What trials and segments come to, for each arm and load."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from trtspec.client.bench.acceptance import acceptance_of
from trtspec.client.bench.result import (
    Acceptance,
    Arm,
    Bound,
    Distribution,
    Estimate,
    Load,
    Segment,
    Settings,
    Summary,
    Trial,
)
from trtspec.client.bench.statistics import Bootstrap

Number = Callable[[Trial], float | None]
LEVELS = (0.5, 0.9, 0.95, 0.99)

# Of one trial; None where it has none.
PER_REQUEST: dict[str, Number] = {
    "tokens_per_s_per_request": lambda trial: trial.tokens_per_s,
    "ttft_s": lambda trial: trial.ttft_s,
    "itl_s": lambda trial: trial.itl_s,
    "e2e_s": lambda trial: trial.e2e_s,
}


def summarize(
    trials: Sequence[Trial],
    segments: Sequence[Segment],
    arms: Sequence[Arm],
    loads: Sequence[Load],
    settings: Settings,
    *,
    shows_acceptance: bool,
) -> tuple[Summary, ...]:
    """Return a summary for each load and arm, in their order; ratios are to the first arm."""
    summaries = []
    for load in loads:
        cells = [
            _Cell(
                arm.name,
                load.name,
                [t for t in trials if (t.arm, t.load) == (arm.name, load.name)],
                [s for s in segments if (s.arm, s.load) == (arm.name, load.name)],
                settings,
            )
            for arm in arms
        ]
        for cell in cells:
            summary = cell.summary(shows_acceptance=shows_acceptance)
            summaries.append(summary if cell is cells[0] else replace(summary, ratios=cell.ratios(cells[0])))
    return tuple(summaries)


def by_prompt(trials: Sequence[Trial], number: Number) -> dict[int, float]:
    """Return the median over blocks of a number of each prompt's trials."""
    values: dict[int, list[float]] = {}
    for trial in trials:
        value = number(trial) if trial.ok else None
        if value is not None:
            values.setdefault(trial.prompt, []).append(value)
    return {prompt: median(found) for prompt, found in values.items()}


def by_block(trials: Sequence[Trial], number: Number, usual: Mapping[int, float]) -> list[float]:
    """Return the median of each block's numbers, each over what is usual for its prompt."""
    values: dict[int, list[float]] = {}
    for trial in trials:
        value = number(trial) if trial.ok and trial.prompt in usual else None
        if value is not None and value > 0:
            values.setdefault(trial.block, []).append(value / usual[trial.prompt])
    return [median(found) for found in values.values()]


def total_tokens_per_s(trials: Sequence[Trial], segments: Sequence[Segment]) -> dict[int, float]:
    """Return for each block all tokens / its wall time."""
    return {
        segment.block: sum(t.tokens for t in trials if t.ok and t.block == segment.block) / segment.wall_s
        for segment in segments
        if segment.wall_s > 0
    }


def keeps(trial: Trial, bound: Bound) -> bool:
    """Whether an answer came, and within the bound; a time that it has not is kept."""
    limits = ((trial.ttft_s, bound.ttft_s), (trial.itl_s, bound.itl_s), (trial.e2e_s, bound.e2e_s))
    return trial.ok and all(limit is None or value is None or value <= limit for value, limit in limits)


class _Cell:
    """One arm under one load."""

    def __init__(
        self, arm: str, load: str, trials: Sequence[Trial], segments: Sequence[Segment], settings: Settings
    ) -> None:
        self.arm, self.load = arm, load
        self.trials, self.segments = trials, segments
        self._good = [trial for trial in trials if trial.ok]
        self._settings = settings
        self._unit: Callable[[Trial], int] = lambda trial: trial.prompt
        if len({t.prompt for t in self._good}) < len(segments):
            self._unit = lambda trial: trial.block

    def summary(self, *, shows_acceptance: bool) -> Summary:
        return Summary(
            arm=self.arm,
            load=self.load,
            requests=len(self.trials),
            failed=len(self.trials) - len(self._good),
            tokens=sum(trial.tokens for trial in self._good),
            tokens_per_s=self._median(list(self.totals().values())),
            tokens_per_s_per_request=self._distribution(_optional(PER_REQUEST["tokens_per_s_per_request"])),
            ttft_s=self._distribution(_optional(PER_REQUEST["ttft_s"])),
            itl_chunk_s=self._distribution(lambda trial: trial.chunk_gaps_s),
            itl_s=self._distribution(_optional(PER_REQUEST["itl_s"])),
            e2e_s=self._distribution(_optional(PER_REQUEST["e2e_s"])),
            goodput_per_s=self._goodput(),
            server_s=self._distribution(_optional(_server_s)),
            outside_share=self._middle(_outside_share),
            orchestration_share=self._middle(_orchestration_share),
            acceptance=self._acceptance() if shows_acceptance else None,
            tokens_per_response=self._middle(lambda trial: trial.tokens_per_response),
        )

    def totals(self) -> dict[int, float]:
        return total_tokens_per_s(self.trials, self.segments)

    def ratios(self, base: _Cell) -> dict[str, Estimate]:
        """Return this / base by metric; per request the ratio within a block, its median for each prompt."""
        ratios = {}
        ours, theirs = self.totals(), base.totals()
        totals = [ours[block] / theirs[block] for block in ours if theirs.get(block)]
        if found := self._median(totals):
            ratios["tokens_per_s"] = found
        for name, number in PER_REQUEST.items():
            if found := self._median(self._paired(base, number)):
                ratios[name] = found
        return ratios

    def _paired(self, base: _Cell, number: Number) -> list[float]:
        theirs: dict[tuple[int, int], list[float]] = {}
        for trial in base._good:
            if value := number(trial):
                theirs.setdefault((trial.block, trial.prompt), []).append(value)
        ratios: dict[int, list[float]] = {}
        for trial in self._good:
            value, other = number(trial), theirs.get((trial.block, trial.prompt))
            if value is not None and other:
                ratios.setdefault(self._unit(trial), []).append(value / median(other))
        return [median(found) for found in ratios.values()]

    def _distribution(self, numbers: Callable[[Trial], Sequence[float]]) -> Distribution | None:
        found = [(value, self._unit(trial)) for trial in self._good for value in numbers(trial)]
        return Distribution(*self._quantiles(found, LEVELS)) if found else None

    def _middle(self, number: Number) -> Estimate | None:
        found = [(value, self._unit(trial)) for trial in self._good for value in _optional(number)(trial)]
        return self._quantiles(found, LEVELS[:1])[0] if found else None

    def _quantiles(self, found: Sequence[tuple[float, int]], levels: Sequence[float]) -> tuple[Estimate, ...]:
        place = {unit: n for n, unit in enumerate(sorted({unit for _, unit in found}))}
        values, units = [value for value, _ in found], [place[unit] for _, unit in found]
        return self._bootstrap(len(place)).quantiles(values, units, levels)

    def _median(self, values: Sequence[float]) -> Estimate | None:
        return self._bootstrap(len(values)).median(values) if values else None

    def _goodput(self) -> Estimate | None:
        bound = self._settings.bound
        if bound == Bound():
            return None
        return self._median(
            [
                sum(t.block == segment.block and keeps(t, bound) for t in self.trials) / segment.wall_s
                for segment in self.segments
                if segment.wall_s > 0
            ]
        )

    def _acceptance(self) -> Acceptance | None:
        speaking = [trial for trial in self._good if trial.speculation and trial.speculation.proposed]
        if not speaking:
            return None
        place = {unit: n for n, unit in enumerate(sorted({self._unit(trial) for trial in speaking}))}
        found = [(trial.speculation, place[self._unit(trial)]) for trial in speaking if trial.speculation]
        acceptance = acceptance_of(found, self._bootstrap(len(place)))
        brought = sum(speculation.rounds + speculation.accepted for speculation, _ in found)
        tokens = sum(trial.tokens for trial in self._good)
        if acceptance.tokens_per_target_call is None or not tokens:
            return acceptance
        # What a round brought beyond the end of its answer is not in the answer.
        return replace(acceptance, share_of_tokens=min(1.0, brought / tokens))

    def _bootstrap(self, units: int) -> Bootstrap:
        return Bootstrap(units, confidence=self._settings.confidence, seed=self._settings.seed)


def _optional(number: Number) -> Callable[[Trial], Sequence[float]]:
    def numbers(trial: Trial) -> Sequence[float]:
        value = number(trial)
        return () if value is None else (value,)

    return numbers


def _server_s(trial: Trial) -> float | None:
    return trial.server.total_s if trial.server else None


def _outside_share(trial: Trial) -> float | None:
    return 1 - trial.server.total_s / trial.e2e_s if trial.server and trial.e2e_s > 0 else None


def _orchestration_share(trial: Trial) -> float | None:
    server = trial.server
    if server is None or server.engine_s is None or server.total_s <= 0:
        return None
    return 1 - server.engine_s / server.total_s
