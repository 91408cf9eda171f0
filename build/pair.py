"""Two checkpoints in, an engine pair out."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

from pydantic import BaseModel

from trtspec.build.check.drafters import identify
from trtspec.build.check.findings import require_no_errors
from trtspec.build.check.model_shape import shape_of
from trtspec.build.check.pair_report import PairReport, TargetReport, check, check_target
from trtspec.build.checkpoint import Checkpoint, open_checkpoint
from trtspec.build.memory import plan_build
from trtspec.build.options import DEFAULT_MAX_SEQ_LEN, BuildOptions
from trtspec.build.pair_manifest import describe
from trtspec.build.runtimes import cpu
from trtspec.build.runtimes.job import Job, Report, RuntimeModule
from trtspec.build.runtimes.pytorch import runtime as pytorch
from trtspec.build.runtimes.tensorrt import runtime as tensorrt
from trtspec.build.stages import Done, Finished, Stage, free_memory_bytes, run_stages
from trtspec.build.store.hashes import HashedFile, mark_of
from trtspec.build.store.keys import BuildKeys, build_keys
from trtspec.build.store.record import MadeFor
from trtspec.build.store.sources import Source, read_source, source_files
from trtspec.build.store.store import Cache, Store, open_store
from trtspec.build.tokenizer import tokenizer_stage
from trtspec.choices import Runtime
from trtspec.engines.manifest import MANIFEST
from trtspec.engines.pair import EnginePair, open_pair, write_manifest
from trtspec.engines.publish import check_output, link_or_copy, publish
from trtspec.errors import BuildError, CheckpointError, OutputError

RUNTIMES: Mapping[Runtime, RuntimeModule] = {
    "cpu": cast(RuntimeModule, cpu),
    "tensorrt": cast(RuntimeModule, tensorrt),
    "pytorch": cast(RuntimeModule, pytorch),
}
StrPath = str | os.PathLike[str]
# From here on reading a checkpoint takes long enough to be told.
TOLD_BYTES = 1 << 30


def build(
    target: StrPath,
    draft: StrPath | None,
    output: StrPath,
    options: BuildOptions | None = None,
    *,
    cache: Cache = None,
    report: Report = print,
) -> EnginePair:
    """Build the engine pair `output` from two Hugging Face folders.

    Stages that the store holds are taken from there; where `output` is this very build, nothing is done.

    Args:
        draft: None where the target drafts by itself (--runtime pytorch).
        cache: the store's folder; None: the user's own (`default_cache`); "none": nothing is kept.
        report: called with a line for each step and each finding of the pair check.

    Raises:
        OutputError, CheckpointError: the folders cannot be used.
        PairError: the checkpoints do not fit each other.
        PlanError: the engines cannot fit the GPU they are made for.
        BuildError: an option is out of range, or a step failed.
    """
    options, output = options or BuildOptions(), Path(output)
    job = open_job(target, draft, output, options, report=report)
    runtime = RUNTIMES[options.runtime]
    stages = [tokenizer_stage(job), *runtime.stages(job)]
    with open_store(cache, output) as store:
        sources = _read_sources(job, store)
        keys = build_keys(stages, {role: source.hashes for role, source in sources.items()}, options)
        if ready := _ready(output, keys, store):
            report(f"{output}: is this build already; nothing to do")
            return ready
        make = partial(_make, job, store, sources, keys)
        done = run_stages(stages, make, memory_bytes=free_memory_bytes())
        with _one_at_a_time(store, keys):
            if ready := _ready(output, keys, store):
                report(f"{output}: another build of the same has made it")
                return ready
            with publish(output) as folder:
                _place(stages, done, folder)
                manifest = describe(job, runtime.describe(job, done), stages, done, sources, keys)
                write_manifest(manifest, folder)
        pair = open_pair(output)
        store.hashes.remember(_as_built(pair))
        return pair


def open_job(
    target: StrPath, draft: StrPath | None, output: StrPath, options: BuildOptions, *, report: Report
) -> Job:
    """Return what `build` is about to do, once the options and the checkpoints have been checked.

    Raises as `build` does; nothing is written.
    """
    output = Path(output)
    if not (output / MANIFEST).is_file():  # else it may be this build, made before
        check_output(output)
    if draft is None and options.runtime != "pytorch":
        raise BuildError(f"--runtime {options.runtime} wants a draft; name one")
    checkpoints = open_checkpoint(Path(target)), None if draft is None else open_checkpoint(Path(draft))
    lengths = _lengths(*checkpoints, options)
    runtime = RUNTIMES[options.runtime]
    if wrong := runtime.faults(options):
        raise BuildError("; ".join(wrong))
    found = _check(*checkpoints, runtime.DRAFTERS, report)
    memory = plan_build(*checkpoints, options, lengths[0])
    return Job(*checkpoints, found, options, *lengths, report, output, memory)


def _check(
    target: Checkpoint, draft: Checkpoint | None, drafters: frozenset[str], report: Report
) -> PairReport | TargetReport:
    found = check_target(target) if draft is None else check(target, draft)
    if isinstance(found, PairReport) and found.draft.identity.kind in drafters:
        # What is no language model of its own may be what the runtime drafts with.
        found = replace(found, findings=tuple(f for f in found.findings if f.id != "draft.kind"))
    require_no_errors(found.findings)
    for finding in found.findings:
        report(f"{finding.severity}: {finding.message}")
    return found


def _lengths(target: Checkpoint, draft: Checkpoint | None, options: BuildOptions) -> tuple[int, int]:
    """Return how many tokens the target and the draft engine hold."""
    context = _context(target)
    default = min(context, DEFAULT_MAX_SEQ_LEN)
    wanted = default if options.max_seq_len is None else options.max_seq_len
    faults = (
        (not 1 < wanted <= context, f"max_seq_len is {wanted}, the target's context is {context} tokens"),
        (options.max_draft_len < 1, f"max_draft_len is {options.max_draft_len}, expected at least 1"),
        (
            options.max_draft_len >= wanted,
            f"max_draft_len is {options.max_draft_len}, sequences have no more than {wanted} tokens",
        ),
        (options.max_batch_size < 1, f"max_batch_size is {options.max_batch_size}, expected at least 1"),
    )
    for wrong, message in faults:
        if wrong:
            raise BuildError(message)
    if draft is None or not identify(draft).stand_alone:
        return wanted, wanted
    return wanted, min(wanted, _context(draft))


def _context(checkpoint: Checkpoint) -> int:
    found = shape_of(checkpoint).context_length
    if found is None:
        raise CheckpointError(
            f"{checkpoint.path / 'config.json'}: no max_position_embeddings, so its context is unknown"
        )
    return found


def _read_sources(job: Job, store: Store) -> dict[str, Source]:
    sources = {}
    for role in job.roles:
        checkpoint = job.checkpoint(role)
        unread = store.hashes.unread_bytes(source_files(checkpoint))
        if unread > TOLD_BYTES:
            job.report(
                f"{role}: reading {unread / 1e9:.0f} GB of {checkpoint.path}, to know it by its content"
            )
        sources[role] = read_source(checkpoint, store.hashes)
    return sources


def _ready(output: Path, keys: BuildKeys, store: Store) -> EnginePair | None:
    """Return the pair that is there, where it is the one to be built; None where nothing is."""
    if not output.exists():
        return None
    pair = open_pair(output)
    if pair.manifest.key != keys.build:
        raise OutputError(
            f"{output}: exists already and is another build; remove it or choose another --output"
        )
    found = store.hashes.of(output / name for name in pair.files())
    changed = [
        file.path for file, digest in zip(found, pair.files().values(), strict=True) if file.sha256 != digest
    ]
    if changed:
        raise OutputError(f"{changed[0]}: is not as it was built; remove {output} and build it again")
    return pair


def _as_built(pair: EnginePair) -> Iterator[HashedFile]:
    for name, digest in pair.files().items():
        yield HashedFile(pair.path / name, digest, mark_of(pair.path / name))


def _make(
    job: Job, store: Store, sources: Mapping[str, Source], keys: BuildKeys, stage: Stage, done: Done
) -> Finished:
    def run(folder: Path, done: Done) -> BaseModel:
        facts = stage.run(folder, done)
        for role in stage.sources:
            sources[role].check()
        return facts

    made_for = MadeFor(
        target=str(job.target.path.absolute()),
        draft=None if job.draft is None else str(job.draft.path.absolute()),
        runtime=job.options.runtime,
        output=str(job.output.absolute()),
    )
    checked = replace(stage, run=run)
    return store.make(checked, keys.stages[stage.name], done, made_for, job.report)


@contextmanager
def _one_at_a_time(store: Store, keys: BuildKeys) -> Iterator[None]:
    """Let one of several builds of the same finish its pair while the others wait."""
    lock = store.lock(keys.build)
    try:
        lock.take(lambda: None)
        yield
    finally:
        lock.close()


def _place(stages: Sequence[Stage], done: Done, folder: Path) -> None:
    """Give what the stages made its place in the pair."""
    for stage in stages:
        if stage.place is None:
            continue
        for name in done.files(stage.name):
            place = folder / stage.place / name
            place.parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(done.folder(stage.name) / name, place)
