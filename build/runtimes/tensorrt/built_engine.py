"""Whether an engine folder holds the engine that was asked for, whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trtspec.build.json_file import read_object
from trtspec.build.runtimes.tensorrt.commands import BuildCommand
from trtspec.build.runtimes.tensorrt.engine_config import EngineConfig, read_engine_config
from trtspec.build.runtimes.tensorrt.expectations import expectations
from trtspec.engines.versions import ENGINE_RELEASE, is_engine_release
from trtspec.errors import BuildError

# An engine holds its weights; a rank's file of a checkpoint holds the embedding twice at most.
SMALLEST_SHARE = 0.4


def check_engine(
    folder: Path, command: BuildCommand, checkpoint: Path, *, name: object, version: str | None = None
) -> EngineConfig:
    """Return what an engine folder says, once that is what `command` asked of `checkpoint`.

    Args:
        name: what messages call the engine.
        version: of the TensorRT-LLM that ran; None: any of the line that is known.

    Raises:
        BuildError: a file is missing, cut short or not readable, or the engine is another one; every
            fault is named.
    """
    config = read_engine_config(folder, name)
    asked = read_object(checkpoint / "config.json")
    faults = []
    if not is_engine_release(config.version) or version not in (None, config.version):
        faults.append(f"version is {config.version}, expected {version or ENGINE_RELEASE}")
    for expected in expectations(command, asked):
        fault = expected.fault(_entry(config, expected.entry))
        if fault:
            faults.append(fault)
    faults += _file_faults(folder, checkpoint, asked["mapping"]["world_size"])
    if faults:
        raise BuildError(f"{name}: not the engine that was asked for: {'; '.join(faults)}")
    return config


def _entry(config: EngineConfig, path: str) -> Any:
    value: Any = config
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _file_faults(folder: Path, checkpoint: Path, ranks: int) -> list[str]:
    """Return which ranks have no engine, or one that cannot hold its weights."""
    faults = []
    for rank in range(ranks):
        file, weights = folder / f"rank{rank}.engine", checkpoint / f"rank{rank}.safetensors"
        size = file.stat().st_size if file.is_file() else None
        if size is None:
            faults.append(f"{file.name} is missing")
        elif size < SMALLEST_SHARE * weights.stat().st_size:
            faults.append(
                f"{file.name} has {size:,} bytes, its weights alone {weights.stat().st_size:,}: cut short"
            )
    return faults
