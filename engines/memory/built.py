"""The engines of a pair that is built, as the memory plan sees them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from trtspec.engines.manifest import EngineManifest
from trtspec.engines.memory.decoder import decoder_of
from trtspec.engines.memory.ranks import Engine, Limits
from trtspec.engines.pair import EnginePair
from trtspec.errors import PlanError


def built_engines(pair: EnginePair) -> tuple[Engine, Engine, Limits]:
    """Return the target, the draft and what they hold.

    Raises:
        PlanError: the drafter is no engine of its own, or an engine folder has no config.json that can be
            read.
    """
    manifest = pair.manifest
    if manifest.draft is None:
        raise PlanError(f"{pair.path}: its drafter is no engine of its own; plan with two checkpoints")
    settings = manifest.target.settings
    limits = Limits(
        max_seq_len=settings.max_seq_len,
        max_batch_size=settings.max_batch_size,
        max_draft_len=settings.max_draft_len,
    )
    if tokens := _config(pair.target).get("build_config", {}).get("max_num_tokens"):
        limits = replace(limits, max_num_tokens=tokens)
    return _engine(pair.target, manifest.target), _engine(pair.draft, manifest.draft), limits


def _config(folder: Path) -> dict[str, Any]:
    """Return an engine's own config.json, or its checkpoint's where it is not compiled."""
    file = folder / "config.json"
    try:
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise PlanError(f"{file}: cannot be read ({error}); build the pair again") from error
    if not isinstance(found, dict):
        raise PlanError(f"{file}: is no JSON object; build the pair again")
    return found


def _engine(folder: Path, manifest: EngineManifest) -> Engine:
    config, settings = _config(folder), manifest.settings
    quantization = config.get("pretrained_config", config).get("quantization") or {}
    return Engine(
        decoder=decoder_of(config, f"{folder.parent.name}/{folder.name}"),
        tp=settings.tp,
        pp=settings.pp,
        # Planned for a GPU, where the float32 of the cpu runtime has no use.
        dtype="bfloat16" if settings.dtype == "float32" else settings.dtype,
        fp8=manifest.quantization is not None,
        fp8_kv_cache=quantization.get("kv_cache_quant_algo") == "FP8",
    )
