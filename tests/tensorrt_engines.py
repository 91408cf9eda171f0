"""Doubles of compiled engines: what trtllm-build leaves, with nothing in the engine files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from trtspec import __version__
from trtspec.digest import sha256
from trtspec.engines.manifest import EngineManifest, EngineSettings, HostNeeds, Manifest
from trtspec.engines.pair import EnginePair, open_pair, write_manifest

MAX_SEQ_LEN = 2048
MAX_DRAFT_LEN = 8
MAX_BATCH_SIZE = 4
VOCAB_SIZE = 4096


def engine_config(*, target: bool, tp: int = 1, **changes: Any) -> dict[str, Any]:
    """The config.json of an engine, with the keys that TensorRT-LLM's runtime reads.

    `changes` go to whichever section has the key.
    """
    config: dict[str, Any] = {
        "version": "1.2.1",
        "pretrained_config": {
            "architecture": "LlamaForCausalLM",
            "dtype": "bfloat16",
            "vocab_size": VOCAB_SIZE,
            "logits_dtype": "float32",
            "mapping": {"world_size": tp, "tp_size": tp, "pp_size": 1, "cp_size": 1, "gpus_per_node": 8},
            "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
        },
        "build_config": {
            "max_input_len": 1024,
            # trtllm-build adds the drafted tokens.
            "max_seq_len": MAX_SEQ_LEN + (MAX_DRAFT_LEN if target else 0),
            "max_batch_size": MAX_BATCH_SIZE,
            "max_beam_width": 1,
            "max_num_tokens": 8192,
            "kv_cache_type": "PAGED",
            "gather_context_logits": False,
            "gather_generation_logits": True,
            "max_draft_len": MAX_DRAFT_LEN if target else 0,
            "speculative_decoding_mode": 2 if target else 1,
            "plugin_config": {"use_paged_context_fmha": True, "tokens_per_block": 32},
        },
    }
    model, build = config["pretrained_config"], config["build_config"]
    for key, value in changes.items():
        sections = (config, model, model["quantization"], build, build["plugin_config"])
        (section,) = [section for section in sections if key in section]
        section[key] = value
    return config


def write_engine(folder: Path, *, target: bool, tp: int = 1, **changes: Any) -> Path:
    """Write an engine folder."""
    folder.mkdir(parents=True, exist_ok=True)
    config = engine_config(target=target, tp=tp, **changes)
    (folder / "config.json").write_text(json.dumps(config, indent=2), "utf-8")
    for rank in range(tp):
        (folder / f"rank{rank}.engine").write_bytes(b"no engine: a double")
    return folder


def write_pair(
    folder: Path, tokenizer: Path, *, target_tp: int = 1, draft_tp: int = 1, **changes: Any
) -> EnginePair:
    """Write a compiled pair for --runtime tensorrt; `changes` are of both engines."""
    engines = {
        role: write_engine(folder / role, target=role == "target", tp=tp, **changes)
        for role, tp in (("target", target_tp), ("draft", draft_tp))
    }
    shutil.copytree(tokenizer, folder / "tokenizer")
    manifest = Manifest(
        trtspec_version=__version__,
        runtime="tensorrt",
        compiled=True,
        target=_described(engines["target"], target_tp),
        draft=_described(engines["draft"], draft_tp),
        eos_token_ids=(2,),
        repairs=(),
        files={"tokenizer/tokenizer.json": sha256(folder / "tokenizer" / "tokenizer.json")},
        host_needs=HostNeeds(gpus=max(target_tp, draft_tp), tensorrt_llm="1.2.1"),
    )
    write_manifest(manifest, folder)
    return open_pair(folder)


def _described(engine: Path, tp: int) -> EngineManifest:
    return EngineManifest(
        architecture="LlamaForCausalLM",
        source_dtype="BF16",
        parameters=1,
        settings=EngineSettings(
            dtype="bfloat16",
            max_seq_len=MAX_SEQ_LEN,
            max_batch_size=MAX_BATCH_SIZE,
            max_draft_len=MAX_DRAFT_LEN,
            vocab_size=VOCAB_SIZE,
            tp=tp,
        ),
        files={file.name: sha256(file) for file in sorted(engine.iterdir())},
    )
