"""Ask other programs what a machine has, without ever waiting for one that does not answer."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

TIMEOUT_S = 10.0
# A process that hangs in a driver cannot be killed; it is left behind.
KILL_WAIT_S = 1.0
KEPT_BYTES = 1 << 20


@dataclass(frozen=True)
class Answer:
    """What a program said; `problem` is empty where it ended with 0."""

    text: str
    problem: str

    @property
    def ok(self) -> bool:
        """Whether the program was there and ended with 0."""
        return not self.problem


@dataclass(frozen=True)
class Probe:
    """Where programs are looked for, and how long each may take."""

    search_path: str | None = None  # None: PATH
    timeout_s: float = TIMEOUT_S

    def find(self, program: str) -> str | None:
        """Return the path of a program; None where there is none."""
        return shutil.which(program, path=self.search_path)

    def ask(self, program: str, *arguments: str) -> Answer:
        """Return what a program says, both streams together; it gets no input.

        It writes to a file, not a pipe: a child of it that lives on would hold a pipe open.
        """
        found = self.find(program)
        if found is None:
            return Answer("", "not on PATH")
        with tempfile.TemporaryFile() as output:
            try:
                process = subprocess.Popen(
                    [found, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env={**os.environ, "LC_ALL": "C"},
                )
            except OSError as error:
                return Answer("", f"{found} cannot be run ({error.strerror})")
            problem = self._wait(process)
            output.seek(0)
            text = output.read(KEPT_BYTES).decode("utf-8", "replace").strip()
        if problem and text and process.returncode is not None and process.returncode > 0:
            problem += f": {text.splitlines()[0]}"
        return Answer(text, problem)

    def _wait(self, process: subprocess.Popen[bytes]) -> str:
        """Return why a program is no use, "" where it ended with 0."""
        try:
            code = process.wait(self.timeout_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            try:
                process.wait(KILL_WAIT_S)
            except subprocess.TimeoutExpired:
                process.returncode = -signal.SIGKILL  # so that Python does not complain about it
            return f"no answer in {self.timeout_s:g} s"
        return f"ended with {code}" if code else ""


def package_version(name: str) -> str | None:
    """Return the version of a package in this Python, which is not imported; None where it is not there."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None
