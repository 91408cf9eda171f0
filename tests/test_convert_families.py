"""Every family, for every split: what was converted can be read back, bit for bit and in its logits."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from round_trip import read_back
from safetensors.torch import load_file, save_file
from tiny_checkpoints import FAMILIES, edit_config, logits, make_model, save
from transformers import AutoModelForCausalLM

from trtspec.build.convert.converter import convert
from trtspec.build.convert.families import families
from trtspec.errors import BuildError


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function from a family's name to its checkpoint folder and its logits."""

    @cache
    def made(family: str) -> tuple[Path, torch.Tensor]:
        model = make_model(family)
        return save(model, tmp_path_factory.mktemp(family) / "hf"), logits(model)

    return made


@pytest.mark.parametrize("pp", [1, 2])
@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_ranks_read_back_are_the_checkpoint_and_give_its_logits(
    checkpoints: Any, tmp_path: Path, family: str, tp: int, pp: int
) -> None:
    source, expected = checkpoints(family)
    convert(source, tmp_path / "out", tp=tp, pp=pp)

    found = read_back(tmp_path / "out")
    stored = load_file(source / "model.safetensors")
    for name, tensor in stored.items():
        assert torch.equal(found[name], tensor), name
    # The head of a tied model is written out; nothing else is new.
    assert found.keys() - stored.keys() <= {"lm_head.weight"}

    rebuilt = tmp_path / "hf"
    rebuilt.mkdir()
    shutil.copy(source / "config.json", rebuilt)
    save_file(found, rebuilt / "model.safetensors", {"format": "pt"})
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(rebuilt)), expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_of_several_shards_converts_to_the_same_bytes(
    checkpoints: Any, tmp_path: Path, family: str
) -> None:
    source, _ = checkpoints(family)
    sharded = save(make_model(family), tmp_path / "sharded", max_shard_size="20KB")
    assert len(list(sharded.glob("*.safetensors"))) > 1
    convert(source, tmp_path / "one")
    convert(sharded, tmp_path / "many")
    assert (tmp_path / "one" / "rank0.safetensors").read_bytes() == (
        tmp_path / "many" / "rank0.safetensors"
    ).read_bytes()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("family", ["llama31", "gemma2", "gpt2", "mixtral"])
def test_a_cast_is_torchs_own_cast(checkpoints: Any, tmp_path: Path, family: str, dtype: str) -> None:
    source, _ = checkpoints(family)
    convert(source, tmp_path / "cast", dtype=dtype)
    convert(source, tmp_path / "plain")
    cast = load_file(tmp_path / "cast" / "rank0.safetensors")
    for name, tensor in load_file(tmp_path / "plain" / "rank0.safetensors").items():
        kind = torch.float32 if name.endswith("router.weight") else getattr(torch, dtype)
        assert cast[name].dtype == kind
        assert torch.equal(cast[name], tensor.to(kind)), name
    assert json.loads((tmp_path / "cast" / "config.json").read_text())["dtype"] == dtype


def test_gemma_norms_are_one_more_rounded_once_from_float32(tmp_path: Path) -> None:
    model = make_model("gemma", torch.bfloat16)
    source = save(model, tmp_path / "hf")
    convert(source, tmp_path / "out")
    weight = load_file(source / "model.safetensors")["model.norm.weight"]
    written = load_file(tmp_path / "out" / "rank0.safetensors")["transformer.ln_f.weight"]
    assert written.dtype == torch.bfloat16
    assert torch.equal(written, (weight.float() + 1).to(torch.bfloat16))


