"""The manifest of a pair that is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from trtspec import __version__
from trtspec.build.runtimes.job import Built, Job
from trtspec.build.stages import Done, Stage
from trtspec.build.store.keys import BuildKeys, as_json, versions
from trtspec.build.store.sources import Source
from trtspec.engines.manifest import EngineManifest, Manifest


def describe(
    job: Job,
    built: Built,
    stages: Sequence[Stage],
    done: Done,
    sources: Mapping[str, Source],
    keys: BuildKeys,
) -> Manifest:
    """Return what `trtspec.json` says of a pair whose stages are done."""
    return Manifest(
        key=keys.build,
        trtspec_version=__version__,
        runtime=job.options.runtime,
        compiled=built.compiled,
        speculation=built.speculation,
        target=_with_source(built.target, sources["target"]),
        draft=None if built.draft is None else _with_source(built.draft, sources["draft"]),
        eos_token_ids=job.found.eos_token_ids,
        repairs=built.repairs,
        files=_other_files(stages, done),
        commands=built.commands,
        versions={**versions(), **(built.versions or {})},
        options=as_json(job.options),
        acceptance=built.acceptance,
        fingerprint=built.fingerprint,
        host_needs=built.host_needs,
        memory=job.memory,
    )


def _with_source(engine: EngineManifest, source: Source) -> EngineManifest:
    return engine.model_copy(update={"source": source.manifest})


def _other_files(stages: Sequence[Stage], done: Done) -> dict[str, str]:
    """Return the SHA-256 of what lies outside the engines, by its path in the pair."""
    return {
        str(Path(stage.place) / name): digest
        for stage in stages
        if stage.place not in (None, "target", "draft")
        for name, digest in done.files(stage.name).items()
    }
