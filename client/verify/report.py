"""The report of a verification, as a value."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from trtspec.client.verify.findings import Finding, Verdict
from trtspec.client.verify.greedy import Case


@dataclass(frozen=True)
class VerifyReport:
    """Everything that was looked at so far.

    `complete` is False when verification was stopped before its end.
    """

    reference: str
    about: Mapping[str, str] = field(default_factory=dict)
    judged_as: str = "float32"
    alarm_rate: float = 0.0
    cases: tuple[Case, ...] = ()
    others: tuple[Finding, ...] = ()
    complete: bool = True

    @property
    def ok(self) -> bool:
        """Whether something was compared, and is right."""
        return self.compared and not any(finding.verdict == "defect" for finding in self.findings)

    @property
    def compared(self) -> bool:
        """Whether there is a finding that says more than why nobody could look."""
        return any(finding.verdict != "skipped" for finding in self.findings)

    @property
    def skipped(self) -> tuple[str, ...]:
        """What could not be looked at and why, a line for each reason."""
        reasons = Counter((found.part, found.detail) for found in self.findings if found.verdict == "skipped")
        return tuple(f"{part}: {count} skipped: {why}" for (part, why), count in reasons.items())

    @property
    def mismatches(self) -> tuple[Case, ...]:
        return tuple(case for case in self.cases if not case.ok)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Everything as findings: the greedy cases first."""
        return (*map(_finding, self.cases), *self.others)

    def as_dict(self) -> dict[str, Any]:
        """Return it as what JSON can hold."""
        return {
            "ok": self.ok,
            "complete": self.complete,
            "reference": self.reference,
            "about": dict(self.about),
            "judged_as": self.judged_as,
            "alarm_rate": self.alarm_rate,
            "cases": [_case_dict(case) for case in self.cases],
            "findings": [_finding_dict(finding) for finding in self.others],
        }


def describe(case: Case) -> str:
    """Return what is wrong with a case in one line; "" when nothing is."""
    if defect := case.defect:
        served, expected = (
            f"{token.text!r} ({token.id})" if token else "the end"
            for token in (defect.served, defect.expected)
        )
        return (
            f"position {defect.position} after {defect.before[-40:]!r}: served {served}, the reference says "
            f"{expected}, {defect.gap:.3g} logits better where noise explains {defect.bound:.3g}; its "
            f"top-2 margin is {defect.margin:.3g}"
        )
    if not case.ok:
        return (
            f"the server read {case.prompt_tokens} prompt tokens, the reference "
            f"{case.expected_prompt_tokens}; compare tokenizer and BOS rule"
        )
    return ""


def name_of(case: Case) -> str:
    """Return what was asked, and how."""
    drafts = "automatic" if case.num_draft_tokens < 0 else str(case.num_draft_tokens)
    return f"{case.prompt[:40]!r} with {drafts} draft tokens{', alone' if case.alone else ''}"


def _finding(case: Case) -> Finding:
    verdict: Verdict = "defect" if not case.ok else "tie" if case.ties else "ok"
    ties = f"{case.ties} ties" if case.ties else ""
    return Finding("greedy", name_of(case), verdict, describe(case) or ties)


def _case_dict(case: Case) -> dict[str, Any]:
    differences = [
        asdict(difference) | {"verdict": difference.verdict, "gap": _finite(difference.gap)}
        for difference in case.differences
    ]
    return asdict(case) | {"ok": case.ok, "differences": differences}


def _finding_dict(finding: Finding) -> dict[str, Any]:
    return asdict(finding) | {"numbers": {name: _finite(value) for name, value in finding.numbers.items()}}


def _finite(value: float) -> float | None:
    """Return a number that JSON has; it has neither infinity nor nan."""
    return value if math.isfinite(value) else None
