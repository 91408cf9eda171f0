"""The whole answer of `trtspec doctor`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from trtspec.doctor.lines import Line, machine_lines
from trtspec.doctor.machine import Machine, read_machine
from trtspec.doctor.runtimes import RuntimeReport, runtime_reports


@dataclass(frozen=True)
class DoctorReport:
    """What a machine has and what it can do."""

    lines: tuple[Line, ...]
    runtimes: tuple[RuntimeReport, ...]

    def can_serve(self, runtime: str) -> bool:
        """Whether a runtime can run on this machine, in a container at least."""
        return any(found.serve.possible for found in self.runtimes if found.runtime == runtime)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values: `machine`, a list of lines, and `runtimes`, by name."""
        return {
            "machine": [asdict(line) for line in self.lines],
            "runtimes": {
                found.runtime: {"build": asdict(found.build), "serve": asdict(found.serve)}
                for found in self.runtimes
            },
        }


def examine(machine: Machine | None = None) -> DoctorReport:
    """Return the report about a machine, by default this one."""
    machine = machine or read_machine()
    return DoctorReport(machine_lines(machine), runtime_reports(machine))
