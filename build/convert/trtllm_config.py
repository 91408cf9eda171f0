"""config.json of a TensorRT-LLM 1.2.1 checkpoint: the keys every model has, and the family's own."""

from __future__ import annotations

from typing import Any

from trtspec.build.checkpoint import Checkpoint
from trtspec.build.convert.fp8 import Fp8Scales
from trtspec.build.convert.settings import Settings, flag, integer, number
from trtspec.build.convert.tables import Dimensions, Family
from trtspec.errors import CheckpointError

# Of transformers: the layers of Qwen before this one attend to everything, whatever the window …
QWEN = ("qwen2", "qwen3")
QWEN_FULL_LAYERS = 28
# … and every p-th layer of Gemma does.
PATTERNS = {"gemma2": 2, "gemma3_text": 6}


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


def window_note(settings: Settings, d: Dimensions) -> tuple[str, ...]:
    """Return a note where layers attend to a window, which a server of TensorRT-LLM must be told."""
    if settings.get("sliding_window") is None:
        return ()
    # Only Qwen has the switch, and there it is off by default.
    if not flag(settings, "use_sliding_window", settings.get("model_type") not in QWEN):
        return ()
    window = integer(settings, "sliding_window")
    windows = [window if slides else d.positions for slides in _sliding_layers(settings, d.layers)]
    if window >= d.positions or window not in windows:
        return ()
    listed = ",".join(map(str, _cycle(windows)))
    if d.positions not in windows:
        return (
            f"attention reaches {window} tokens back in Hugging Face, which a TensorRT-LLM checkpoint cannot "
            f"say: keep sequences below that, or serve with max_attention_window_size {listed}",
        )
    return (
        f"attention of {windows.count(window)} of {d.layers} layers reaches {window} tokens back in Hugging "
        f"Face: keep sequences below that, or serve with max_attention_window_size {listed} (by layer, "
        "repeated)",
    )


def _sliding_layers(settings: Settings, layers: int) -> list[bool]:
    """Return which layers attend to a window only, with transformers' defaults."""
    kinds, model_type = settings.get("layer_types"), settings.get("model_type")
    if kinds is not None:
        if not isinstance(kinds, list) or len(kinds) != layers:
            raise CheckpointError(f"config.json: layer_types is {kinds!r}, expected a list of {layers} kinds")
        return [kind == "sliding_attention" for kind in kinds]
    if model_type in QWEN:
        # Zero is allowed here, so that every layer slides.
        full = number(settings, "max_window_layers", QWEN_FULL_LAYERS)
        return [layer >= full for layer in range(layers)]
    if model_type in PATTERNS:
        pattern = integer(
            settings,
            "_sliding_window_pattern",
            integer(settings, "sliding_window_pattern", PATTERNS[model_type]),
        )
        return [(layer + 1) % pattern != 0 for layer in range(layers)]
    return [True] * layers


def _cycle(windows: list[int]) -> list[int]:
    """Return the shortest beginning whose repetition gives the whole list."""
    for length in range(1, len(windows)):
        if all(window == windows[i % length] for i, window in enumerate(windows)):
            return windows[:length]
    return windows
