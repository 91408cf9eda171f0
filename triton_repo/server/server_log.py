"""Read Triton's log: which models are loading, which failed, and what they said themselves."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from trtspec.errors import ServerError

# I1129 17:18:40.105276 10078 model_lifecycle.cc:472] "loading: tensorrt_llm:1"
TRITON_LINE = re.compile(r"^([IWEF])\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ (\S+?):\d+\] *(.*)$")
LOADING = re.compile(r"^loading: (.+):-?\d+$")
LOADED = re.compile(r"^successfully loaded '(.+?)'")
# The loader's verdict, and the word on a configuration it could not read.
FAILED = re.compile(r"^failed to load '(.+?)' version \d+: (.*)$", re.DOTALL)
UNREADABLE = re.compile(r"^Poll failed for model directory '(.+?)': (.*)$", re.DOTALL)
# A machine without a GPU makes these; they are no reason for anything.
HARMLESS = re.compile(r"CudaDriverHelper|pinned|NVML|DCGM")
BOX = re.compile(r"^[+|]|^\s*$")
NOT_HEALTHY = re.compile(r"^Internal: Stub process '.+' is not healthy")
# The C++ runtime's words when an exception ends a process; what() follows on a line of its own.
TERMINATED = re.compile(r"^terminate called.*(?:\n +what\(\):.*)?", re.MULTILINE)
WHOLE = re.compile(r"^terminate called.*\n +what\(\):.*\n", re.MULTILINE)
LAST_WORDS = 12


@dataclass(frozen=True)
class LoadFailure:
    """A model that did not load, with its own words: an exception and its traceback, or last output."""

    model: str
    reason: str


class ServerLog:
    """A server's log file from where this server's part begins."""

    def __init__(self, path: Path) -> None:
        """Open (create, append) the file.

        Raises:
            ServerError: it cannot be written, or is not a file.
        """
        self.path = path.absolute()
        try:
            self.file = self.path.open("ab")
            self.start = self.file.tell()
        except OSError as error:
            raise ServerError(f"log {path}: {error.strerror}; pass a file that can be written") from error

    def text(self) -> str:
        with self.path.open("rb") as file:
            file.seek(self.start)
            return file.read().decode(errors="replace")


def load_failures(text: str) -> list[LoadFailure]:
    """Return the models that did not load, in the order in which Triton gave them up."""
    failures: dict[str, LoadFailure] = {}
    for message in _messages(text):
        if found := FAILED.match(message) or UNREADABLE.match(message):
            failures.setdefault(found[1], LoadFailure(found[1], _reason(found[2], text)))
    return list(failures.values())


def termination(text: str) -> str:
    """Return what the C++ runtime wrote when an exception ended a process; empty if none did.

    Triton goes on waiting for a model process that ended like this before it reported itself.
    """
    found = TERMINATED.search(text)
    return found[0] if found else ""


def says_why(text: str) -> bool:
    """Whether the words of the exception follow, to their end: each piece is a write of its own."""
    return WHOLE.search(text) is not None


def still_loading(text: str) -> list[str]:
    """Return the models that began to load and neither loaded nor failed."""
    pending = dict.fromkeys(found[1] for message in _messages(text) if (found := LOADING.match(message)))
    for message in _messages(text):
        if done := LOADED.match(message) or FAILED.match(message):
            pending.pop(done[1], None)
    return list(pending)


def complaints(text: str) -> str:
    """Return the last lines that can say why a server ended: its errors, else whatever came last."""
    lines = [line for line in text.splitlines() if not BOX.match(line) and not HARMLESS.search(line)]
    errors = [line for line in lines if re.match(r"[EF]\d{4} |error\b|.*error while loading", line)]
    return "\n".join((errors or lines)[-LAST_WORDS:])


def _messages(text: str) -> list[str]:
    whole = text[: text.rfind("\n") + 1]  # what has no end yet is being written
    return [_unquoted(found[3]) for line in whole.splitlines() if (found := TRITON_LINE.match(line))]


def _unquoted(message: str) -> str:
    """Triton 2.51 writes messages as quoted strings, other releases plainly."""
    try:
        value = json.loads(message) if message.startswith('"') else message
    except json.JSONDecodeError:
        return message
    return str(value)


def _reason(verdict: str, text: str) -> str:
    if NOT_HEALTHY.match(verdict):
        words = "\n".join(_models_own_lines(text)[-LAST_WORDS:])
        last = f"; the last output of the models:\n{words}" if words else " and wrote nothing"
        return f"its process died while it loaded{last}"
    if "failed to read text proto" in verdict:
        return "\n".join(
            [verdict, *(line.rpartition("] ")[2] for line in text.splitlines() if "text-format" in line)]
        )
    lines = verdict.removeprefix("Internal: ").rstrip().splitlines()
    return "\n".join(line for line in lines if "<frozen importlib" not in line)


def _models_own_lines(text: str) -> list[str]:
    """Return what models printed themselves: lines that no part of Triton writes."""
    lines = [line for line in text.splitlines() if not BOX.match(line) and not HARMLESS.search(line)]
    return [line for line in lines if not TRITON_LINE.match(line)]
