"""What two checkpoints show on the user's prompts: how often they agree, and what their passes take."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, Literal

from trtspec.build.check.findings import require_no_errors
from trtspec.build.check.pair_report import check
from trtspec.build.checkpoint import Checkpoint, open_checkpoint
from trtspec.build.tune.agreement import Agreement
from trtspec.build.tune.models import EngineModel, TunedModel, write_engine
from trtspec.build.tune.pass_time import PassTime, pass_time, unrest
from trtspec.errors import BuildError, CheckpointError, EngineError

Device = Literal["cpu", "cuda"]
Ids = Sequence[int]
# Times that each pass is timed, and rows a sequence beside 1 and γ max + 1.
TIMED = 7
ROWS = (2, 4, 8, 16)


@dataclass(frozen=True)
class TuneOptions:
    """How two checkpoints are tried."""

    max_draft_tokens: int = 8
    # Requests in flight.
    concurrency: tuple[int, ...] = (1, 2, 4, 8)
    max_tokens: int = 64
    device: Device = "cpu"

    def check(self) -> None:
        """Raise BuildError for what cannot be tried."""
        faults = []
        if self.max_draft_tokens < 1:
            faults.append(f"max_draft_tokens is {self.max_draft_tokens}, expected at least 1")
        if not self.concurrency or min(self.concurrency) < 1:
            faults.append(f"concurrency is {list(self.concurrency)}, expected numbers from 1 on")
        if self.max_tokens <= self.max_draft_tokens:
            faults.append(
                f"max_tokens is {self.max_tokens}, expected more than the {self.max_draft_tokens} draft "
                "tokens of a round"
            )
        if faults:
            raise BuildError(f"tune: {'; '.join(faults)}")


@dataclass(frozen=True)
class Measured:
    """What was found of a pair before anything was built."""

    agreements: tuple[Agreement, ...]
    # By the number of sequences in the pass, which is that of the requests in flight.
    target: Mapping[int, PassTime]
    draft_step_s: Mapping[int, float]
    # How much longer than its shortest a pass usually took.
    unrest: float = 0.0


def measure_costs(
    target: Path,
    draft: Path,
    datasets: Mapping[str, Sequence[str]],
    options: TuneOptions,
    *,
    report: Callable[[str], None] = print,
) -> Measured:
    """Return what two Hugging Face folders show on prompts, by the name of their data set.

    Args:
        report: called with a line for each step.

    Raises:
        CheckpointError: a folder cannot be used.
        PairError: they do not fit each other.
        BuildError: an option is out of range, or a data set has fewer than two prompts.
    """
    options.check()
    for name, prompts in datasets.items():
        if len(prompts) < 2:
            raise BuildError(f"{name}: {len(prompts)} prompts, expected at least 2")
    pair = open_checkpoint(target), open_checkpoint(draft)
    checked = check(*pair)
    require_no_errors(checked.findings)
    ids = {name: _encode(target, prompts) for name, prompts in datasets.items()}
    longest = max(len(prompt) for prompts in ids.values() for prompt in prompts)
    needed = longest + options.max_tokens + options.max_draft_tokens + 1
    if checked.context_length and needed > checked.context_length:
        raise BuildError(
            f"tune: the longest prompt has {longest} tokens, with {options.max_tokens} to generate that is "
            f"{needed}, the context is {checked.context_length}; shorten prompts or answers"
        )
    with _models(*pair, checked.eos_token_ids, needed, options) as models:
        return measure(*models, ids, options, report=report)


def measure(
    target: TunedModel,
    draft: TunedModel,
    datasets: Mapping[str, Sequence[Ids]],
    options: TuneOptions,
    *,
    report: Callable[[str], None] = print,
) -> Measured:
    """Return what two models show on tokenised prompts, by the name of their data set."""
    agreements = []
    for name, prompts in datasets.items():
        report(f"{name}: {len(prompts)} answers of the target, read by the draft")
        matches = [draft.agrees(ids, target.answer(ids, options.max_tokens)) for ids in prompts]
        if sum(bool(found) for found in matches) < 2:
            raise BuildError(f"{name}: fewer than two prompts were answered with tokens that the draft knows")
        agreements.append(Agreement(name, tuple(tuple(found) for found in matches if found)))
    report(f"passes of both models, {', '.join(map(str, options.concurrency))} sequences at a time")
    lengths = [len(ids) for prompts in datasets.values() for ids in prompts]
    context = int(median(lengths)) + options.max_tokens // 2
    return Measured(tuple(agreements), *_time_passes(target, draft, context, options))


def _time_passes(
    target: TunedModel, draft: TunedModel, context: int, options: TuneOptions
) -> tuple[dict[int, PassTime], dict[int, float], float]:
    """Return what passes of the target and steps of the draft take, by sequences in them, and the unrest.

    All take turns, so that drift of the machine hits them alike.
    """
    most = options.max_draft_tokens + 1
    verifying = sorted({1, most, *(rows for rows in ROWS if rows < most)})
    models = {"target": target, "draft": draft}
    counts = [*(("target", rows) for rows in verifying), ("draft", 1)]
    taken: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    for turn in range(TIMED + 1):
        for sequences, (role, rows) in product(options.concurrency, counts):
            seconds = models[role].pass_seconds(sequences, rows, context)
            if turn:  # the first is a warm-up
                taken[role, sequences, rows].append(seconds)
    curves = {n: pass_time({r: taken["target", n, r] for r in verifying}) for n in options.concurrency}
    steps = {n: min(taken["draft", n, 1]) for n in options.concurrency}
    return curves, steps, unrest(taken.values())


def _encode(folder: Path, prompts: Sequence[str]) -> list[list[int]]:
    """Return the ids of prompts, as the target's tokenizer gives them."""
    from transformers import AutoTokenizer

    auto: Any = AutoTokenizer
    try:
        tokenizer = auto.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(f"{folder}: no tokenizer that can be used ({reason})") from error
    ids = [list(tokenizer(prompt)["input_ids"]) for prompt in prompts]
    if not all(ids):
        empty = prompts[ids.index([])]
        raise BuildError(f"tune: the prompt {empty!r} has no tokens; leave it out")
    return ids


@contextmanager
def _models(
    target: Checkpoint,
    draft: Checkpoint,
    end_ids: Sequence[int],
    max_seq_len: int,
    options: TuneOptions,
) -> Iterator[tuple[TunedModel, TunedModel]]:
    """Load both models on the device that was asked for."""
    if options.device == "cuda":
        from trtspec.build.tune.huggingface_model import HuggingFaceModel

        yield (
            HuggingFaceModel(target.path, end_ids, options.device),
            HuggingFaceModel(draft.path, end_ids, options.device),
        )
        return
    vocab_size = max(target.vocab_size, draft.vocab_size)
    with tempfile.TemporaryDirectory(prefix="trtspec-tune-") as folder:

        def load(role: str, checkpoint: Checkpoint) -> EngineModel:
            engine = write_engine(
                checkpoint.path,
                Path(folder, role),
                max_seq_len=max_seq_len,
                sequences=max(options.concurrency),
                vocab_size=vocab_size,
            )
            try:
                return EngineModel(engine, end_ids)
            except EngineError as error:
                raise CheckpointError(f"{checkpoint.path}: {error}") from error

        yield load("target", target), load("draft", draft)
