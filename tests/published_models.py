"""Sizes of published models, as data: what their config.json says, and what their pages say of them."""

from __future__ import annotations

from typing import Any

KEYS = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")


def config(architecture: str, sizes: tuple[int, ...], vocabulary: int, **more: Any) -> dict[str, Any]:
    """The keys of a published config.json that matter here."""
    names = {"architectures": [architecture], "vocab_size": vocabulary, "tie_word_embeddings": False}
    return {**names, **dict(zip(KEYS, sizes, strict=True)), **more}


LLAMA, QWEN, QWEN3 = "LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"
TIED = {"tie_word_embeddings": True}
# Sizes of config.json, parameters and bytes of KV cache a token (bfloat16), as the models' pages say.
PUBLISHED: dict[str, tuple[dict[str, Any], int, int]] = {
    "Llama-3.1-8B": (config(LLAMA, (4096, 14336, 32, 32, 8), 128256), 8_030_261_248, 131_072),
    "Llama-3.1-70B": (config(LLAMA, (8192, 28672, 80, 64, 8), 128256), 70_553_706_496, 327_680),
    "Llama-3.2-1B": (
        config(LLAMA, (2048, 8192, 16, 32, 8), 128256, head_dim=64, **TIED),
        1_235_814_400,
        32_768,
    ),
    "Qwen2.5-7B": (config(QWEN, (3584, 18944, 28, 28, 4), 152064), 7_615_616_512, 57_344),
    "Qwen2.5-72B": (config(QWEN, (8192, 29568, 80, 64, 8), 152064), 72_706_203_648, 327_680),
    "Qwen2.5-1.5B": (config(QWEN, (1536, 8960, 28, 12, 2), 151936, **TIED), 1_543_714_304, 28_672),
    "Qwen2.5-14B": (config(QWEN, (5120, 13824, 48, 40, 8), 152064), 14_770_033_664, 196_608),
    "Qwen3-32B": (config(QWEN3, (5120, 25600, 64, 64, 8), 151936, head_dim=128), 32_762_123_264, 262_144),
    "Qwen3-0.6B": (
        config(QWEN3, (1024, 3072, 28, 16, 8), 151936, head_dim=128, **TIED),
        596_049_920,
        114_688,
    ),
    "Mixtral-8x7B": (
        config(
            "MixtralForCausalLM",
            (4096, 14336, 32, 32, 8),
            32000,
            num_local_experts=8,
            num_experts_per_tok=2,
        ),
        46_702_792_704,
        131_072,
    ),
    "gemma-2-2b": (
        config("Gemma2ForCausalLM", (2304, 9216, 26, 8, 4), 256000, head_dim=256, **TIED),
        2_614_341_888,
        106_496,
    ),
    "Phi-3-mini": (config("Phi3ForCausalLM", (3072, 8192, 32, 32, 32), 32064), 3_821_079_552, 393_216),
    "gpt2": (
        {
            "architectures": ["GPT2LMHeadModel"],
            "n_embd": 768,
            "n_layer": 12,
            "n_head": 12,
            "n_positions": 1024,
            "vocab_size": 50257,
        },
        124_439_808,
        36_864,
    ),
}
