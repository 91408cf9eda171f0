"""The numbers of a result that people are shown, as text; a terminal and a page show the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trtspec.client.bench.result import Arm, BenchResult, Load, TokensFrom
from trtspec.client.bench.rows import ACCEPTANCE, Row, rows


def _number(value: float) -> str:
    """Return three digits, but no fewer than before the point."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _ms(seconds: float) -> str:
    return _number(seconds * 1000)


def _percent(share: float) -> str:
    return f"{share:.1%}"


def _share(share: float) -> str:
    return f"{share:.2f}"


# Of all rows those that are shown: titles, and how a number is written. What is about the row above it
# begins with spaces.
SHOWN: dict[str, tuple[str, Callable[[float], str]]] = {
    "tokens_per_s": ("tokens/s in total", _number),
    "tokens_per_s ratio": ("  × the first", _number),
    "tokens_per_s_per_request p50": ("tokens/s a request", _number),
    "tokens_per_s_per_request ratio": ("  × the first", _number),
    "goodput_per_s": ("good requests/s", _number),
    "ttft_s p50": ("first token, ms", _ms),
    "ttft_s p99": ("  p99", _ms),
    "itl_chunk_s p50": ("responses apart, ms", _ms),
    "itl_chunk_s p99": ("  p99", _ms),
    "tokens_per_response": ("  tokens in one", _number),
    "itl_s p50": ("per later token, ms", _ms),
    "itl_s p99": ("  p99", _ms),
    "e2e_s p50": ("whole answer, ms", _ms),
    "e2e_s p95": ("  p95", _ms),
    "e2e_s p99": ("  p99", _ms),
    "server_s p50": ("in the server, ms", _ms),
    "outside_share": ("outside the server", _percent),
    "orchestration_share": ("beside its engines", _percent),
    "r": ("r", _share),
    "α": ("α", _share),
    "E": ("E", _number),
    "draft tokens a round": ("draft tokens a round", _number),
    "share of tokens from rounds": ("tokens from rounds", _percent),
}
COUNTED_BY: dict[TokensFrom, str] = {"ids": "ids", "usage": "the server", "tokenizer": "the pair's tokenizer"}
NOT_REPORTED = "not reported"


@dataclass(frozen=True)
class Cell:
    """A number or word, and the number's interval."""

    value: str = ""
    interval: str = ""

    def __str__(self) -> str:
        return f"{self.value} {self.interval}".strip()


@dataclass(frozen=True)
class Line:
    """A title, and a cell for each arm."""

    title: str
    cells: tuple[Cell, ...]


def table(result: BenchResult, load: Load) -> tuple[Line, ...]:
    """Return the lines of a load; those that no arm has a number for are left out."""
    found = {(row.arm, row.metric): row for row in rows(result) if row.load == load.name}
    silent = {
        arm.name
        for arm in result.arms
        if not any(trial.speculation for trial in result.trials_of(arm.name, load.name))
    }
    lines = [
        Line(
            title,
            tuple(
                _cell(metric, found.get((arm.name, metric)), is_silent=arm.name in silent)
                for arm in result.arms
            ),
        )
        for metric, (title, _) in SHOWN.items()
        if any((arm.name, metric) in found for arm in result.arms)
    ]
    lines.append(Line("tokens counted by", tuple(_counted_by(result, arm, load) for arm in result.arms)))
    failed = [result.summary_of(arm.name, load.name).failed for arm in result.arms]
    if any(failed):
        lines.append(Line("failed requests", tuple(Cell(str(count)) for count in failed)))
    return tuple(lines)


def _cell(metric: str, row: Row | None, *, is_silent: bool) -> Cell:
    if row is None:
        return Cell(NOT_REPORTED if is_silent and metric in ACCEPTANCE.values() else "")
    write = SHOWN[metric][1]
    if row.low is None or row.high is None:
        return Cell(write(row.value))
    return Cell(write(row.value), f"[{write(row.low)}, {write(row.high)}]")


def _counted_by(result: BenchResult, arm: Arm, load: Load) -> Cell:
    ways = {trial.tokens_from for trial in result.trials_of(arm.name, load.name) if trial.ok}
    return Cell(", ".join(words for way, words in COUNTED_BY.items() if way in ways))
