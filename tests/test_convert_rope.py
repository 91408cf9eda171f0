"""Rotary tables: what a TensorRT-LLM engine computes from the written keys is what Hugging Face turns by.

The TensorRT-LLM side is its formula written out here, from the keys of the written config.json alone.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_checkpoints import edit_config, make_model, save
from transformers import AutoConfig
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

from trtspec.build.convert.converter import convert
from trtspec.build.convert.rope import read_rope
from trtspec.errors import BuildError, CheckpointError

MAX = 32768
FACTORS = {"short_factor": [1.0, 1.1, 1.3, 1.9], "long_factor": [1.0, 2.0, 9.0, 31.0]}


def trtllm_frequencies(config: dict[str, Any], long: bool = False) -> tuple[Any, float]:
    """Return the frequencies and the magnitude of the tables that TensorRT-LLM builds."""
    size = int(config["head_size"] * config.get("rotary_pct", 1.0))
    steps = config["rotary_base"] ** (np.arange(0, size, 2) / size)
    if config["position_embedding_type"] == "long_rope":
        factors = config[f"longrope_scaling_{'long' if long else 'short'}_factors"]
        original = config["original_max_position_embeddings"]
        ratio = config["max_position_embeddings"] / original
        return 1 / (np.array(factors) * steps), math.sqrt(1 + math.log(ratio) / math.log(original))
    scaling = config["rotary_scaling"]
    if scaling is None:
        return 1 / steps, 1.0
    kind = scaling.get("type", scaling.get("rope_type"))
    factor = scaling.get("factor", 1.0)
    if kind == "linear":
        return 1 / factor / steps, 1.0
    if kind == "llama3":
        return np.array([llama3(1 / step, scaling) for step in steps]), 1.0
    assert kind == "yarn"
    return yarn(steps, config["rotary_base"], scaling), magnitude(factor, scaling.get("mscale", 1.0)) / (
        magnitude(factor, scaling.get("mscale_all_dim", 0.0))
    )


def llama3(frequency: float, scaling: dict[str, Any]) -> float:
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * frequency / (2 * math.pi)
    if turns > high:
        return frequency
    if turns < low:
        return frequency / float(scaling["factor"])
    smooth = (turns - low) / (high - low)
    return float((1 - smooth) * frequency / scaling["factor"] + smooth * frequency)


def yarn(steps: Any, base: float, scaling: dict[str, Any]) -> Any:
    size, original = 2 * len(steps), scaling.get("original_max_position_embeddings", 4096)

    def dimension(turns: float) -> float:
        return size * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(dimension(scaling.get("beta_fast", 32.0))), 0)
    high = min(math.ceil(dimension(scaling.get("beta_slow", 1.0))), size - 1)
    ramp = np.clip((np.arange(len(steps)) - low) / (high - low or 0.001), 0, 1)
    return ramp / (scaling["factor"] * steps) + (1 - ramp) / steps


def magnitude(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def assert_same_tables(
    cosine: torch.Tensor, sine: torch.Tensor, frequencies: Any, size: float, positions: list[int]
) -> None:
    """Compare at each position; two float32 roundings of a frequency grow with the position."""
    for row, position in enumerate(positions):
        angles = position * np.concatenate([frequencies, frequencies])
        tolerance = 1e-6 + position * 4 * 2.0**-24
        np.testing.assert_allclose(cosine[0, row].numpy(), np.cos(angles) * size, atol=tolerance, rtol=0)
        np.testing.assert_allclose(sine[0, row].numpy(), np.sin(angles) * size, atol=tolerance, rtol=0)


def converted(tmp_path: Path, family: str, **changes: Any) -> tuple[Path, dict[str, Any]]:
    source = save(make_model(family), tmp_path / "hf")
    edit_config(source, max_position_embeddings=MAX, **changes)
    convert(source, tmp_path / "out")
    return source, json.loads((tmp_path / "out" / "config.json").read_text())


LLAMA31 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALINGS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {"rope_type": "llama3", **LLAMA31, "original_max_position_embeddings": 4096},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192},
    "yarn from max positions": {"rope_type": "yarn", "factor": 4.0},
    "yarn with scales": {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 2048,
        "mscale": 0.9,
        "mscale_all_dim": 0.7,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
    },
    "yarn with one scale": {
        "rope_type": "yarn",
        "factor": 4.0,
        "mscale": 0.7,
        "original_max_position_embeddings": 8192,
    },
}


@pytest.mark.parametrize("spelling", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_tables_are_hugging_faces_at_0_1k_8k_and_the_last_position(
    tmp_path: Path, scaling: str, spelling: str
) -> None:
    values = SCALINGS[scaling]
    if spelling == "rope_parameters":
        changes: dict[str, Any] = {spelling: {**values, "rope_theta": 30000.0}}
    else:
        old = {"type" if key == "rope_type" else key: value for key, value in values.items()}
        changes = {"rope_parameters": None, "rope_theta": 30000.0, spelling: old}
    source, written = converted(tmp_path, "llama31", **changes)
    positions = [0, 1, 1000, 8192, MAX - 1]
    table = LlamaRotaryEmbedding(AutoConfig.from_pretrained(source))
    cosine, sine = table(torch.zeros(1), torch.tensor([positions]))
    assert_same_tables(cosine, sine, *trtllm_frequencies(written), positions)


def test_the_older_spelling_counts_alone_where_both_are_given(tmp_path: Path) -> None:
    _, written = converted(
        tmp_path,
        "llama31",
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        rope_scaling={"type": "linear", "factor": 4.0},
    )
    assert (written["rotary_base"], written["rotary_scaling"]["factor"]) == (10000.0, 4.0)


def longrope(name: str) -> dict[str, Any]:
    """Return Phi-3's own spelling, under either name of the type."""
    return {
        "rope_parameters": None,
        "rope_theta": 10000.0,
        "rope_scaling": {"type": name, **FACTORS},
        "original_max_position_embeddings": 4096,
    }


