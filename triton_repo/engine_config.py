"""What an engine folder says about its engine: the `config.json` of TensorRT-LLM, the `engine.json` of ours.

Keys are those TensorRT-LLM's C++ runtime reads (`gptJsonConfig.cpp`, 1.2).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtspec.errors import EngineError

# `speculative_decoding_mode` as trtllm-build writes it for a target that takes drafted tokens.
DRAFT_TOKENS_EXTERNAL = 2


@dataclass(frozen=True)
class EngineConfig:
    """The limits of one engine; None where its file does not say."""

    path: Path
    max_seq_len: int
    max_batch_size: int
    max_draft_len: int
    vocab_size: int
    logits_dtype: str = "float32"
    ranks: int = 1
    # The rest is about TensorRT-LLM's engines only.
    version: str | None = None
    takes_drafts: bool | None = None
    paged_context_fmha: bool | None = None
    kv_cache_type: str | None = None
    kv_cache_quantization: str | None = None
    gathers_generation_logits: bool | None = None

    def missing_ranks(self) -> list[str]:
        """Return the names of engine files that are not there, or empty."""
        if self.version is None:
            return []
        names = (f"rank{rank}.engine" for rank in range(self.ranks))
        files = {name: self.path / name for name in names}
        return [name for name, file in files.items() if not file.is_file() or not file.stat().st_size]


def read_engine_config(folder: Path) -> EngineConfig:
    """Return what an engine folder says.

    Raises:
        EngineError: there is no file about the engine, or a limit is missing from it.
    """
    # Ours has a config.json too: the checkpoint's.
    for name, read in (("engine.json", _cpu), ("config.json", _tensorrt)):
        file = folder / name
        if not file.is_file():
            continue
        try:
            return read(folder, json.loads(file.read_text("utf-8")))
        except KeyError as error:
            raise EngineError(f"{file}: has no {error}, a limit of the engine; build it again") from error
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            raise EngineError(f"{file}: not as it was written with the engine; build it again") from error
    raise EngineError(f"{folder}: found neither config.json nor engine.json, expected an engine")


def _tensorrt(folder: Path, config: Mapping[str, Any]) -> EngineConfig:
    model, limits = config["pretrained_config"], config["build_config"]
    mapping = model.get("mapping", {})
    plugins = limits.get("plugin_config", {})
    mode = limits.get("speculative_decoding_mode")
    return EngineConfig(
        path=folder,
        max_seq_len=int(limits["max_seq_len"]),
        max_batch_size=int(limits["max_batch_size"]),
        max_draft_len=int(limits.get("max_draft_len", 0)),
        vocab_size=int(model["vocab_size"]),
        logits_dtype=str(model.get("logits_dtype", "float32")),
        ranks=math.prod(int(mapping.get(f"{axis}_size", 1)) for axis in ("tp", "pp", "cp")),
        version=str(config.get("version", "")),
        takes_drafts=None if mode is None else mode in (DRAFT_TOKENS_EXTERNAL, "draft_tokens_external"),
        paged_context_fmha=plugins.get("use_paged_context_fmha"),
        kv_cache_type=None if limits.get("kv_cache_type") is None else str(limits["kv_cache_type"]).lower(),
        kv_cache_quantization=model.get("quantization", {}).get("kv_cache_quant_algo"),
        gathers_generation_logits=limits.get("gather_generation_logits"),
    )


def _cpu(folder: Path, settings: Mapping[str, Any]) -> EngineConfig:
    return EngineConfig(
        path=folder,
        max_seq_len=int(settings["max_seq_len"]),
        max_batch_size=int(settings["max_batch_size"]),
        max_draft_len=int(settings["max_draft_len"]),
        vocab_size=int(settings["vocab_size"]),
    )
