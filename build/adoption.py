"""A converted pair and engines that were compiled elsewhere in, a finished pair out."""

from __future__ import annotations

import shutil
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from trtspec.build.runtimes.tensorrt.built_engine import check_engine
from trtspec.build.runtimes.tensorrt.compilation import LOG, Compiled
from trtspec.build.runtimes.tensorrt.description import needs_of, settings_of, versions_of
from trtspec.build.runtimes.tensorrt.planning import ROLES
from trtspec.build.runtimes.tensorrt.script import VERSIONS, commands_of
from trtspec.build.runtimes.tensorrt.toolchain import Versions
from trtspec.digest import sha256
from trtspec.engines.manifest import EngineManifest
from trtspec.engines.pair import EnginePair, check_contents, open_pair, write_manifest
from trtspec.engines.publish import check_output, publish
from trtspec.errors import BuildError


class _Found(BaseModel):
    """What the script has written of the machine that it ran on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tensorrt_llm: str
    tensorrt: str | None
    sm: int | None


def adopt(pair: Path, engines: Path, output: Path) -> EnginePair:
    """Make the pair `output` of a converted pair and the engines that its script has compiled.

    Raises:
        OutputError, EngineError: a folder cannot be used.
        BuildError: an engine is missing, cut short, or not the one that was asked for.
    """
    check_output(output)
    converted = open_pair(pair)
    commands = commands_of(converted)
    check_contents(converted)
    found = _read_versions(engines / VERSIONS)
    versions = Versions(tensorrt_llm=found.tensorrt_llm, tensorrt=found.tensorrt)
    compiled = {
        role: Compiled(
            config=check_engine(
                engines / role,
                command,
                pair / role,
                name=engines / role,
                version=versions.tensorrt_llm,
            ),
            versions=versions,
            sm=found.sm,
        )
        for role, command in commands.items()
    }
    with publish(output) as folder:
        for file in converted.manifest.files:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(pair / file, folder / file)
        described = {role: _adopt_engine(converted, engines, role, folder, compiled[role]) for role in ROLES}
        target, draft = described["target"], described["draft"]
        manifest = converted.manifest.model_copy(
            update={
                "key": "",  # no build gives just this
                "compiled": True,
                "target": target,
                "draft": draft,
                "versions": {**converted.manifest.versions, **versions_of(compiled["target"])},
                "host_needs": needs_of(
                    [engine.settings.tp * engine.settings.pp for engine in described.values()],
                    fp8=any(engine.quantization for engine in described.values()),
                    compiled=compiled["target"],
                ),
            }
        )
        write_manifest(manifest, folder)
    return open_pair(output)


def _adopt_engine(
    converted: EnginePair, engines: Path, role: str, folder: Path, compiled: Compiled
) -> EngineManifest:
    """Copy an engine, and return what is said of it."""
    asked = converted.manifest.target if role == "target" else converted.manifest.draft
    assert asked is not None  # both have been compiled
    place = folder / role
    place.mkdir()
    for file in sorted((engines / role).iterdir()):
        if file.is_file():
            shutil.copyfile(file, place / file.name)
    if (log := engines / f"{role}.log").is_file():
        shutil.copyfile(log, place / LOG)
    return asked.model_copy(
        update={
            "settings": settings_of(compiled.config, asked.settings.dtype, asked.settings.max_draft_len),
            "files": {file.name: sha256(file) for file in sorted(place.iterdir())},
        }
    )


def _read_versions(file: Path) -> _Found:
    try:
        return _Found.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        raise BuildError(
            f"{file}: missing; expected the folder that the script of `trtspec build --script` has made"
        ) from None
    except ValidationError as error:
        raise BuildError(f"{file}: not as the script writes it ({error.error_count()} faults)") from error
