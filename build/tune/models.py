"""What is asked of a model before anything is built, and the cpu engine that answers it on any machine."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Protocol

import numpy as np

from trtspec.engines.cpu.request import Request
from trtspec.engines.load import load_engine
from trtspec.errors import EngineError


class TunedModel(Protocol):
    """A model that answers greedily, reads answers, and can be timed."""

    def answer(self, prompt_ids: Sequence[int], max_tokens: int) -> list[int]:
        """Return the greedy continuation."""

    def agrees(self, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> list[bool]:
        """Return whether it would have said each token of an answer after those before it.

        The answer is read up to the first token that it does not know.
        """

    def pass_seconds(self, sequences: int, rows: int, context: int) -> float:
        """Return what one pass took that adds `rows` tokens to each of so many cached sequences."""


def write_engine(
    checkpoint: Path, folder: Path, *, max_seq_len: int, sequences: int, vocab_size: int
) -> Path:
    """Make `folder` an engine of the checkpoint, whose files it links to, computing in float32."""
    folder.mkdir()
    for file in (checkpoint / "config.json", *checkpoint.glob("*.safetensors")):
        (folder / file.name).symlink_to(file.resolve())
    settings = {
        "dtype": "float32",
        "max_seq_len": max_seq_len,
        "max_batch_size": sequences,
        "max_draft_len": max_seq_len,
        "vocab_size": vocab_size,
    }
    (folder / "engine.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


class EngineModel:
    """A model in the cpu engine.

    Args:
        folder: as `write_engine` leaves it.
        end_ids: the tokens that end an answer.

    Raises:
        EngineError: it cannot be run, or computes nothing but NaN.
    """

    def __init__(
        self, folder: Path, end_ids: Sequence[int], *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._engine = load_engine(folder)
        self._refuse_nan()
        self._ends = tuple((i,) for i in end_ids)
        self._clock = clock

    def _refuse_nan(self) -> None:
        """Find weights that are NaN, with which a model agrees with nobody."""
        asked = Request(input_ids=[0], max_new_tokens=1, return_generation_logits=True)
        for chunk in self._engine.generate(asked):
            known_TV = chunk.logits[:, : self._engine.limits.known_ids] if chunk.logits is not None else None
            if known_TV is not None and not np.isfinite(known_TV).all():
                raise EngineError(
                    "its logits are NaN or Inf; the checkpoint is damaged or diverged in training"
                )

    def answer(self, prompt_ids: Sequence[int], max_tokens: int) -> list[int]:
        request = Request(input_ids=prompt_ids, max_new_tokens=max_tokens, stop_words=self._ends)
        return [token for chunk in self._engine.generate(request) for token in chunk.ids]

    def agrees(self, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> list[bool]:
        known = self._engine.limits.known_ids
        if any(token >= known for token in prompt_ids):
            return []
        left = list(takewhile(lambda token: token < known, answer_ids))
        read, found = list(prompt_ids), list[bool]()
        while left:
            request = Request(input_ids=read, max_new_tokens=len(left) + 1, draft_ids=left)
            said = [token for chunk in self._engine.generate(request) for token in chunk.ids]
            # All that it keeps, and then a token of its own in place of the first that it does not.
            kept = min(len(said) - 1, len(left))
            found += [True] * kept + [False] * (kept < len(left))
            read += left[: kept + 1]
            left = left[kept + 1 :]
        return found

    def pass_seconds(self, sequences: int, rows: int, context: int) -> float:
        known = self._engine.limits.known_ids
        requests = [
            # No two begin alike, so that each keeps its own rows in the cache.
            Request(
                input_ids=[(i + 31 * k) % known for k in range(context)],
                max_new_tokens=rows,
                draft_ids=[(i + k) % known for k in range(rows - 1)],
            )
            for i in range(sequences)
        ]
        took = 0.0
        for _ in range(2):  # the first, where need be, fills the cache
            before = self._engine.computed_rows
            for request in requests:
                self._engine.submit(request)
            started = self._clock()
            while self._engine.sequences:
                self._engine.step()
            took = self._clock() - started
            if self._engine.computed_rows - before == sequences * rows:
                break
        return took