def test_su_is_longropes_older_name(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    _, old = converted(tmp_path / "old", "phi3", **longrope("su"))
    _, new = converted(tmp_path, "phi3", **longrope("longrope"))
    assert old == new


@pytest.mark.parametrize("long", [False, True])
def test_phi3_has_both_tables_of_longrope(tmp_path: Path, long: bool) -> None:
    source, written = converted(tmp_path, "phi3", **longrope("longrope"))
    # Hugging Face takes the long table for a text that reaches past the original length.
    positions = [0, 1000, 8192, MAX - 1] if long else [0, 1000, 4095]
    table = Phi3RotaryEmbedding(AutoConfig.from_pretrained(source))
    cosine, sine = table(torch.zeros(1), torch.tensor([positions]))
    assert_same_tables(cosine, sine, *trtllm_frequencies(written, long), positions)


def test_phi3_may_turn_a_part_of_each_head(tmp_path: Path) -> None:
    parameters = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75}
    source, written = converted(tmp_path, "phi3", rope_parameters=parameters)
    table = Phi3RotaryEmbedding(AutoConfig.from_pretrained(source))
    cosine, sine = table(torch.zeros(1), torch.tensor([[0, 1000]]))
    assert cosine.shape[-1] == 6
    assert_same_tables(cosine, sine, *trtllm_frequencies(written), [0, 1000])


@pytest.mark.parametrize("spelling", ["nested", "flat"])
def test_gemma3_has_a_table_for_each_kind_of_layer(tmp_path: Path, spelling: str) -> None:
    if spelling == "nested":
        changes: dict[str, Any] = {
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 700000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 7000.0},
            }
        }
    else:
        changes = {"rope_parameters": None, "rope_theta": 700000.0, "rope_local_base_freq": 7000.0}
    source, written = converted(tmp_path, "gemma3", **changes)
    positions = [0, 1000, 8192, MAX - 1]
    table = Gemma3RotaryEmbedding(AutoConfig.from_pretrained(source))
    local = {**written, "rotary_base": written["rope_local_base_freq"]}
    for layers, config in (("full_attention", written), ("sliding_attention", local)):
        cosine, sine = table(torch.zeros(1), torch.tensor([positions]), layers)
        assert_same_tables(cosine, sine, *trtllm_frequencies(config), positions)


def test_unscaled_rope_is_not_written_as_a_type(tmp_path: Path) -> None:
    _, written = converted(tmp_path, "qwen2")
    assert written["rotary_scaling"] is None


def test_a_base_that_nobody_states_is_transformers_default() -> None:
    assert read_rope({"max_position_embeddings": 4096}).base == 10000.0


@pytest.mark.parametrize(
    ("family", "parameters", "message"),
    [
        ("llama31", {"rope_type": "dynamic", "factor": 2.0}, "'dynamic' has no equal"),
        ("llama31", {"rope_type": "longrope", **FACTORS}, "for Phi-3 only"),
        ("llama31", {"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ("llama31", {**SCALINGS["yarn"], "attention_factor": 1.5}, "attention_factor 1.5"),
        ("llama31", {**SCALINGS["yarn"], "truncate": False}, "truncate = false"),
        ("phi3", {"rope_type": "linear", "factor": 2.0}, "takes default and longrope"),
        (
            "phi3",
            {"rope_type": "longrope", **FACTORS, "factor": 3.0, "original_max_position_embeddings": 4096},
            "longrope factor 3 is not",
        ),
        (
            "gemma3",
            {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}},
            "unscaled Gemma-3 only",
        ),
    ],
)
def test_what_the_engine_path_cannot_turn_by_is_refused(
    tmp_path: Path, family: str, parameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(BuildError, match=message):
        converted(tmp_path, family, rope_parameters=parameters, original_max_position_embeddings=None)
    assert not (tmp_path / "out").exists()


def test_a_stated_magnitude_that_the_engine_computes_too_is_accepted(tmp_path: Path) -> None:
    values = SCALINGS["yarn with scales"]
    implied = magnitude(40.0, 0.9) / magnitude(40.0, 0.7)
    _, written = converted(tmp_path, "llama31", rope_parameters={**values, "attention_factor": implied})
    assert trtllm_frequencies(written)[1] == pytest.approx(implied)


def test_a_scaling_that_lacks_a_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="low_freq_factor is missing, expected a number"):
        converted(tmp_path, "llama31", rope_parameters={"rope_type": "llama3", "factor": 8.0})


def test_longrope_needs_a_factor_for_each_frequency(tmp_path: Path) -> None:
    short = {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}
    with pytest.raises(CheckpointError, match="1 values in short_factor, expected 4"):
        converted(tmp_path, "phi3", rope_parameters=short, original_max_position_embeddings=4096)


def test_gemma3_layers_in_another_order_are_refused(tmp_path: Path) -> None:
    kinds = ["full_attention", "sliding_attention", "full_attention", "sliding_attention"]
    with pytest.raises(BuildError, match="layer_types is not"):
        converted(tmp_path, "gemma3", layer_types=kinds)


def test_an_integer_that_no_float_holds_is_refused_in_few_words() -> None:
    with pytest.raises(CheckpointError, match=r"^config\.json: rope_theta is 10{50,59}, expected a number$"):
        read_rope({"rope_theta": 10**400})
