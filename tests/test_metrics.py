"""Counting for Prometheus, over a double of Triton's metric families."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from trtspec.triton_repo.speculation import metrics as counting
from trtspec.triton_repo.speculation.loop import Speculation
from trtspec.triton_repo.speculation.metrics import COUNTERS, GAUGES, Metrics


class MetricDouble:
    """Triton's metric: a counter refuses to be set and to fall."""

    def __init__(self, kind: str) -> None:
        self.kind, self.shown, self.messages = kind, 0.0, 0

    def increment(self, amount: float) -> None:
        assert amount >= 0
        self.shown += amount
        self.messages += 1

    def set(self, value: float) -> None:
        assert self.kind == "gauge"
        self.shown = value
        self.messages += 1


class FamiliesDouble:
    """Triton's `MetricFamily`: a name is given once, labels once for each metric."""

    COUNTER, GAUGE = "counter", "gauge"

    def __init__(self) -> None:
        self.metrics: dict[tuple[str, tuple[tuple[str, str], ...]], MetricDouble] = {}
        self.names: set[str] = set()

    def __call__(self, *, name: str, description: str, kind: str) -> FamilyDouble:
        assert name not in self.names
        assert description
        self.names.add(name)
        return FamilyDouble(self, name, kind)

    def shown(self) -> dict[str, float]:
        return {
            name + "".join(value for label, value in labels if label != "model"): metric.shown
            for (name, labels), metric in self.metrics.items()
        }


class FamilyDouble:
    def __init__(self, families: FamiliesDouble, name: str, kind: str) -> None:
        self._families, self._name, self._kind = families, name, kind

    def Metric(self, *, labels: dict[str, str]) -> MetricDouble:
        key = (self._name, tuple(labels.items()))
        assert key not in self._families.metrics
        return self._families.metrics.setdefault(key, MetricDouble(self._kind))


@pytest.fixture
def families(monkeypatch: pytest.MonkeyPatch) -> FamiliesDouble:
    # The tests hand over themselves.
    monkeypatch.setattr(counting, "HAND_OVER_S", 1e6)
    return FamiliesDouble()


@pytest.fixture
def metrics(families: FamiliesDouble) -> Iterator[Metrics]:
    made = Metrics(families, "public", {name: lambda: 3 for name in GAUGES})
    yield made
    made.close()


def test_everything_is_shown_from_the_start(families: FamiliesDouble, metrics: Metrics) -> None:
    assert families.names == COUNTERS.keys() | GAUGES.keys()
    assert all(name.startswith("trtspec_") for name in families.names)
    assert {name for name in COUNTERS if "position" not in name} <= families.shown().keys()


def test_answers_add_up(families: FamiliesDouble, metrics: Metrics) -> None:
    one, other = Speculation(), Speculation()
    one.record([1, 2, 3], [1, 2, 9])
    other.record([1, 2], [1, 2, 3])
    other.record([1], [7])
    metrics.count_answer(one, 3)
    metrics.count_answer(other, 4)
    metrics.count("trtspec_rejected_busy_total")
    metrics.hand_over()
    shown = families.shown()
    assert shown["trtspec_answers_total"] == 2
    assert shown["trtspec_output_tokens_total"] == 7
    assert shown["trtspec_rounds_total"] == 3
    assert shown["trtspec_proposed_draft_tokens_total"] == 6
    assert shown["trtspec_accepted_draft_tokens_total"] == 4
    assert [shown[f"trtspec_proposed_at_position_total{i}"] for i in (1, 2, 3)] == [3, 2, 1]
    assert [shown[f"trtspec_accepted_at_position_total{i}"] for i in (1, 2)] == [2, 2]
    assert shown["trtspec_rejected_busy_total"] == 1
    assert shown["trtspec_draft_length"] == 3


def test_what_has_not_changed_costs_no_message(families: FamiliesDouble, metrics: Metrics) -> None:
    metrics.count("trtspec_draft_failures_total")
    for _ in range(5):
        metrics.hand_over()
    assert sum(metric.messages for metric in families.metrics.values()) == 1 + len(GAUGES)


def test_nothing_is_lost_between_threads(families: FamiliesDouble, metrics: Metrics) -> None:
    def count() -> None:
        for _ in range(500):
            metrics.count("trtspec_draft_failures_total")

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        metrics.hand_over()
    for thread in threads:
        thread.join()
    metrics.hand_over()
    assert families.shown()["trtspec_draft_failures_total"] == 2000


def test_the_thread_hands_over_by_itself_until_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "HAND_OVER_S", 0.001)
    families, handed_over = FamiliesDouble(), threading.Event()

    def gauge() -> float:
        handed_over.set()
        return 1

    metrics = Metrics(families, "public", {"trtspec_draft_length": gauge})
    assert handed_over.wait(30)
    metrics.close()
    assert "metrics" not in {thread.name for thread in threading.enumerate()}
