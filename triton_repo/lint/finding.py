"""What the lint says: rules, and what they find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from trtspec.triton_repo.layout import Layout

# error: it does not load, or answers wrongly; warning: it serves worse or less safely than it could.
Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Complaint:
    """One thing a rule found."""

    file: Path
    message: str  # what was found, what was expected
    repair: str  # what to do
    line: int | None = None  # from 1; None where no line can be named


Check = Callable[["Layout"], Iterator[Complaint]]


@dataclass(frozen=True)
class Rule:
    """What must hold in a repository."""

    id: str  # stable, scripts may rely on it
    severity: Severity
    sentence: str
    check: Check


@dataclass(frozen=True)
class Finding:
    """A rule that does not hold, and where."""

    rule: str
    severity: Severity
    file: str  # from the repository's folder
    line: int | None
    message: str
    repair: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.severity} {self.rule}: {self.message}; {self.repair}"
