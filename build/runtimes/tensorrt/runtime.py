"""Engines of TensorRT-LLM 1.2.1: each checkpoint converted, then compiled with `trtllm-build`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from trtspec.build.check.drafters import LANGUAGE_MODELS
from trtspec.build.options import BuildOptions
from trtspec.build.runtimes.job import Built, Job, describe_engine, mended
from trtspec.build.runtimes.tensorrt.compilation import Compiled, Gpus, compile_role, share_gpus
from trtspec.build.runtimes.tensorrt.conflicts import gpu_faults, option_faults
from trtspec.build.runtimes.tensorrt.conversion import Converted, convert_role
from trtspec.build.runtimes.tensorrt.description import needs_of, settings_of, versions_of
from trtspec.build.runtimes.tensorrt.planning import PlannedEngine, notes_of, plan_engines, split, vocabulary
from trtspec.build.runtimes.tensorrt.toolchain import Toolchain, Versions, find_toolchain
from trtspec.build.stages import Done, Stage
from trtspec.engines.host import HostFacts, read_host_facts
from trtspec.engines.manifest import EngineManifest, EngineSettings
from trtspec.errors import BuildError

DRAFTERS = LANGUAGE_MODELS


def faults(options: BuildOptions) -> Sequence[str]:
    """Return what is wrong with the options on this runtime."""
    return option_faults(options)


def stages(job: Job) -> Sequence[Stage]:
    """Return the steps: both conversions; then both engines, where they are compiled now.

    Raises:
        BuildError: the options do not suit the models or the GPU, or there is no trtllm-build.
    """
    engines, wrong = plan_engines(job)
    later = job.options.tensorrt.compile == "later"
    host = HostFacts() if later else read_host_facts()
    if host.sm is not None:
        wrong += gpu_faults(job.options, [engine.model for engine in engines], host.sm)
    toolchain = None
    if not later:
        try:
            toolchain = find_toolchain(job.options.tensorrt)
        except BuildError as error:
            wrong.append(str(error))
    if wrong:
        raise BuildError("; ".join(wrong))
    for note in notes_of(engines):
        job.report(note)
    conversions = [_conversion(job, engine, place=engine.role if later else None) for engine in engines]
    if toolchain is None:
        return conversions
    versions = toolchain.versions()
    gpus = share_gpus(host, [engine.ranks for engine in engines])
    compilations = [
        _compilation(job, engine, toolchain, versions, shared, host.sm)
        for engine, shared in zip(engines, gpus, strict=True)
    ]
    return [*conversions, *compilations]


def describe(job: Job, done: Done) -> Built:
    """Return what the manifest shall say."""
    later = job.options.tensorrt.compile == "later"
    engines, _ = plan_engines(job)
    compiled = None if later else done.facts("target", Compiled)
    target, draft = (_describe_engine(job, engine, done) for engine in engines)
    fp8 = target.quantization is not None or draft.quantization is not None
    return Built(
        target=target,
        draft=draft,
        compiled=not later,
        repairs=mended(job.found),
        commands=tuple(
            engine.command.argv(engine.role if later else _converted(engine.role), engine.role)
            for engine in engines
        ),
        versions=dict(versions_of(compiled)),
        host_needs=needs_of([engine.ranks for engine in engines], fp8=fp8, compiled=compiled),
    )


def _converted(role: str) -> str:
    """Return the name of the stage that converts a model."""
    return f"{role}-checkpoint"


def _conversion(job: Job, engine: PlannedEngine, place: str | None) -> Stage:
    asked = job.options.quantization
    return Stage(
        name=_converted(engine.role),
        run=partial(_convert, job, engine),
        facts=Converted,
        sources=(engine.role,),
        inputs={
            "dtype": job.options.dtype,
            "split": split(job, engine.role),
            "vocabulary": vocabulary(job, engine.role),
            **asked.inputs(engine.role),
            "kv_cache": job.options.tensorrt.kv_cache,
        },
        needs=("tokenizer",),
        place=place,
        memory_bytes=asked.memory_bytes(engine.role),
    )


def _compilation(
    job: Job,
    engine: PlannedEngine,
    toolchain: Toolchain,
    versions: Versions,
    gpus: Gpus,
    sm: int | None,
) -> Stage:
    return Stage(
        name=engine.role,
        run=partial(_compile, job, engine, toolchain, versions, gpus, sm),
        facts=Compiled,
        inputs={"flags": dict(engine.command.flags), "versions": versions.model_dump(), "sm": sm},
        needs=(_converted(engine.role),),
        place=engine.role,
        # The weights, and the engine that holds them too, are in the host's memory at the end.
        memory_bytes=None if gpus is None else 2 * engine.checkpoint_bytes,
    )


def _convert(job: Job, engine: PlannedEngine, folder: Path, done: Done) -> Converted:
    return convert_role(job, engine, folder, done.folder("tokenizer"), done.go_on)


def _compile(
    job: Job,
    engine: PlannedEngine,
    toolchain: Toolchain,
    versions: Versions,
    gpus: Gpus,
    sm: int | None,
    folder: Path,
    done: Done,
) -> Compiled:
    checkpoint = done.folder(_converted(engine.role))
    return compile_role(job, engine, toolchain, versions, gpus, sm, checkpoint, folder, done.go_on)


def _describe_engine(job: Job, engine: PlannedEngine, done: Done) -> EngineManifest:
    role, options = engine.role, job.options
    converted = done.facts(_converted(role), Converted)
    if options.tensorrt.compile == "later":
        files, settings = done.files(_converted(role)), _asked_settings(job, engine, converted)
    else:
        compiled = done.facts(role, Compiled)
        files = done.files(role)
        settings = settings_of(compiled.config, converted.dtype, options.max_draft_len)
    return describe_engine(job.checkpoint(role), files, settings, converted.quantization)


def _asked_settings(job: Job, engine: PlannedEngine, converted: Converted) -> EngineSettings:
    """Return what an engine will hold once it is compiled."""
    return EngineSettings(
        dtype=converted.dtype,
        max_seq_len=engine.command.number("max_seq_len"),
        max_batch_size=job.options.max_batch_size,
        max_draft_len=job.options.max_draft_len,
        vocab_size=job.target.vocab_size,
        tp=engine.model.tp,
        pp=engine.model.pp,
    )
