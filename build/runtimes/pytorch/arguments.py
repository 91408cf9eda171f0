"""The arguments of TensorRT-LLM's LLM API for a pair, and the file `llm_args.yaml` that holds them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from trtspec.build.options import BuildOptions
from trtspec.build.runtimes.pytorch.drafter import Drafter
from trtspec.engines.llm_api import ARGUMENTS, dialect_of, mode_of
from trtspec.engines.memory.result import MemoryPlan

# Where the draft lies, seen from the pair. With the dot no name on the hub is like it.
DRAFT_FOLDER = "./draft"
# TensorRT-LLM's own default.
DEFAULT_CACHE_SHARE = 0.9


def llm_arguments(
    options: BuildOptions,
    drafter: Drafter,
    *,
    max_seq_len: int,
    draft: bool,
    memory: MemoryPlan | None = None,
) -> dict[str, Any]:
    """Return what the LLM API is given beside the model, spelt for the version that was asked.

    Args:
        max_seq_len: tokens of prompt and answer.
        draft: whether the pair has a folder of a draft.
        memory: what the caches may take, where nothing else was asked.

    Raises:
        EngineError: the version is not known, or has no such way to draft.
    """
    asked = options.pytorch
    return {
        "tensor_parallel_size": options.tp,
        "pipeline_parallel_size": options.pp,
        "max_batch_size": options.max_batch_size,
        "max_seq_len": max_seq_len,
        "disable_overlap_scheduler": not asked.overlap_scheduler,
        "kv_cache_config": {
            "enable_block_reuse": asked.block_reuse,
            "free_gpu_memory_fraction": _cache_share(asked.free_gpu_memory, memory),
        },
        "speculative_config": _speculative_config(options, drafter, draft=draft),
    }


def _cache_share(asked: float | None, memory: MemoryPlan | None) -> float:
    """Return the share of free memory for the caches: as asked, else as planned, else 0.9."""
    if asked is not None:
        return asked
    planned = memory.shared_fraction if memory else None
    return DEFAULT_CACHE_SHARE if planned is None else planned


def write_arguments(arguments: Mapping[str, Any], version: str) -> str:
    """Return the text of `llm_args.yaml`, which `trtllm-serve --config` reads."""
    return (
        f"# For TensorRT-LLM {version}. Not yet run on a GPU.\n"
        "# Paths are seen from the folder of this file, so start the server there:\n"
        f"#   cd PAIR && trtllm-serve serve ./target --config {ARGUMENTS}\n"
    ) + str(yaml.safe_dump(dict(arguments), sort_keys=False))


def _speculative_config(options: BuildOptions, drafter: Drafter, *, draft: bool) -> dict[str, Any]:
    asked = options.pytorch
    dialect = dialect_of(asked.version)
    length_field = dialect.mtp_field if drafter.speculation == "mtp" else "max_draft_len"
    config: dict[str, Any] = {
        "decoding_type": mode_of(drafter.speculation, asked.version).decoding_type,
        length_field: drafter.max_draft_len,
    }
    if draft:
        config[dialect.draft_field] = DRAFT_FOLDER
    if dialect.one_engine:
        switches = {
            "allow_advanced_sampling": asked.sampling != "greedy",
            "use_rejection_sampling": asked.sampling == "rejection",
            "enable_penalty": asked.penalties,
        }
        # Off is their default, and what is not written needs no version that has it.
        config |= {name: True for name, on in switches.items() if on}
    return config | dict(drafter.fields)
