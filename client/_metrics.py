"""A server's metrics: Prometheus' text format, read.

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_SAMPLE = re.compile(r"(?P<name>[\w:]+)\s*(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+-?\d+)?\s*")
_LABEL = re.compile(r'(?P<name>\w+)\s*=\s*"(?P<value>(?:[^"\\]|\\.)*)"\s*,?\s*')
_ESCAPES = {r"\n": "\n", r"\"": '"', r"\\": "\\"}


@dataclass(frozen=True)
class Sample:
    """One number of one metric."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class Metrics:
    """All samples of a server, in its order: Triton's own (nv_*) and those of its models (trtspec_*)."""

    samples: tuple[Sample, ...]

    def select(self, name: str, **labels: str) -> tuple[Sample, ...]:
        """Return the samples of this name that have these labels, among others."""
        return tuple(s for s in self.samples if s.name == name and labels.items() <= s.labels.items())

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of the samples of this name that have these labels; 0 if there are none."""
        return sum(sample.value for sample in self.select(name, **labels))


def parse_metrics(text: str) -> Metrics:
    """Return the samples; lines that are none are passed over, as comments and newer syntax are."""
    return Metrics(tuple(_samples(text)))


def _samples(text: str) -> Iterator[Sample]:
    for line in text.splitlines():
        found = _SAMPLE.fullmatch(line.strip())
        if found is None:
            continue
        try:
            value = float(found["value"])
        except ValueError:
            continue
        labels = {m["name"]: _unescaped(m["value"]) for m in _LABEL.finditer(found["labels"] or "")}
        yield Sample(found["name"], labels, value)


def _unescaped(value: str) -> str:
    return re.sub(r'\\[n"\\]', lambda found: _ESCAPES[found[0]], value)
