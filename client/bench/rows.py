"""A result as rows of numbers: what tables, CSV files and pages show."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields

from trtspec.client.bench.result import BenchResult, Distribution, Estimate, Summary

PERCENTILES = ("p50", "p90", "p95", "p99")
# In the order they are shown; a distribution has a row for each percentile.
METRICS = (
    "tokens_per_s",
    "tokens_per_s_per_request",
    "ttft_s",
    "itl_chunk_s",
    "tokens_per_response",
    "itl_s",
    "e2e_s",
    "goodput_per_s",
    "server_s",
    "outside_share",
    "orchestration_share",
)
ACCEPTANCE = {"rate": "r", "alpha": "α", "tokens_per_target_call": "E"}


@dataclass(frozen=True)
class Row:
    """A number of an arm under a load; low and high are None where it has no interval."""

    load: str
    arm: str
    metric: str
    value: float
    low: float | None = None
    high: float | None = None


def rows(result: BenchResult) -> tuple[Row, ...]:
    """Return all numbers of the summaries."""
    return tuple(
        Row(summary.load, summary.arm, metric, *numbers)
        for summary in result.summaries
        for metric, numbers in _numbers(summary)
    )


def to_csv(result: BenchResult) -> str:
    """Return the rows as CSV with a head; cells without a number are empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(field.name for field in fields(Row))
    writer.writerows(map(astuple, rows(result)))
    return text.getvalue()


def _numbers(summary: Summary) -> Iterator[tuple[str, tuple[float, ...]]]:
    for name in ("requests", "failed", "tokens"):
        yield name, (getattr(summary, name),)
    for name in METRICS:
        found = getattr(summary, name)
        if isinstance(found, Distribution):
            for percentile in PERCENTILES:
                yield f"{name} {percentile}", _of(getattr(found, percentile))
        elif found is not None:
            yield name, _of(found)
    for name, ratio in summary.ratios.items():
        yield f"{name} ratio", _of(ratio)
    if acceptance := summary.acceptance:
        for name, symbol in ACCEPTANCE.items():
            if found := getattr(acceptance, name):
                yield symbol, _of(found)
        if acceptance.mean_draft_tokens is not None:
            yield "draft tokens a round", (acceptance.mean_draft_tokens,)
        if acceptance.share_of_tokens is not None:
            yield "share of tokens from rounds", (acceptance.share_of_tokens,)
        for position, share in enumerate(acceptance.by_position, 1):
            yield f"accepted at position {position}", (share,)


def _of(estimate: Estimate) -> tuple[float, float, float]:
    return estimate.value, estimate.low, estimate.high
