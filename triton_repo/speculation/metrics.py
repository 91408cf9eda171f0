"""What the public model counts, at Triton's metrics port.

`trtspec.theory` defines the letters. From the counters, over any stretch of time:

    r, the acceptance rate         trtspec_accepted_draft_tokens_total / trtspec_proposed_draft_tokens_total
    E, tokens a round              1 + trtspec_accepted_draft_tokens_total / trtspec_rounds_total
    α, of the token at position p  trtspec_accepted_at_position_total{position=p} / the same of p - 1,
                                   for p = 1 trtspec_rounds_total in place of the latter

where position 1 is the first draft token of a round. Where γ varies, that α is a lower bound: rounds
too short to reach the position count as refusals. A response carries the same counts of its answer.

Every change of a metric costs Triton a message between processes, so answers count in memory, and a
thread hands over what has changed a few times a second.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from .loop import Speculation

HAND_OVER_S = 0.25

COUNTERS = {
    "trtspec_answers_total": "Answers that were given to their end",
    "trtspec_output_tokens_total": "Tokens of those answers",
    "trtspec_rounds_total": "Target calls that checked draft tokens",
    "trtspec_proposed_draft_tokens_total": "Draft tokens that the target was given to check",
    "trtspec_accepted_draft_tokens_total": "Draft tokens that the target kept",
    "trtspec_proposed_at_position_total": "Draft tokens proposed, by position in their round from 1",
    "trtspec_accepted_at_position_total": "Draft tokens kept, by position in their round from 1",
    "trtspec_draft_failures_total": "Draft calls that failed; the answer went on without a draft",
    "trtspec_rejected_busy_total": "Requests turned away because too many were in flight",
}
GAUGES = {
    "trtspec_draft_length": "Draft length that adapting requests use at present; 0 is none",
    "trtspec_draft_failing": "1 while the draft is left alone because it failed, else 0",
    "trtspec_requests_in_flight": "Requests that the public model works on",
}

Labels = tuple[tuple[str, str], ...]


class Metrics:
    """Counts, and hands over.

    Args:
        families: Triton's `pb_utils.MetricFamily`.
        model: the label `model` of every metric.
        gauges: reads a gauge of GAUGES.
    """

    def __init__(self, families: Any, model: str, gauges: dict[str, Callable[[], float]]) -> None:
        self._model = ("model", model)
        self._gauges = gauges
        self._lock = threading.Lock()
        self._counted: Counter[tuple[str, Labels]] = Counter()
        self._metrics: dict[tuple[str, Labels], Any] = {}
        self._shown: dict[str, float] = {}
        kinds = dict.fromkeys(COUNTERS, families.COUNTER) | dict.fromkeys(GAUGES, families.GAUGE)
        described = COUNTERS | GAUGES
        self._families = {
            name: families(name=name, description=described[name], kind=kind) for name, kind in kinds.items()
        }
        # Shown from the start: a counter that appears with its first event has no rate.
        for name in described:
            if "position" not in name:
                self._metric(name, ())
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def count(self, name: str, amount: int = 1) -> None:
        with self._lock:
            self._counted[name, ()] += amount

    def count_answer(self, speculation: Speculation, output_tokens: int) -> None:
        """Count an answer and what speculation did for it."""
        with self._lock:
            counted = self._counted
            counted["trtspec_answers_total", ()] += 1
            counted["trtspec_output_tokens_total", ()] += output_tokens
            counted["trtspec_rounds_total", ()] += speculation.rounds
            counted["trtspec_proposed_draft_tokens_total", ()] += speculation.proposed
            counted["trtspec_accepted_draft_tokens_total", ()] += speculation.accepted
            for name, counts in (
                ("trtspec_proposed_at_position_total", speculation.proposed_per_position),
                ("trtspec_accepted_at_position_total", speculation.accepted_per_position),
            ):
                for position, amount in enumerate(counts, start=1):
                    counted[name, (("position", str(position)),)] += amount

    def hand_over(self) -> None:
        """Give Triton what was counted since the last time."""
        with self._lock:
            counted, self._counted = self._counted, Counter()
        for (name, labels), amount in counted.items():
            if amount:
                self._metric(name, labels).increment(amount)
        for name, read in self._gauges.items():
            value = read()
            if self._shown.get(name) != value:
                self._metric(name, ()).set(value)
                self._shown[name] = value

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(HAND_OVER_S):
            self.hand_over()

    def _metric(self, name: str, labels: Labels) -> Any:
        if (name, labels) not in self._metrics:
            self._metrics[name, labels] = self._families[name].Metric(labels=dict((self._model, *labels)))
        return self._metrics[name, labels]
