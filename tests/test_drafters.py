"""What a checkpoint is, on the shapes of published drafters, written down here at a small size."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from trtspec.build.check.drafters import KINDS, identify
from trtspec.build.checkpoint import Checkpoint
from trtspec.build.tensor_file import TensorInfo

H = 64  # hidden size of all of them


def in_memory(config: dict[str, Any], shapes: dict[str, list[int]]) -> Checkpoint:
    tensors = {
        name: TensorInfo(name, "BF16", tuple(shape), Path("model.safetensors"), 0, 2 * math.prod(shape))
        for name, shape in shapes.items()
    }
    return Checkpoint(Path("drafter"), config, {}, tensors, (Path("model.safetensors"),))


def layers(count: int, prefix: str = "model.layers.") -> dict[str, list[int]]:
    parts = {
        "input_layernorm": [H],
        "self_attn.q_proj": [H, H],
        "self_attn.o_proj": [H, H],
        "mlp.up_proj": [128, H],
    }
    return {f"{prefix}{n}.{part}.weight": shape for n in range(count) for part, shape in parts.items()}


EMBED = {"model.embed_tokens.weight": [96, H], "model.norm.weight": [H]}
HEAD = {"lm_head.weight": [96, H]}
WHOLE = EMBED | HEAD | layers(3)
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 3}

DRAFTERS: dict[str, tuple[str, dict[str, Any], dict[str, list[int]]]] = {
    "T5": (
        "encoder-decoder",
        {"architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "is_encoder_decoder": True},
        {"shared.weight": [96, H], "encoder.block.0.layer.0.SelfAttention.q.weight": [H, H]}
        | {"decoder.block.0.layer.0.SelfAttention.q.weight": [H, H]},
    ),
    "encoder and decoder by their tensors alone": (
        "encoder-decoder",
        {"model_type": "something"},
        {"model.encoder.layers.0.fc1.weight": [H, H], "model.decoder.layers.0.fc1.weight": [H, H]},
    ),
    "LoRA": (
        "adapter",
        LLAMA,
        {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": [8, H]},
    ),
    "DSpark of DeepSpec, Ling-3.0-flash-dspark": (
        "dspark",
        {"architectures": ["Qwen3DSparkModel"], "model_type": "qwen3", "num_hidden_layers": 5}
        | {"block_size": 7, "target_layer_ids": [1, 9], "mask_token_id": 95, "markov_rank": 8},
        layers(5, "layers.")
        | {"fc.weight": [H, 2 * H], "hidden_norm.weight": [H], "norm.weight": [H]}
        | {"markov_head.markov_w1.weight": [96, 8], "markov_head.markov_w2.weight": [96, 8]}
        | {"confidence_head.proj.weight": [1, H + 8]},
    ),
    "DSpark under DFlash's class name": (
        "dspark",
        {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "num_hidden_layers": 5}
        | {"dflash_config": {"target_layer_ids": [5, 19], "projector_type": "dspark"}},
        layers(5, "layers.") | {"fc.weight": [H, 2 * H], "hidden_norm.weight": [H]},
    ),
    "DSpark by its tensors alone": (
        "dspark",
        LLAMA,
        WHOLE | {"markov_head.markov_w1.weight": [96, 8], "markov_head.markov_w2.weight": [96, 8]},
    ),
    "DFlash of z-lab": (
        "dflash",
        {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "num_hidden_layers": 5}
        | {"block_size": 16, "dflash_config": {"target_layer_ids": [1, 16, 31], "mask_token_id": 95}},
        layers(5, "layers.") | {"fc.weight": [H, 3 * H], "hidden_norm.weight": [H], "norm.weight": [H]},
    ),
    "DFlash by its tensors alone": (
        "dflash",
        {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": 5},
        layers(5, "layers.") | {"fc.weight": [H, 3 * H], "hidden_norm.weight": [H], "norm.weight": [H]},
    ),
    "EAGLE-3 of SafeAILab": (
        "eagle3",
        {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 1}
        | {"draft_vocab_size": 32, "vocab_size": 96},
        {
            "fc.weight": [H, 3 * H],
            "midlayer.hidden_norm.weight": [H],
            "midlayer.self_attn.q_proj.weight": [H, 2 * H],
        }
        | {"norm.weight": [H], "lm_head.weight": [32, H], "d2t": [32], "t2d": [96]},
    ),
    "EAGLE-3 that calls itself Llama": (
        "eagle3",
        {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 1},
        {"model.fc.weight": [H, 3 * H], "embed_tokens.weight": [96, H], "lm_head.weight": [96, H]}
        | layers(1, "layers."),
    ),
    "EAGLE-3 in the speculators format": (
        "eagle3",
        {"architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3", "draft_vocab_size": 32}
        | {
            "speculators_config": {"algorithm": "eagle3"},
            "transformer_layer_config": {"model_type": "llama"},
        },
        {"fc.weight": [H, 3 * H], "layers.0.hidden_norm.weight": [H], "embed_tokens.weight": [96, H]},
    ),
    "EAGLE-1, which calls itself Llama": (
        "eagle",
        {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 1},
        {"fc.weight": [H, 2 * H], "fc.bias": [H], "embed_tokens.weight": [96, H]} | layers(1, "layers."),
    ),
    "EAGLE by its class": (
        "eagle",
        {"architectures": ["EagleLlamaForCausalLM"], "model_type": "eagle"},
        {"model.layers.0.self_attn.q_proj.weight": [H, H]},
    ),
    "Medusa of FasterDecoding": (
        "medusa",
        {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "lmsys/vicuna-7b-v1.3"},
        {f"{n}.0.linear.weight": [H, H] for n in range(2)} | {f"{n}.1.weight": [96, H] for n in range(2)},
    ),
    "Medusa of vLLM": (
        "medusa",
        {"architectures": ["MedusaModel"], "model_type": "medusa", "num_heads": 2},
        {"blocks.0.layers.0.weight": [H, H], "lm_heads.0.weight": [96, H]},
    ),
    "ReDrafter": (
        "redrafter",
        {"architectures": ["ReDrafterForLLaMALM"], "model_type": "redrafter"},
        {"lm_head.weight": [96, H]},
    ),
    "MLP speculator": (
        "mlp-speculator",
        {"architectures": ["MLPSpeculatorPreTrainedModel"], "model_type": "mlp_speculator"},
        {"speculator.emb.0.weight": [96, H], "speculator.head.0.weight": [96, H]},
    ),
    "MTP of DeepSeek, cut out": (
        "mtp",
        {"architectures": ["DeepseekV3ForCausalLMNextN"], "model_type": "deepseek_v3"},
        {"model.layers.0.eh_proj.weight": [H, 2 * H], "model.layers.0.enorm.weight": [H]},
    ),
    "MTP by its tensors alone": (
        "mtp",
        {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
        {"mtp.fc.weight": [H, 2 * H], "mtp.layers.0.self_attn.q_proj.weight": [H, H]},
    ),
    "MTP of one layer with its embedding": (
        "mtp",
        {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": 1},
        EMBED | layers(1) | {"mtp.fc.weight": [H, 2 * H]},
    ),
    "Medusa by its keys beside one layer": (
        "medusa",
        {"medusa_num_heads": 2, "num_hidden_layers": 1},
        EMBED | layers(1),
    ),
    "Gemma-4's assistant": (
        "mtp",
        {"architectures": ["Gemma4AssistantForCausalLM"], "model_type": "gemma4_assistant"},
        {"pre_projection.weight": [H, 2 * H], "model.layers.0.self_attn.q_proj.weight": [H, H]},
    ),
    "a speculators head of another kind": (
        "speculator",
        {"architectures": ["HashGramDraftModel"], "speculators_model_type": "hashgram"},
        {"bigram.weight": [96, H]},
    ),
    "a vision-language model": (
        "multimodal",
        {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": {}, "vision_config": {}},
        {"vision_tower.patch.weight": [H, H]}
        | {f"language_model.{name}": shape for name, shape in WHOLE.items()},
    ),
    "a classifier": (
        "no-lm",
        {"architectures": ["LlamaForSequenceClassification"], "num_hidden_layers": 3},
        EMBED | layers(3) | {"score.weight": [2, H]},
    ),
    "a model without its head": (
        "incomplete",
        LLAMA | {"tie_word_embeddings": False},
        EMBED | layers(3),
    ),
    "a model without its last layers": ("incomplete", LLAMA, EMBED | HEAD | layers(2)),
    "layers without an embedding": ("incomplete", LLAMA, HEAD | layers(3)),
}


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_drafter_that_needs_another_model_is_named_with_its_signs_and_a_reason(name):
    kind, config, shapes = DRAFTERS[name]
    identity = identify(in_memory(config, shapes))
    assert identity.kind == kind
    assert not identity.stand_alone
    assert all((identity.evidence, identity.reason, identity.runtime))


def test_every_kind_has_an_example_here():
    assert {kind.name for kind in KINDS} <= {kind for kind, _, _ in DRAFTERS.values()}


WHOLE_MODELS = {
    "Llama": (LLAMA, WHOLE),
    "one layer, tied": (LLAMA | {"num_hidden_layers": 1}, EMBED | layers(1)),
    "tied": (LLAMA | {"tie_word_embeddings": True}, EMBED | layers(3)),
    "GPT-2": (
        {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_layer": 2},
        {"wte.weight": [96, H], "wpe.weight": [32, H]}
        | {f"h.{n}.attn.c_attn.weight": [H, 3 * H] for n in (0, 1)},
    ),
    "a key of a drafter in a whole model's config": (
        LLAMA | {"markov_rank": 256, "medusa_num_heads": 3},
        WHOLE,
    ),
}


@pytest.mark.parametrize("name", WHOLE_MODELS)
def test_a_whole_language_model_stands_alone(name):
    identity = identify(in_memory(*WHOLE_MODELS[name]))
    assert identity.stand_alone
    assert identity.kind == "causal-lm"
    assert identity.carries == ""


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        (
            "an MTP module",
            {"model.layers.3.eh_proj.weight": [H, 2 * H], "model.layers.3.mlp.up_proj.weight": [H, H]},
        ),
        ("an MTP module", {"mtp.0.markov_head.markov_w1.weight": [96, 8], "mtp.fc.weight": [H, 2 * H]}),
        ("Medusa heads", {"medusa_head.0.0.linear.weight": [H, H]}),
    ],
)
def test_a_whole_model_that_carries_a_drafting_module_still_stands_alone(module, extra):
    identity = identify(in_memory(LLAMA | {"num_nextn_predict_layers": 1}, WHOLE | extra))
    assert identity.stand_alone
    assert identity.carries == module


def test_a_model_tuned_for_parallel_drafting_stands_alone_and_is_named():
    identity = identify(in_memory(LLAMA | {"pard_token": 95}, WHOLE))
    assert identity.stand_alone
    assert identity.kind == "parallel-lm"
    assert "PARDDecodingConfig" in identity.runtime


@pytest.mark.parametrize(
    ("name", "runtime"),
    [
        ("DSpark of DeepSpec, Ling-3.0-flash-dspark", "DSparkDecodingConfig, from 1.3.0rc27"),
        ("DFlash of z-lab", "DFlashDecodingConfig"),
        ("EAGLE-3 of SafeAILab", "Eagle3DecodingConfig"),
        ("EAGLE-1, which calls itself Llama", "--speculative_decoding_mode eagle"),
        ("Medusa of FasterDecoding", "--speculative_decoding_mode medusa"),
        ("ReDrafter", "--speculative_decoding_mode explicit_draft_tokens"),
        ("MTP of DeepSeek, cut out", "MTPDecodingConfig"),
        ("T5", "none of trtspec's runtimes"),
        ("EAGLE-3 in the speculators format", "vLLM reads this packaging"),
    ],
)
def test_the_runtime_that_can_use_a_drafter_is_named(name, runtime):
    _, config, shapes = DRAFTERS[name]
    assert runtime in identify(in_memory(config, shapes)).runtime


def test_a_runtime_outside_ours_is_named_once():
    config = {"speculators_model_type": "mlp_speculator"}
    identity = identify(in_memory(config, {"speculator.emb.0.weight": [96, H]}))
    assert identity.runtime == "none of trtspec's runtimes; vLLM reads it"


def test_a_vision_model_of_the_name_eagle_is_no_eagle_head():
    config = {"architectures": ["Eagle2_5_VLForConditionalGeneration"], "vision_config": {"layers": 2}}
    assert identify(in_memory(config, WHOLE)).kind == "multimodal"