def test_gpt2_without_the_prefix_and_with_stored_masks_converts_alike(
    checkpoints: Any, tmp_path: Path
) -> None:
    source, _ = checkpoints("gpt2")
    stored = load_file(source / "model.safetensors")
    old = {name.removeprefix("transformer."): tensor for name, tensor in stored.items()}
    old["h.0.attn.bias"] = torch.ones(1, 1, 128, 128, dtype=torch.uint8)
    old["h.0.attn.masked_bias"] = torch.tensor(-1e4)
    (tmp_path / "old").mkdir()
    shutil.copy(source / "config.json", tmp_path / "old")
    save_file(old, tmp_path / "old" / "model.safetensors")
    convert(source, tmp_path / "a")
    convert(tmp_path / "old", tmp_path / "b")
    assert (tmp_path / "a" / "rank0.safetensors").read_bytes() == (
        tmp_path / "b" / "rank0.safetensors"
    ).read_bytes()


# What TensorRT-LLM's config class of each family must find; from its source, not from our tables.
EXPECTED_SETTINGS: dict[str, dict[str, Any]] = {
    "llama31": {
        "architecture": "LlamaForCausalLM",
        "hidden_act": "silu",
        "head_size": 16,
        "attn_bias": False,
        "mlp_bias": False,
        "position_embedding_type": "rope_gpt_neox",
        "logits_dtype": "float32",
        "vocab_size": 101,
        "norm_epsilon": 1e-06,
    },
    "llama_biased": {"attn_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "mistral": {"architecture": "MistralForCausalLM", "num_key_value_heads": 2, "rotary_scaling": None},
    "mixtral": {
        "hidden_act": "swiglu",
        "moe": {"num_experts": 3, "top_k": 2, "normalization_mode": 1},
        "rotary_base": 1000000.0,
    },
    "qwen2": {"qwen_type": "qwen2", "attn_bias": True, "qk_layernorm": False, "seq_length": 128},
    "qwen3": {"qwen_type": "qwen3", "attn_bias": False, "qk_layernorm": True, "head_size": 16},
    "gemma": {"inter_layernorms": False, "hidden_act": "gelu_pytorch_tanh", "use_parallel_embedding": False},
    "gemma2": {
        "inter_layernorms": True,
        "query_pre_attn_scalar": 256.0,
        "final_logit_softcapping": 30.0,
        "attn_logit_softcapping": 50.0,
    },
    "gemma3": {
        "inter_layernorms": True,
        "qk_layernorm": True,
        "sliding_window": 8,
        "_sliding_window_pattern": 2,
        "rope_local_base_freq": 10000.0,
        "rotary_base": 1000000.0,
    },
    "phi3": {"hidden_act": "swiglu", "rotary_pct": 1.0, "intermediate_size": 48},
    "gpt2": {
        "gpt_variant": "gpt2",
        "bias": True,
        "position_embedding_type": "learned_absolute",
        "hidden_act": "gelu_new",
        "intermediate_size": 48,
        "max_position_embeddings": 128,
    },
}


@pytest.mark.parametrize("family", EXPECTED_SETTINGS)
def test_config_json_holds_what_the_familys_class_reads(
    checkpoints: Any, tmp_path: Path, family: str
) -> None:
    source, _ = checkpoints(family)
    convert(source, tmp_path / "out")
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert {key: written[key] for key in EXPECTED_SETTINGS[family]} == EXPECTED_SETTINGS[family]


def test_gemma_splits_its_embedding_and_says_so(checkpoints: Any, tmp_path: Path) -> None:
    source, _ = checkpoints("gemma2")
    convert(source, tmp_path / "out", tp=4)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["use_parallel_embedding"] is True
    rank = load_file(tmp_path / "out" / "rank0.safetensors")
    assert rank["transformer.vocab_embedding.weight"].shape == (26, 32)


ACTIVATIONS = [
    *((family, "hidden_act", "quick_gelu") for family in ("llama31", "mistral", "mixtral", "qwen2", "qwen3")),
    *((family, "hidden_act", "gelu") for family in ("llama31", "mistral", "mixtral", "qwen3", "phi3")),
    ("gemma", "hidden_act", "silu"),
    ("gemma2", "hidden_activation", "relu"),
    ("gemma3", "hidden_activation", "silu"),
    ("gpt2", "activation_function", "silu"),
]


@pytest.mark.parametrize(("family", "key", "name"), ACTIVATIONS)
def test_an_activation_that_the_familys_network_has_not_is_refused(
    tmp_path: Path, family: str, key: str, name: str
) -> None:
    source = save(make_model(family), tmp_path / "hf")
    edit_config(source, **{key: name})
    with pytest.raises(BuildError, match=rf"config\.json: {key} is '{name}', "):
        convert(source, tmp_path / "out")


@pytest.mark.parametrize(
    ("family", "key", "name"), [("gemma", "hidden_act", "gelu"), ("gpt2", "activation_function", "relu")]
)
def test_the_other_activations_of_a_family_are_kept(tmp_path: Path, family: str, key: str, name: str) -> None:
    source = save(make_model(family), tmp_path / "hf")
    edit_config(source, **{key: name})
    convert(source, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["hidden_act"] == name


def test_qwen3_with_biases_is_refused(tmp_path: Path) -> None:
    source = save(make_model("qwen3", attention_bias=True), tmp_path / "hf")
    with pytest.raises(BuildError, match=r"config\.json: attention_bias is true.*Qwen3 has no biases"):
        convert(source, tmp_path / "out")


SLIDING, FULL = "sliding_attention", "full_attention"
QWEN_WINDOW = {"sliding_window": 64, "use_sliding_window": True}


@pytest.mark.parametrize(
    ("family", "changes", "windows"),
    [
        ("gemma2", {"layer_types": None}, "64,128"),
        ("gemma2", {"layer_types": [SLIDING, SLIDING, FULL, FULL]}, "64,64,128,128"),
        ("gemma3", {}, "64,128"),
        (
            "gemma3",
            {"layer_types": None, "_sliding_window_pattern": None, "sliding_window_pattern": 3},
            "64,64,128",
        ),
        ("qwen3", {**QWEN_WINDOW, "layer_types": [FULL, SLIDING, FULL, SLIDING]}, "128,64"),
        ("qwen2", {**QWEN_WINDOW, "layer_types": None, "max_window_layers": 1}, "128,64,64,64"),
        ("qwen2", {**QWEN_WINDOW, "layer_types": None, "max_window_layers": 0}, "64"),
    ],
)
def test_windows_of_some_layers_are_told_layer_by_layer(
    tmp_path: Path, family: str, changes: dict[str, Any], windows: str
) -> None:
    source = save(make_model(family), tmp_path / "hf")
    edit_config(source, **{"sliding_window": 64, **changes})
    (note,) = convert(source, tmp_path / "out").notes
    assert note.split("max_attention_window_size ")[1].split(" ")[0] == windows


@pytest.mark.parametrize(
    "changes", [{"layer_types": [FULL] * 4, "use_sliding_window": True}, {"use_sliding_window": None}]
)
def test_a_window_that_no_layer_has_is_not_told(tmp_path: Path, changes: dict[str, Any]) -> None:
    source = save(make_model("qwen2"), tmp_path / "hf")
    edit_config(source, sliding_window=64, **changes)
    assert convert(source, tmp_path / "out").notes == ()


@pytest.mark.parametrize("family", ["mistral", "phi3"])
def test_a_window_that_the_format_cannot_say_is_told(tmp_path: Path, family: str) -> None:
    source = save(make_model(family), tmp_path / "hf")
    edit_config(source, sliding_window=64)
    (note,) = convert(source, tmp_path / "out").notes
    assert note.endswith("max_attention_window_size 64")


def test_a_window_that_is_switched_off_is_not_told(tmp_path: Path) -> None:
    source = save(make_model("qwen2"), tmp_path / "hf")
    edit_config(source, sliding_window=64, use_sliding_window=False)
    assert convert(source, tmp_path / "out").notes == ()


def test_the_supported_architectures_are_these() -> None:
    assert set(families()) == {
        "GPT2LMHeadModel",
        "Gemma2ForCausalLM",
        "Gemma3ForCausalLM",
        "GemmaForCausalLM",
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "MixtralForCausalLM",
        "Phi3ForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
    }
