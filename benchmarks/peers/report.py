"""What came of it, as rows, a table and one JSON object."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from systems import Answer

REFERENCE = "transformers"
OURS = "trtspec"


@dataclass(frozen=True)
class Row:
    """A system with a draft length, medians over the prompts."""

    system: str
    dtype: str
    draft_length: int
    tokens_per_s: float
    # Answers that are those of plain float32 transformers; None where that was not asked.
    equal: int | None
    answers: int
    # New tokens per pass of the target, and what the passes of both models read of weights; None: not known.
    tokens_per_pass: float | None
    read_gb_per_s: float | None


def row(
    system: str,
    dtype: str,
    draft_length: int,
    answers: Mapping[int, Answer],
    expected: Mapping[int, Answer],
    weight_bytes: tuple[int, int],
) -> Row:
    """Return the row of the answers by prompt; `weight_bytes`: what a pass of target and draft reads."""
    seconds = statistics.median(answer.seconds for answer in answers.values())
    tokens = statistics.median(len(answer.ids) for answer in answers.values())
    passes = _mean(answer.target_passes for answer in answers.values())
    drafted = _mean(answer.draft_passes for answer in answers.values())
    read = None
    if passes is not None and drafted is not None:
        read = (passes * weight_bytes[0] + drafted * weight_bytes[1]) / 1e9 / seconds
    return Row(
        system=system,
        dtype=dtype,
        draft_length=draft_length,
        tokens_per_s=tokens / seconds,
        equal=sum(answer.ids == expected[prompt].ids for prompt, answer in answers.items())
        if expected
        else None,
        answers=len(answers),
        tokens_per_pass=tokens / passes if passes else None,
        read_gb_per_s=read,
    )


def _mean(counts: Iterable[int | None]) -> float | None:
    known = [count for count in counts if count is not None]
    return statistics.mean(known) if known else None


def best(rows: Sequence[Row], system: str, *, speculative: bool = False) -> Row | None:
    """Return the system's row with the most tokens a second; `speculative`: among those that drafted."""
    of_it = [row for row in rows if row.system == system and (row.draft_length or not speculative)]
    return max(of_it, key=lambda row: row.tokens_per_s, default=None)


def summary(rows: Sequence[Row], memory_gb_per_s: float) -> dict[str, object]:
    """Return everything as plain values."""
    return {
        "hardware": hardware(),
        "memory_gb_per_s": memory_gb_per_s,
        "rows": [asdict(row) for row in rows],
        "best": {row.system: row.draft_length for row in rows if row is best(rows, row.system)},
    }


def table(rows: Sequence[Row], memory_gb_per_s: float, *, with_share: bool) -> str:
    """Return one line a row; * marks each system's best draft length."""
    assisted = best(rows, REFERENCE, speculative=True)
    lines = [
        f"{'':22} {'γ':>3}  {'tokens/s':>8}   {'× assisted':>10}  {'tokens/pass':>11}  {'equal':>7}"
        + ("  share of bandwidth" if with_share else "")
    ]
    for row in rows:
        ratio = f"{row.tokens_per_s / assisted.tokens_per_s:.2f}" if assisted else "–"
        equal = "–" if row.equal is None else f"{row.equal} of {row.answers}"
        a_pass = "–" if row.tokens_per_pass is None else f"{row.tokens_per_pass:.2f}"
        mark = "*" if row is best(rows, row.system) else " "
        line = (
            f"{row.system:22} {row.draft_length:3}  {row.tokens_per_s:8.1f} {mark} {ratio:>10}"
            f"  {a_pass:>11}  {equal:>7}"
        )
        if with_share and row.read_gb_per_s is not None:
            line += f"  {row.read_gb_per_s / memory_gb_per_s:17.0%}"
        lines.append(line)
    return "\n".join([*lines, *_verdicts(rows)])


def _verdicts(rows: Sequence[Row]) -> list[str]:
    """Return how our engine at its best compares with the best peer, in whatever dtype."""
    ours, peers = best(rows, OURS), [row for row in rows if not row.system.startswith(OURS)]
    if ours is None or not peers:
        return []
    peer = max(peers, key=lambda row: row.tokens_per_s)
    return [
        f"{ours.system} at γ {ours.draft_length} / {peer.system} at γ {peer.draft_length}, "
        f"the best peer: {ours.tokens_per_s / peer.tokens_per_s:.2f}"
    ]


def hardware() -> str:
    """Return one line about the machine."""
    names = [
        line.split(":")[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    name = names[0] if names else platform.processor()
    return (
        f"{name}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}"
    )
