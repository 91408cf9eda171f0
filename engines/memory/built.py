"""The engines of a pair that is built, as the memory plan sees them."""

from __future__ import annotations

import json
from pathlib import Path

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
    return _engine(pair.target, manifest.target), _engine(pair.draft, manifest.draft), limits


def _engine(folder: Path, manifest: EngineManifest) -> Engine:
    file, settings = folder / "config.json", manifest.settings
    try:
        config = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise PlanError(f"{file}: cannot be read ({error}); build the pair again") from error
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
