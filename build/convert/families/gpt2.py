"""GPT-2: weights stored [in, out], learned positions, LayerNorm and a bias everywhere."""

from __future__ import annotations

from typing import Any

from trtspec.build.convert.settings import Settings, activation, flag, integer, number
from trtspec.build.convert.tables import (
    Dimensions,
    Family,
    Part,
    Split,
    Table,
    Weight,
    by_fused_heads,
    by_rows,
    whole,
)
from trtspec.errors import BuildError

ACTIVATIONS = ("gelu_new", "gelu", "relu")


def _dimensions(settings: Settings, vocabulary: int) -> Dimensions:
    hidden, heads = integer(settings, "n_embd"), integer(settings, "n_head")
    return Dimensions(
        hidden=hidden,
        intermediate=integer(settings, "n_inner", 4 * hidden),
        layers=integer(settings, "n_layer"),
        heads=heads,
        kv_heads=heads,
        head_size=hidden // heads,
        vocabulary=vocabulary,
        positions=integer(settings, "n_positions"),
    )


def _conv1d(source: str, rows: int, columns: int, split: Split) -> Weight:
    return Weight((Part(source, (rows, columns), split, transposed=True),))


def _layer(d: Dimensions, settings: Settings) -> Table:
    return {
        "input_layernorm.weight": whole("ln_1.weight", d.hidden),
        "input_layernorm.bias": whole("ln_1.bias", d.hidden),
        "post_layernorm.weight": whole("ln_2.weight", d.hidden),
        "post_layernorm.bias": whole("ln_2.bias", d.hidden),
        "attention.qkv.weight": by_fused_heads(d, "attn.c_attn.weight", d.hidden, transposed=True),
        "attention.qkv.bias": by_fused_heads(d, "attn.c_attn.bias"),
        "attention.dense.weight": _conv1d("attn.c_proj.weight", d.hidden, d.query, Split.COLUMNS),
        "attention.dense.bias": whole("attn.c_proj.bias", d.hidden),
        "mlp.fc.weight": _conv1d("mlp.c_fc.weight", d.intermediate, d.hidden, Split.ROWS),
        "mlp.fc.bias": by_rows("mlp.c_fc.bias", d.intermediate),
        "mlp.proj.weight": _conv1d("mlp.c_proj.weight", d.hidden, d.intermediate, Split.COLUMNS),
        "mlp.proj.bias": whole("mlp.c_proj.bias", d.hidden),
    }


def _embeddings(d: Dimensions) -> Table:
    return {
        "vocab_embedding.weight": whole("wte.weight", d.vocabulary, d.hidden),
        "position_embedding.weight": whole("wpe.weight", d.positions, d.hidden),
    }


def _outer(d: Dimensions) -> Table:
    return {"ln_f.weight": whole("ln_f.weight", d.hidden), "ln_f.bias": whole("ln_f.bias", d.hidden)}


def _settings(settings: Settings, d: Dimensions) -> dict[str, Any]:
    for key, usual in (
        ("add_cross_attention", False),
        ("scale_attn_by_inverse_layer_idx", False),
        ("scale_attn_weights", True),
    ):
        if flag(settings, key, usual) is not usual:
            raise BuildError(
                f"config.json: {key} is {not usual}, TensorRT-LLM's GPT-2 has no such layer; "
                "use the pytorch runtime"
            )
    return {
        "hidden_act": activation(settings, "activation_function", ACTIVATIONS),
        "norm_epsilon": number(settings, "layer_norm_epsilon"),
        "position_embedding_type": "learned_absolute",
        "gpt_variant": "gpt2",
        "bias": True,
        "apply_query_key_layer_scaling": False,
        "q_scaling": 1.0,
    }


FAMILY = Family(
    architectures=("GPT2LMHeadModel",),
    layer=_layer,
    outer=_outer,
    embeddings=_embeddings,
    dimensions=_dimensions,
    settings=_settings,
    tied_by_default=True,
    # The original files have no prefix; save_pretrained writes one.
    prefixes=("transformer.", ""),
    layers="h.{}.",
    # The causal mask, which older versions stored.
    ignored=(r"(^|\.)h\.\d+\.attn\.(masked_)?bias$",),
)
