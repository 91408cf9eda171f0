"""What verification found, one line at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

# note: no defect, and perhaps the reason of one. skipped: the server or the reference has not what it
# takes to look.
Verdict = Literal["ok", "tie", "note", "defect", "skipped"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at, and what came of it."""

    part: str
    name: str
    verdict: Verdict
    detail: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)
