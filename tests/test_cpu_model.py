"""The engine's own forward pass against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from cpu_checkpoints import SIZES, copy_checkpoint, reference, reference_logits, write_random
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from trtspec.engines.cpu.architecture import read_architecture
from trtspec.engines.cpu.errors import EngineLoadError
from trtspec.engines.cpu.model import Model, Segment
from trtspec.engines.cpu.weights import Weights

# Positions beyond the original context of 32, so that a scaled RoPE differs from the plain one there.
LENGTH = 100
TOLERANCE = 1e-4

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR = {"rope_type": "linear", "rope_theta": 1000.0, "factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 32}
YARN_TUNED = YARN | {
    "beta_fast": 16.0,
    "beta_slow": 2.0,
    "mscale": 0.7,
    "mscale_all_dim": 1.3,
    "truncate": False,
}

CONFIGS: dict[str, Any] = {
    "llama": LlamaConfig(**SIZES),
    "llama, biases, tied head": LlamaConfig(
        **SIZES, attention_bias=True, mlp_bias=True, tie_word_embeddings=True
    ),
    "llama, odd head size": LlamaConfig(**SIZES, head_dim=20),
    "llama, one head a group": LlamaConfig(**(SIZES | {"num_key_value_heads": 4})),
    "llama, linear rope": LlamaConfig(**SIZES, rope_parameters=LINEAR),
    "llama, llama3 rope": LlamaConfig(**SIZES, rope_parameters=LLAMA3),
    "llama, yarn rope": LlamaConfig(**SIZES, rope_parameters=YARN),
    "llama, tuned yarn rope": LlamaConfig(**SIZES, rope_parameters=YARN_TUNED),
    "llama, yarn with its own factor": LlamaConfig(**SIZES, rope_parameters=YARN | {"attention_factor": 1.4}),
    "mistral": MistralConfig(**SIZES, sliding_window=None, head_dim=16),
    "mistral, window as long as the engine": MistralConfig(**SIZES, sliding_window=128),
    "qwen2": Qwen2Config(**SIZES),
    "qwen2, tied, yarn": Qwen2Config(**SIZES, tie_word_embeddings=True, rope_parameters=YARN),
    "qwen3": Qwen3Config(**SIZES, head_dim=24),
    "qwen3, biases": Qwen3Config(**SIZES, head_dim=12, attention_bias=True),
}


def load(folder: Path, dtype: torch.dtype = torch.float32, slots: int = 2) -> Model:
    config = json.loads((folder / "config.json").read_text())
    architecture = read_architecture(config, max_seq_len=128)
    assert architecture is not None
    return Model(architecture, Weights(folder, dtype), slots=slots, max_seq_len=128)


def token_ids(count: int, vocab: int = 61) -> list[int]:
    ids: list[int] = torch.randint(0, vocab, (count,), generator=torch.Generator().manual_seed(4)).tolist()
    return ids


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random(tmp_path_factory.mktemp("llama"), CONFIGS["llama"])


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_equal_transformers(name: str, tmp_path: Path) -> None:
    folder = write_random(tmp_path, CONFIGS[name])
    ids = token_ids(LENGTH)
    logits = load(folder).forward([Segment(0, 0, ids, LENGTH)])
    assert torch.allclose(logits, reference_logits(reference(folder), ids), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("part", ["target", "draft"])
def test_logits_of_the_demo_pair_equal_transformers(part: str, demo_pair: Path) -> None:
    ids = token_ids(LENGTH, 4096)
    expected = reference_logits(reference(demo_pair / part), ids)
    logits = load(demo_pair / part).forward([Segment(0, 0, ids, 20)])
    assert torch.allclose(logits, expected[-20:], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("rope", [LINEAR, LLAMA3, YARN])
def test_the_older_spelling_of_rope_settings_is_the_same_model(rope: dict[str, Any], tmp_path: Path) -> None:
    folder = write_random(tmp_path, LlamaConfig(**SIZES, rope_parameters=rope))
    segment = Segment(0, 0, token_ids(LENGTH), 5)
    new_spelling = load(folder).forward([segment])
    config = json.loads((folder / "config.json").read_text())
    scaling = config.pop("rope_parameters")
    config["rope_theta"] = scaling.pop("rope_theta")
    config["rope_scaling"] = {"type": scaling.pop("rope_type")} | scaling
    (folder / "config.json").write_text(json.dumps(config))
    assert torch.equal(load(folder).forward([segment]), new_spelling)


@pytest.mark.parametrize(
    "settings",
    [
        {"rope_scaling": LINEAR | {"rope_theta": 2000.0}, "rope_parameters": LLAMA3},
        {"rope_scaling": {"type": "linear", "factor": 4.0}, "rope_parameters": {"rope_theta": 500.0}},
        {"rope_parameters": LLAMA3, "original_max_position_embeddings": 16},
    ],
)
def test_rope_settings_that_contradict_each_other_count_as_in_transformers(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    folder = write_random(tmp_path, LlamaConfig(**SIZES))
    config = json.loads((folder / "config.json").read_text())
    del config["rope_parameters"]
    (folder / "config.json").write_text(json.dumps(config | settings))
    ids = token_ids(LENGTH)
    logits = load(folder).forward([Segment(0, 0, ids, LENGTH)])
    assert torch.allclose(logits, reference_logits(reference(folder), ids), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_bits_alone_among_draft_rows_and_in_a_batch(
    dtype: torch.dtype, llama: Path
) -> None:
    model, ids = load(llama, dtype, slots=3), token_ids(80)
    model.forward([Segment(0, 0, ids[:60], 1)])
    alone = torch.cat([model.forward([Segment(0, t, ids[t : t + 1], 1)]) for t in range(60, 80)])
    model.forward([Segment(1, 0, ids[:60], 1)])
    together = model.forward([Segment(1, 60, ids[60:], 20)])
    model.forward([Segment(2, 0, ids[:60], 1)])
    batched = model.forward([Segment(0, 0, ids[7:50], 3), Segment(2, 60, ids[60:], 20)])[3:]
    assert torch.equal(alone, together)
    assert torch.equal(alone, batched)


def test_a_prompt_in_parts_is_the_prompt(llama: Path) -> None:
    model, ids = load(llama), token_ids(LENGTH)
    whole = model.forward([Segment(0, 0, ids, 4)])
    model.forward([Segment(1, 0, ids[:37], 0)])
    model.forward([Segment(1, 37, ids[37:70], 0)])
    assert torch.allclose(model.forward([Segment(1, 70, ids[70:], 4)]), whole, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    ("segment", "message"),
    [
        (Segment(0, 0, [5, -1], 1), "ids -1 to 5, expected 0 to 60"),
        (Segment(0, 0, [61], 1), "ids 61 to 61"),
        (Segment(2, 0, [5], 1), "slot 2"),
        (Segment(0, -1, [5], 1), "start -1"),
        (Segment(0, 126, [5, 6, 7], 1), "positions up to 128, the cache has 128"),
    ],
)
def test_compiled_code_never_sees_what_lies_outside(segment: Segment, message: str, llama: Path) -> None:
    with pytest.raises(IndexError, match=message):
        load(llama).forward([segment])


def test_a_copied_prefix_continues_like_the_original(llama: Path) -> None:
    model, ids = load(llama), token_ids(50)
    model.forward([Segment(0, 0, ids[:40], 1)])
    model.copy_prefix(0, 1, 40)
    rest = [Segment(slot, 40, ids[40:], 10) for slot in (0, 1)]
    assert torch.equal(model.forward(rest[:1]), model.forward(rest[1:]))


@pytest.mark.parametrize(
    "change",
    [
        {"architectures": ["GemmaForCausalLM"]},
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
        {"hidden_act": "gelu"},
        {"partial_rotary_factor": 0.5},
        {"architectures": ["MistralForCausalLM"], "sliding_window": 64},
        {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 64, "use_sliding_window": True},
        {"quantization_config": {"quant_method": "fp8"}},
    ],
)
def test_what_this_pass_does_not_compute_is_left_to_transformers(change: dict[str, Any]) -> None:
    config = {"architectures": ["LlamaForCausalLM"], **SIZES}
    assert read_architecture(config, max_seq_len=128) is not None
    assert read_architecture(config | change, max_seq_len=128) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head_dim": 7}, "a head of 7 has no pairs to rotate"),
        ({"num_attention_heads": 3}, "3 heads cannot share 2 key-value heads"),
        ({"vocab_size": 0, "num_hidden_layers": -1}, "vocab_size 0, layers -1; expected numbers above 0"),
        ({"hidden_size": "48", "head_dim": 12}, "hidden_size '48'"),
        ({"num_attention_heads": 0}, "no head size"),
        ({"rms_norm_eps": None}, "rms_norm_eps None"),
    ],
)
def test_sizes_that_compiled_code_would_leave_its_memory_with_are_refused(
    change: dict[str, Any], message: str
) -> None:
    config = {"architectures": ["LlamaForCausalLM"], **SIZES} | change
    with pytest.raises(EngineLoadError, match=message):
        read_architecture(config, max_seq_len=128)


def test_a_shard_that_is_missing_is_named_by_its_tensor(demo_pair: Path, tmp_path: Path) -> None:
    folder = copy_checkpoint(demo_pair / "draft", tmp_path / "draft")
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.0.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(EngineLoadError, match=r"no tensor 'model\.layers\.0\.mlp\.up_proj\.weight'"):
        load(folder)


def test_tensors_without_a_place_are_counted_and_the_first_is_named(demo_pair: Path, tmp_path: Path) -> None:
    folder = copy_checkpoint(demo_pair / "draft", tmp_path / "draft")
    save_file({"b.extra": torch.zeros(1), "a.extra": torch.zeros(1)}, folder / "more.safetensors")
    with pytest.raises(EngineLoadError, match=r"2 tensors .* first 'a\.extra'"):
        load(folder)


def test_a_tensor_of_another_shape_is_refused_with_both_shapes(demo_pair: Path, tmp_path: Path) -> None:
    folder = copy_checkpoint(demo_pair / "draft", tmp_path / "draft")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = torch.ones(64)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(EngineLoadError, match=r"'model\.norm\.weight' is \[64\], .* implies \[128\]"):
        load(folder)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ({"num_hidden_layers": 10**12}, r"no tensor 'model\.layers\.999999999999\.input_layernorm"),
        (
            {"intermediate_size": 10**12},
            r"gate_proj\.weight' is \[384, 128\], .* implies \[1000000000000, 128\]",
        ),
        ({"hidden_size": 10**12}, r"\[128\], config\.json implies \[1000000000000\]"),
    ],
)
def test_a_size_that_the_weights_have_not_is_refused_before_room_is_made_for_it(
    size: dict[str, int], message: str, demo_pair: Path, tmp_path: Path
) -> None:
    folder = copy_checkpoint(demo_pair / "draft", tmp_path / "draft")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | size))
    with pytest.raises(EngineLoadError, match=message):
        load(folder)


def test_a_tensor_that_two_shards_hold_is_refused(demo_pair: Path, tmp_path: Path) -> None:
    folder = copy_checkpoint(demo_pair / "draft", tmp_path / "draft")
    save_file({"model.norm.weight": torch.ones(128)}, folder / "twin.safetensors")
    with pytest.raises(EngineLoadError, match=r"'model\.norm\.weight' is also in model\.safetensors"):
        load(folder)


def test_a_folder_without_weights_says_so(tmp_path: Path) -> None:
    with pytest.raises(EngineLoadError, match=r"no \*\.safetensors file"):
        Weights(tmp_path, torch.float32)


def test_a_broken_shard_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"not a shard")
    with pytest.raises(EngineLoadError, match=r"model\.safetensors: not a readable safetensors file"):
        Weights(tmp_path, torch.float32)


def test_a_rope_setting_that_is_missing_is_named(tmp_path: Path, llama: Path) -> None:
    folder = copy_checkpoint(llama, tmp_path / "llama")
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "linear", "rope_theta": 1000.0}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(EngineLoadError, match=r"rope_type 'linear' needs 'factor'"):
        load(folder)


@pytest.mark.parametrize(
    "settings",
    [
        {"rope_type": "default", "rope_theta": "x"},
        {"rope_type": "default", "rope_theta": None},
        {"rope_type": "linear", "rope_theta": 1e4, "factor": "2"},
        {"rope_type": "yarn", "rope_theta": 1, "factor": 2.0},
    ],
)
def test_rope_settings_that_are_no_numbers_to_count_with_are_named(
    settings: dict[str, Any], tmp_path: Path, llama: Path
) -> None:
    folder = copy_checkpoint(llama, tmp_path / "llama")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rope_parameters": settings}))
    with pytest.raises(EngineLoadError, match=r"^config\.json: rope settings .* give no angles"):
        load(folder)
