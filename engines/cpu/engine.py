"""The engine: many requests at once, one forward pass a step, whatever each of them needs next."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from .architecture import read_architecture
from .cache import PrefixCache
from .errors import EngineLoadError, RequestError
from .model import Model, Segment
from .request import Chunk, Limits, Request, check
from .sequence import Sequence
from .weights import Weights

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

# Rows of one prompt, and of all sequences, in one pass: bounds the memory of a pass and the time
# that a long prompt keeps running answers waiting.
_PROMPT_ROWS = 512
_PASS_ROWS = 1024


class Decoder(Protocol):
    """What the engine needs of a model."""

    vocab_size: int

    def forward(self, segments: list[Segment]) -> Tensor:
        """Return float32 logits [Σ logit_rows, V] of one pass."""

    def copy_prefix(self, source: int, destination: int, length: int) -> None:
        """Copy the first `length` cached positions of one slot to another."""


@dataclass(frozen=True, slots=True)
class _Settings:
    """What engine.json says."""

    dtype: torch.dtype
    max_seq_len: int
    max_batch_size: int
    max_draft_len: int
    # Columns of the logits; 0: as many as the model has.
    vocab_size: int


class Engine:
    """An engine folder, loaded: config.json, *.safetensors and engine.json.

    The logits are as wide as engine.json's vocab_size: two models of a pair may have been padded to
    different widths. The ids that this model lacks have logit -inf.

    Not thread-safe: one thread submits, steps and cancels.

    Args:
        folder: see above. Raises EngineLoadError where it cannot be run as it is.

    Attributes:
        computed_rows: rows that went through the model.
        reused_rows: prompt ids that were found in the cache instead.
    """

    def __init__(self, folder: Path) -> None:
        settings = _read_settings(folder / "engine.json")
        # As many slots again as can run: an answer that is cut into calls finds its rows between two of them.
        slots = 2 * settings.max_batch_size
        # Before the model: those of transformers make an object for each slot, however many are asked for.
        self._cache = _prefix_cache(slots, settings.max_seq_len)
        self._model = _load(folder, settings, slots)
        known_ids = self._model.vocab_size
        self._lacking_ids = max(0, settings.vocab_size - known_ids)
        self.limits = Limits(
            vocab_size=known_ids + self._lacking_ids,
            known_ids=known_ids,
            max_seq_len=settings.max_seq_len,
            max_batch_size=settings.max_batch_size,
            max_draft_len=settings.max_draft_len,
        )
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self.computed_rows = 0
        self.reused_rows = 0

    @property
    def sequences(self) -> list[Sequence]:
        """The requests that are running or waiting."""
        return [*self._running, *self._waiting]

    def check(self, request: Request) -> None:
        """Raise RequestError where a request cannot be answered as it was asked."""
        check(request, self.limits)

    def submit(self, request: Request) -> Sequence:
        """Queue a request; raises RequestError as `check` does."""
        self.check(request)
        sequence = Sequence(request)
        self._waiting.append(sequence)
        return sequence

    def cancel(self, sequence: Sequence) -> None:
        """End a request now; nothing more comes for it. One that has ended stays as it ended."""
        if sequence in self._waiting:
            self._waiting.remove(sequence)
        elif sequence in self._running:
            self._retire(sequence)
        else:
            return
        sequence.finish_reason = "cancelled"

    def reset(self) -> list[Sequence]:
        """Drop every request and everything cached, after a step that raised; returns the requests."""
        dropped = self.sequences
        for sequence in self._running:
            self._cache.forget(sequence.slot)
        self._running.clear()
        self._waiting.clear()
        return dropped

    def step(self) -> list[tuple[Sequence, Chunk]]:
        """Run one pass over all running requests and return what each has to send."""
        self._admit()
        scheduled = self._schedule()
        if not scheduled:
            return []
        if isinstance(self._model, Model) and (steps := self._greedy_steps(scheduled)):
            return self._run_greedily(self._model, scheduled, steps)
        logits = self._model.forward([segment for _, segment in scheduled])
        if self._lacking_ids:
            logits = F.pad(logits, (0, self._lacking_ids), value=float("-inf"))
        chunks: list[tuple[Sequence, Chunk]] = []
        row = 0
        for sequence, segment in scheduled:
            rows = logits[row : row + segment.logit_rows]
            row += segment.logit_rows
            self.computed_rows += len(segment.ids)
            chunk = self._advance(sequence, segment, rows)
            if chunk is not None:
                chunks.append((sequence, chunk))
        return chunks

    def _greedy_steps(self, scheduled: list[tuple[Sequence, Segment]]) -> int:
        """Return how many passes may follow each other in one compiled call, 0 where they may not.

        Whoever arrives meanwhile waits for them, so that no request may want more than a draft brings.
        """
        left = [sequence.greedy_tokens if segment.logit_rows else 0 for sequence, segment in scheduled]
        return min(left) if max(left) <= self.limits.max_draft_len else 0

    def _run_greedily(
        self, model: Model, scheduled: list[tuple[Sequence, Segment]], steps: int
    ) -> list[tuple[Sequence, Chunk]]:
        ends = [-1 if s.request.end_id is None else s.request.end_id for s, _ in scheduled]
        chosen = model.run_greedily([segment for _, segment in scheduled], ends, steps)
        chunks = []
        for (sequence, segment), tokens in zip(scheduled, chosen.tolist(), strict=True):
            self.computed_rows += len(segment.ids) + len(tokens) - 1
            sequence.extend(tokens)
            if (chunk := self._send(sequence, segment)) is not None:
                chunks.append((sequence, chunk))
        return chunks

    def generate(self, request: Request) -> Iterator[Chunk]:
        """Yield the chunks of one request, stepping the engine; closing the iterator cancels it."""
        if self.sequences:
            raise RuntimeError(
                "generate() steps the engine itself and needs it idle; use submit() and step()"
            )
        sequence = self.submit(request)
        try:
            while sequence in self.sequences:
                for _, chunk in self.step():
                    if chunk.error is not None:
                        raise chunk.error
                    yield chunk
        finally:
            self.cancel(sequence)

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self.limits.max_batch_size:
            sequence = self._waiting.popleft()
            placement = self._cache.acquire(sequence.tokens)
            if placement.copied_from is not None:
                self._model.copy_prefix(placement.copied_from, placement.slot, placement.reused)
            sequence.slot, sequence.computed = placement.slot, placement.reused
            self.reused_rows += placement.reused
            self._running.append(sequence)

    def _schedule(self) -> list[tuple[Sequence, Segment]]:
        """Return the next segment of as many requests as fit in a pass, the short ones first."""
        segments = [(sequence, sequence.next_segment(_PROMPT_ROWS)) for sequence in self._running]
        segments.sort(key=lambda pair: len(pair[1].ids) == _PROMPT_ROWS)
        scheduled: list[tuple[Sequence, Segment]] = []
        rows = 0
        for sequence, segment in segments:
            if not scheduled or rows + len(segment.ids) <= _PASS_ROWS:
                scheduled.append((sequence, segment))
                rows += len(segment.ids)
        return scheduled

    def _advance(self, sequence: Sequence, segment: Segment, logits: Tensor) -> Chunk | None:
        try:
            sequence.advance(segment, logits)
        except RequestError as error:
            self._retire(sequence)
            return Chunk(ids=[], error=error)
        return self._send(sequence, segment)

    def _send(self, sequence: Sequence, segment: Segment) -> Chunk | None:
        """Note what is cached now, and return what is due."""
        self._cache.hold(sequence.slot, segment.start, sequence.tokens[segment.start : sequence.computed])
        if sequence.finish_reason is not None:
            self._retire(sequence)
        return sequence.collect()

    def _retire(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._cache.release(sequence.slot)


def _prefix_cache(slots: int, max_seq_len: int) -> PrefixCache:
    try:
        return PrefixCache(slots, max_seq_len)
    except (MemoryError, ValueError):  # ValueError: beyond what numpy counts to
        raise EngineLoadError(
            f"engine.json: {slots} slots of {max_seq_len} tokens are more than this machine has room for; "
            "make max_batch_size or max_seq_len smaller"
        ) from None


def _read_settings(path: Path) -> _Settings:
    written = _read_json(path)
    try:
        dtype = written["dtype"]
        sizes = {key: int(written[key]) for key in ("max_seq_len", "max_batch_size", "max_draft_len")}
        sizes["vocab_size"] = int(written.get("vocab_size", 0))
    except (KeyError, TypeError, ValueError) as error:
        raise EngineLoadError(f"{path}: {error} is missing or not a number") from None
    if dtype not in _DTYPES:
        raise EngineLoadError(f"{path}: dtype is {dtype!r}, expected one of {', '.join(_DTYPES)}")
    if sizes["max_seq_len"] < 2 or sizes["max_batch_size"] < 1 or sizes["max_draft_len"] < 0:
        raise EngineLoadError(f"{path}: sizes {sizes} leave no room for a request")
    return _Settings(dtype=_DTYPES[dtype], **sizes)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise EngineLoadError(f"{path}: not there; an engine folder holds it") from None
    except ValueError as error:
        raise EngineLoadError(f"{path}: not JSON ({error})") from None
    if not isinstance(content, dict):
        raise EngineLoadError(f"{path}: expected a JSON object")
    return content


def _load(folder: Path, settings: _Settings, slots: int) -> Decoder:
    config = _read_json(folder / "config.json")
    architecture = read_architecture(config, settings.max_seq_len)
    if architecture is None:
        from .transformers_model import TransformersModel

        return TransformersModel(
            folder, config, settings.dtype, slots=slots, max_seq_len=settings.max_seq_len
        )
    weights = Weights(folder, settings.dtype)
    return Model(architecture, weights, slots=slots, max_seq_len=settings.max_seq_len)
