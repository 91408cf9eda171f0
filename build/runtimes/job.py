"""What a runtime is given, and what it gives back."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trtspec.build.check.pair_report import PairReport, TargetReport
from trtspec.build.checkpoint import Checkpoint
from trtspec.build.json_file import write_json
from trtspec.build.options import BuildOptions
from trtspec.build.stages import Done, Stage
from trtspec.engines.manifest import (
    AcceptanceManifest,
    EngineManifest,
    EngineSettings,
    FingerprintManifest,
    HostNeeds,
    QuantizationManifest,
)
from trtspec.engines.memory.result import MemoryPlan

Report = Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """A pair that fits, and what shall become of it."""

    target: Checkpoint
    draft: Checkpoint | None  # None: the target drafts by itself
    found: PairReport | TargetReport
    options: BuildOptions
    # Tokens of prompt and answer that each engine holds.
    target_seq_len: int
    draft_seq_len: int
    report: Report
    # Logs of what is run lie beside it.
    output: Path
    memory: MemoryPlan | None = None

    def checkpoint(self, role: str) -> Checkpoint:
        """Return the checkpoint of the target or the draft."""
        checkpoint = self.target if role == "target" else self.draft
        assert checkpoint is not None, "only --runtime pytorch drafts without a draft"
        return checkpoint

    @property
    def roles(self) -> tuple[str, ...]:
        """The models that there are."""
        return ("target",) if self.draft is None else ("target", "draft")

    def seq_len(self, role: str) -> int:
        """Return the tokens that the engine of the target or the draft holds."""
        return self.target_seq_len if role == "target" else self.draft_seq_len

    def write_generation_config(self, role: str, folder: Path) -> None:
        """Write the checkpoint's generation_config.json, with the ids that end a text for both models."""
        ends = {"eos_token_id": list(self.found.eos_token_ids)} if self.found.eos_token_ids else {}
        write_json(folder / "generation_config.json", {**self.checkpoint(role).generation_config, **ends})


@dataclass(frozen=True)
class Built:
    """What the manifest says of the engines."""

    target: EngineManifest
    draft: EngineManifest | None
    compiled: bool
    repairs: tuple[str, ...]
    speculation: str = "draft_target"
    commands: tuple[tuple[str, ...], ...] = ()
    versions: dict[str, str] | None = None
    acceptance: AcceptanceManifest | None = None
    fingerprint: FingerprintManifest | None = None
    host_needs: HostNeeds | None = None


class RuntimeModule(Protocol):
    """What a module of this package defines."""

    # Kinds of checkpoints (trtspec.build.check.drafters) that can be a draft.
    DRAFTERS: frozenset[str]

    def faults(self, options: BuildOptions, /) -> Sequence[str]:
        """Return what is wrong with the options on this runtime, before anything starts."""
        ...

    def stages(self, job: Job, /) -> Sequence[Stage]:
        """Return the steps that make the engines; the tokenizer is made before, as stage `tokenizer`."""
        ...

    def describe(self, job: Job, done: Done, /) -> Built:
        """Return what the manifest shall say once all stages have been run."""
        ...


def mended(found: PairReport | TargetReport) -> tuple[str, ...]:
    """Return the findings of the pair check that a build can mend."""
    return tuple(finding.id for finding in found.findings if finding.repairable)


def describe_engine(
    checkpoint: Checkpoint,
    files: Mapping[str, str],
    settings: EngineSettings,
    quantization: QuantizationManifest | None,
) -> EngineManifest:
    """Return the manifest's part about an engine; `files` are the SHA-256 of those its stage has made."""
    sizes: Counter[str] = Counter()
    for tensor in checkpoint.tensors.values():
        sizes[tensor.dtype] += math.prod(tensor.shape)
    return EngineManifest(
        architecture=checkpoint.architecture,
        source_dtype=sizes.most_common(1)[0][0],
        parameters=sizes.total(),
        settings=settings,
        quantization=quantization,
        files=dict(files),
    )
