"""Systems in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from systems import Answer, Question

# One thread everywhere, and none that spins: the others share the machine.
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "KMP_BLOCKTIME": "0",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}
STOP_S = 60


class Worker:
    """A started worker.py; `log` is where what it prints goes."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self._log = log
        self._read()

    def ask(self, question: Question) -> Answer:
        """Return the answer of the system; raises a ClickException where its process died."""
        assert self.process.stdin
        try:
            self.process.stdin.write(f"{json.dumps(asdict(question))}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # what it said last is in the log
        return Answer(**self._read())

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
            raise click.ClickException(f"{self._log}: the process ended with {self.process.wait()}:\n{tail}")
        read: dict[str, Any] = json.loads(line)
        return read


@contextmanager
def start(
    python: str, name: str, folder: Path, dtype: str, clock: str, core: str, log: Path
) -> Iterator[Worker]:
    """Start a worker and wait until it has loaded its system; end it on leaving."""
    command = [python, str(Path(__file__).with_name("worker.py")), name, str(folder), dtype, clock, core]
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=os.environ | _ENVIRONMENT,
        ) as process,
    ):
        try:
            yield Worker(process, log)
        finally:
            assert process.stdin
            process.stdin.close()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
