"""config.json of a TensorRT-LLM 1.2.1 checkpoint: the keys every model has, and the family's own."""

from __future__ import annotations

from typing import Any

from trtspec.build.checkpoint import Checkpoint
from trtspec.build.convert.fp8 import Fp8Scales
from trtspec.build.convert.settings import Settings, flag, integer
from trtspec.build.convert.tables import Dimensions, Family


def trtllm_config(
    checkpoint: Checkpoint,
    family: Family,
    d: Dimensions,
    *,
    dtype: str,
    tied: bool,
    tp: int,
    pp: int,
    fp8: Fp8Scales | None = None,
) -> dict[str, Any]:
    """Return the whole of config.json.

    `vocab_size` stays the unpadded one; `logits_dtype` is what the C++ runtime and Triton's
    configuration expect.
    """
    return {
        "architecture": checkpoint.architecture,
        "dtype": dtype,
        "logits_dtype": "float32",
        "vocab_size": d.vocabulary,
        "hidden_size": d.hidden,
        "intermediate_size": d.intermediate,
        "num_hidden_layers": d.layers,
        "num_attention_heads": d.heads,
        "num_key_value_heads": d.kv_heads,
        "head_size": d.head_size,
        "max_position_embeddings": d.positions,
        "qk_layernorm": False,
        "tie_word_embeddings": tied,
        "use_parallel_embedding": family.parallel_embedding and tp > 1,
        "embedding_sharding_dim": 0,
        "mapping": {
            "world_size": tp * pp,
            "tp_size": tp,
            "pp_size": pp,
            "cp_size": 1,
            "gpus_per_node": 8,
        },
        "quantization": _quantization(fp8),
        **family.settings(checkpoint.config, d),
    }


def _quantization(fp8: Fp8Scales | None) -> dict[str, Any]:
    if fp8 is None:
        return {"quant_algo": None, "kv_cache_quant_algo": None}
    return {
        "quant_algo": fp8.algorithm,
        "kv_cache_quant_algo": "FP8" if fp8.cache else None,
        "exclude_modules": ["lm_head"],
    }


def window_note(settings: Settings, written: Settings) -> tuple[str, ...]:
    """Return a note where attention is limited to a window that config.json of TensorRT-LLM cannot say."""
    if settings.get("sliding_window") is None or "sliding_window" in written:
        return ()
    if not flag(settings, "use_sliding_window", True):
        return ()
    window = integer(settings, "sliding_window")
    if window >= written["max_position_embeddings"]:
        return ()
    return (
        f"attention reaches {window} tokens back in Hugging Face, which a TensorRT-LLM checkpoint cannot "
        f"say: keep sequences below that, or serve with max_attention_window_size {window}",
    )
