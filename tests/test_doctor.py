"""Pairs as users bring them, at the sizes they have; no weight is ever there."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trtspec.build.check.findings import Finding
from trtspec.build.check.model_shape import shape_of
from trtspec.build.check.pair_report import PairReport, check
from trtspec.build.check.ratios import ratios_of
from trtspec.build.checkpoint import Checkpoint, open_checkpoint
from trtspec.build.tensor_file import TensorInfo

LLAMA_70B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "eos_token_id": [128001, 128008, 128009],
}
LLAMA_1B = LLAMA_70B | {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "head_dim": 64,
    "tie_word_embeddings": True,
}
QWEN_72B = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 8192,
    "intermediate_size": 29568,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "max_position_embeddings": 32768,
    "rope_theta": 1000000.0,
    "vocab_size": 152064,
    "tie_word_embeddings": False,
    "eos_token_id": 151645,
}
QWEN_HALF_B = QWEN_72B | {
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}


def shapes_of(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The tensors of a Llama or Qwen2 of this config."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head_dim = config.get("head_dim", hidden // config["num_attention_heads"])
    rows = {"q": config["num_attention_heads"] * head_dim, "k": config["num_key_value_heads"] * head_dim}
    rows["v"] = rows["k"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    for n in range(config["num_hidden_layers"]):
        layer = f"model.layers.{n}"
        shapes |= {f"{layer}.self_attn.{p}_proj.weight": (rows[p], hidden) for p in rows}
        if config["model_type"] == "qwen2":
            shapes |= {f"{layer}.self_attn.{p}_proj.bias": (rows[p],) for p in rows}
        shapes[f"{layer}.self_attn.o_proj.weight"] = (hidden, rows["q"])
        shapes |= {f"{layer}.mlp.{p}_proj.weight": (inner, hidden) for p in ("gate", "up")}
        shapes[f"{layer}.mlp.down_proj.weight"] = (hidden, inner)
        shapes |= {f"{layer}.{p}_layernorm.weight": (hidden,) for p in ("input", "post_attention")}
    return shapes


TOKENIZER: dict[str, Any] = {
    "added_tokens": [],
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "c": 3}, "merges": ["a b"]},
}

# What the doctor reads of config.json, and below it.
READ = [
    *("architectures", "model_type", "is_encoder_decoder", "speculators_config", "speculators_model_type"),
    *("algorithm", "dflash_config", "markov_rank", "dspark_config", "medusa_num_heads", "pard_token"),
    *("intermediate_size", "partial_rotary_factor"),
    *("text_config", "vision_config", "tie_word_embeddings", "num_hidden_layers", "n_layer", "hidden_size"),
    *("num_attention_heads", "num_key_value_heads", "head_dim", "kv_lora_rank", "qk_rope_head_dim"),
    *(
        "max_position_embeddings",
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "rope_type",
        "type",
        "factor",
    ),
    *("full_attention", "vocab_size", "quantization_config", "quant_method", "auto_map", "eos_token_id"),
]

Maker = Callable[..., Checkpoint]


@pytest.fixture
def model(tmp_path: Path) -> Maker:
    """Make a checkpoint: headers in memory, JSON files in a folder."""

    def make(
        config: dict[str, Any],
        *,
        tokenizer: dict[str, Any] | None = TOKENIZER,
        tokenizer_config: dict[str, Any] | None = None,
        generation_config: dict[str, Any] | None = None,
        dtype: str = "BF16",
        name: str = "model",
    ) -> Checkpoint:
        folder = tmp_path / f"{name}{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        for file, content in (("tokenizer.json", tokenizer), ("tokenizer_config.json", tokenizer_config)):
            if content is not None:
                (folder / file).write_text(json.dumps(content))
        width = {"BF16": 2, "F16": 2, "F32": 4, "I32": 4, "F8_E4M3": 1}[dtype]
        tensors = {
            name: TensorInfo(name, dtype, shape, folder / "model.safetensors", 0, width * math.prod(shape))
            for name, shape in shapes_of(config).items()
        }
        return Checkpoint(folder, config, generation_config or {}, tensors, (folder / "model.safetensors",))

    return make


def tiny(**changes: Any) -> dict[str, Any]:
    """A config small enough for the tokenizer above, with everything that a pair should have."""
    config = LLAMA_1B | {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "vocab_size": 4}
    config |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "eos_token_id": 3}
    return config | changes


CHAT = {"chat_template": "{{ messages }}"}


def target_config() -> dict[str, Any]:
    return tiny(num_hidden_layers=40)


def fitting(
    model: Maker, *, target: dict[str, Any] | None = None, draft: dict[str, Any] | None = None
) -> PairReport:
    """The report on a pair without a fault, but for what the arguments change."""
    sides = [
        model(**({"config": config, "tokenizer_config": CHAT} | (changes or {})))
        for config, changes in ((target_config(), target), (tiny(), draft))
    ]
    return check(*sides)


def said(report: PairReport) -> dict[str, str]:
    return {finding.id: finding.severity for finding in report.findings}


def only(report: PairReport) -> Finding:
    (finding,) = report.findings
    return finding


def test_a_class_that_no_family_names_still_builds_for_the_other_runtimes(model):
    report = fitting(model, draft={"config": tiny(architectures=["OlmoForCausalLM"])})
    finding = only(report)
    assert (finding.id, finding.severity) == ("draft.architecture", "warning")
    assert "OlmoForCausalLM" in finding.message
    assert "LlamaForCausalLM" in finding.message
    assert report.ok


def test_a_fitting_pair_has_no_finding_at_all(model):
    report = fitting(model)
    assert report.findings == ()
    assert report.ok


@pytest.mark.parametrize(
    ("config", "parameters", "kv_bytes"),
    [  # published counts; kv: 2 (key, value) × layers × key-value heads × head size × 2 bytes
        (LLAMA_70B, 70_553_706_496, 327_680),
        (LLAMA_1B, 1_235_814_400, 32_768),
        (QWEN_72B, 72_706_203_648, 327_680),
        (QWEN_HALF_B, 494_032_768, 12_288),
    ],
)
def test_sizes_are_those_that_the_makers_publish(model, config, parameters, kv_bytes):
    shape = shape_of(model(config))
    assert shape.parameters == parameters
    assert shape.weight_bytes == 2 * parameters
    assert shape.kv_bytes_per_token == kv_bytes


def test_a_token_reads_one_row_of_an_untied_embedding_and_all_of_a_tied_one(model):
    untied, tied = shape_of(model(LLAMA_70B)), shape_of(model(LLAMA_1B))
    assert untied.weight_bytes_per_token == untied.weight_bytes - (128_256 - 1) * 8192 * 2
    assert tied.weight_bytes_per_token == tied.weight_bytes


def test_a_token_reads_one_row_of_a_table_of_positions(model):
    gpt2 = model(tiny(tie_word_embeddings=True))
    base = shape_of(gpt2).weight_bytes_per_token
    table = TensorInfo("wpe.weight", "BF16", (1024, 64), Path("x"), 0, 2 * 1024 * 64)
    with_table = replace(gpt2, tensors={**gpt2.tensors, table.name: table})
    assert shape_of(with_table).weight_bytes_per_token - base == 2 * 64


def test_a_token_reads_only_the_experts_that_run(model):
    mixtral = model(tiny(num_local_experts=8, num_experts_per_tok=2))
    base = shape_of(mixtral).weight_bytes_per_token
    expert = TensorInfo("model.layers.0.mlp.experts.3.w1.weight", "BF16", (64, 64), Path("x"), 0, 8192)
    with_expert = replace(mixtral, tensors={**mixtral.tensors, expert.name: expert})
    assert shape_of(with_expert).weight_bytes_per_token - base == 8192 * 2 / 8


def test_the_cost_ratio_is_of_bytes_read_at_a_context(model):
    target, draft = shape_of(model(LLAMA_70B)), shape_of(model(LLAMA_1B))
    at_none = ratios_of(target, draft, context_tokens=0)
    assert at_none.cost_ratio == draft.weight_bytes_per_token / target.weight_bytes_per_token
    far = ratios_of(target, draft, context_tokens=100_000_000)
    assert far.cost_ratio == pytest.approx(far.kv_bytes_per_token, rel=0.01)


def test_the_pair_of_qwen_with_padded_rows_can_be_built_after_a_repair_by_build(model):
    words = {f"t{i}": i for i in range(151_665)}
    tokenizer = {"model": {"type": "WordLevel", "vocab": words}}
    target, draft = (
        model(config, tokenizer=tokenizer, tokenizer_config=CHAT) for config in (QWEN_72B, QWEN_HALF_B)
    )
    report = check(target, draft)
    assert report.ok
    assert said(report) == {
        "vocab.width": "warning",
        "vocab.padding": "note",
        "heads.parallel": "note",
    }
    width = report.findings[0]
    assert width.repairable
    assert "152,064" in width.message
    assert "151,936" in width.message
    assert "151665-152063" in report.findings[1].message + report.findings[2].message
    assert report.vocab_rows == 152_064


def test_tokenizers_that_differ_refuse_the_pair(model):
    other = TOKENIZER | {"model": TOKENIZER["model"] | {"vocab": {"b": 0, "a": 1, "ab": 2, "c": 3}}}
    report = fitting(model, draft={"tokenizer": other})
    assert not report.ok
    assert said(report) == {"vocab.ids": "error"}
    assert [d.ids for d in report.differences] == [((0, 1),)]


@pytest.mark.parametrize("side", ["target", "draft"])
def test_a_side_without_tokenizer_json_refuses_the_pair_and_says_how_to_get_one(model, side):
    finding = only(fitting(model, **{side: {"tokenizer": None}}))
    assert (finding.id, finding.severity) == ("tokenizer.missing", "error")
    assert side in finding.message
    assert "save_pretrained" in finding.repair


@pytest.mark.parametrize("side", ["target", "draft"])
def test_a_head_in_place_of_a_model_is_the_only_finding(model, side):
    head = model(tiny(num_hidden_layers=1), tokenizer=None)
    fc = TensorInfo("fc.weight", "BF16", (64, 128), Path("x"), 0, 2 * 64 * 128)
    head = replace(head, tensors={**head.tensors, fc.name: fc})
    pair = (head, model(tiny())) if side == "target" else (model(tiny()), head)
    report = check(*pair)
    finding = only(report)
    assert finding.id == f"{side}.kind"
    assert "EAGLE head" in finding.message
    assert "tensor fc.weight [64, 128] joins 2 hidden states" in finding.message
    assert "trtllm-build --speculative_decoding_mode eagle" in finding.repair
    assert not report.ok
    json.dumps(report.as_dict())


def test_a_tokenizer_that_yields_ids_beyond_the_targets_rows_refuses_the_pair(model):
    report = fitting(model, target={"config": target_config() | {"vocab_size": 3, "eos_token_id": 2}})
    assert said(report)["vocab.rows"] == "error"


def test_a_config_that_miscounts_the_vocabulary_is_repaired_by_build(model):
    target = model(target_config(), tokenizer_config=CHAT)
    wrong = replace(target, config={**target.config, "vocab_size": 5})
    finding = only(check(wrong, model(tiny(), tokenizer_config=CHAT)))
    assert (finding.id, finding.repairable) == ("vocab.config", True)
    assert "vocab_size 5, its embedding has 4 rows" in finding.message


def test_a_head_with_other_rows_than_the_embedding_refuses_the_pair(model):
    target = model(target_config(), tokenizer_config=CHAT)
    head = TensorInfo("lm_head.weight", "BF16", (3, 64), Path("x"), 0, 2 * 3 * 64)
    wrong = replace(target, tensors={**target.tensors, head.name: head})
    assert said(check(wrong, model(tiny(), tokenizer_config=CHAT))) == {"vocab.head": "error"}


def test_a_head_count_that_the_weights_contradict_refuses_the_pair(model):
    target = model(target_config(), tokenizer_config=CHAT)
    wrong = replace(target, config={**target.config, "head_dim": 32})
    assert said(check(wrong, model(tiny(), tokenizer_config=CHAT)))["heads.size"] == "error"


@pytest.mark.parametrize(
    ("change", "found", "words"),
    [
        ({"head_dim": 15}, "heads.odd", "15 coordinates to rotate, expected an even number"),
        ({"head_dim": 30, "partial_rotary_factor": 0.5}, "heads.odd", "15 coordinates to rotate"),
        ({"num_key_value_heads": 3}, "heads.groups", "cannot share 3 key-value heads evenly"),
        ({"num_attention_heads": 0}, "sizes.number", "num_attention_heads 0; expected 1 or more"),
        ({"num_key_value_heads": "2"}, "sizes.number", "num_key_value_heads '2'"),
        (
            {"intermediate_size": 7.5, "head_dim": True},
            "sizes.number",
            "intermediate_size 7.5, head_dim True",
        ),
        ({"max_position_embeddings": -1}, "sizes.number", "max_position_embeddings -1"),
        ({"num_key_value_heads": 10**400}, "sizes.number", "num_key_value_heads 1000000000"),
        ({"hidden_size": None}, "sizes.number", "hidden_size None; expected 1 or more"),
        ({"num_hidden_layers": [40]}, "sizes.number", "num_hidden_layers [40]"),
        ({"num_hidden_layers": 39}, "sizes.layers", "hold 40 decoder layers, config.json counts 39"),
        ({"intermediate_size": 95}, "sizes.inner", "has 96 rows, config.json says intermediate_size 95"),
        ({"num_key_value_heads": 1}, "heads.keys", "32 rows, 1 key-value heads for 4 heads give 16"),
        ({"rms_norm_eps": math.nan}, "sizes.scale", "rms_norm_eps nan; expected finite numbers above 0"),
        ({"rope_theta": -1.0}, "sizes.scale", "rope_theta -1.0"),
        ({"rope_theta": 10**400}, "sizes.scale", "rope_theta 1000000000"),
        ({"rms_norm_eps": 10**400}, "sizes.scale", "rms_norm_eps 1000000000"),
        ({"rope_scaling": {"rope_type": "linear", "factor": "8"}}, "sizes.scale", "factor '8'"),
        ({"rope_parameters": {"rope_theta": 0}}, "sizes.scale", "rope_theta 0"),
        ({"hidden_size": 10**12}, "sizes.hidden", "columns, config.json says 1,000,000,000,000"),
    ],
)
def test_sizes_that_no_decoder_can_have_refuse_the_pair(
    model, change: dict[str, Any], found: str, words: str
) -> None:
    target = model(target_config(), tokenizer_config=CHAT)
    wrong = replace(target, config={**target.config, **change})
    findings = {f.id: f for f in check(wrong, model(tiny(), tokenizer_config=CHAT)).findings}
    assert findings[found].severity == "error"
    assert words in findings[found].message


LONG = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ""),
        ({"rope_theta": None}, "rope_theta is null, expected a number above 0"),
        ({"rope_parameters": {"rope_theta": None}}, "rope_parameters.rope_theta is null"),
        ({"rope_parameters": {"rope_theta": 1e4}, "rope_theta": None}, ""),
        (
            {"rope_parameters": {"rope_type": "llama4"}},
            "rope_parameters.rope_type is 'llama4', expected one of",
        ),
        ({"rope_parameters": {"rope_type": None}}, "rope_parameters.rope_type is None"),
        ({"rope_scaling": {"type": "su", **LONG}}, "rope_scaling.type is 'su'"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling of type linear is without factor"),
        ({"rope_scaling": {"type": "linear", "factor": None}}, "without factor"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, ""),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, ""),
        ({"rope_scaling": {"rope_type": "yarn"}}, "without factor"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "low_freq_factor, high_freq_factor"),
        ({"rope_scaling": {"type": "longrope", **LONG}}, ""),
        ({"rope_scaling": {"type": "longrope", "long_factor": LONG["long_factor"]}}, "without short_factor"),
        ({"rope_scaling": {"type": "longrope", **LONG, "short_factor": [1.0] * 3}}, "expected 8 numbers"),
        ({"rope_scaling": {"type": "longrope", **LONG, "long_factor": 2.0}}, "long_factor is 2.0"),
        ({"rope_parameters": {"rope_type": "proportional", "rope_theta": 1e4}}, ""),
        ({"rope_parameters": "yarn"}, "rope_parameters is 'yarn', expected an object"),
        ({"rope_scaling": 8}, "rope_scaling is 8, expected an object"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "none"}}, ""),
    ],
)
# It says itself, in a warning, why it is about to fail.
@pytest.mark.filterwarnings("ignore")
def test_rope_settings_that_transformers_cannot_load_refuse_the_pair(model, change, words: str) -> None:
    from transformers import LlamaConfig, LlamaModel

    config = {name: value for name, value in target_config().items() if name != "rope_scaling"} | change
    target = model(config | {"num_hidden_layers": 40}, tokenizer_config=CHAT)
    found = {f.id: f for f in check(target, model(tiny(), tokenizer_config=CHAT)).findings}
    try:
        LlamaModel(LlamaConfig.from_dict(config | {"num_hidden_layers": 1}))
        loads = True
    except Exception:
        loads = False
    assert loads == ("rope.settings" not in found) == (not words)
    assert loads or words in found["rope.settings"].message
    assert loads or found["rope.settings"].severity == "error"


def test_a_rope_type_of_one_kind_of_layers_is_found_too(model) -> None:
    kinds = {"full_attention": {"rope_type": "lineal", "rope_theta": 1e6}}
    kinds["sliding_attention"] = {"rope_type": "default", "rope_theta": 1e4}
    target = model(target_config() | {"rope_scaling": None, "rope_parameters": kinds}, tokenizer_config=CHAT)
    found = {f.id: f for f in check(target, model(tiny(), tokenizer_config=CHAT)).findings}
    assert "rope_parameters.full_attention.rope_type is 'lineal'" in found["rope.settings"].message


def test_a_number_of_key_value_heads_that_config_json_leaves_out_is_no_finding(model) -> None:
    target = model(target_config(), tokenizer_config=CHAT)
    config = {name: value for name, value in target.config.items() if name != "num_key_value_heads"}
    left_out = replace(target, config=config)
    assert "heads.keys" not in said(check(left_out, model(tiny(), tokenizer_config=CHAT)))


def test_learned_positions_are_not_rotated(model) -> None:
    target = model(target_config(), tokenizer_config=CHAT)
    positions = TensorInfo("transformer.wpe.weight", "BF16", (8, 64), Path("x"), 0, 2 * 8 * 64)
    odd = replace(
        target,
        config={**target.config, "head_dim": 15},
        tensors={**target.tensors, positions.name: positions},
    )
    assert "heads.odd" not in said(check(odd, model(tiny(), tokenizer_config=CHAT)))


def test_latent_attention_keeps_one_compressed_row_a_layer(model):
    """DeepSeek-V3: 61 layers of 512 + 64 values of two bytes."""
    config = tiny(kv_lora_rank=512, qk_rope_head_dim=64)
    assert shape_of(model(config)).kv_bytes_per_token == 2 * (512 + 64) * 2


def test_a_module_inside_a_whole_model_is_noted_and_not_counted(model):
    target = model(target_config(), tokenizer_config=CHAT)
    shapes = {"eh_proj.weight": (64, 128), "embed_tokens.weight": (4, 64)}
    mtp = [
        TensorInfo(f"model.layers.40.{name}", "BF16", shape, Path("x"), 0, 2 * math.prod(shape))
        for name, shape in shapes.items()
    ]
    with_mtp = replace(target, tensors={**target.tensors, **{tensor.name: tensor for tensor in mtp}})
    report = check(with_mtp, model(tiny(), tokenizer_config=CHAT))
    assert said(report) == {"target.carries": "note"}
    assert report.target.shape == shape_of(target)


def test_a_draft_whose_tokenizer_yields_ids_beyond_its_rows_can_still_be_padded(model):
    report = fitting(model, draft={"config": tiny(vocab_size=3)})
    assert report.ok
    assert said(report) == {"vocab.rows": "warning", "vocab.width": "warning"}


@pytest.mark.parametrize("config", [{"head_dim": 8}, {"head_dim": 12, "kv_lora_rank": 8}])
def test_head_sizes_that_the_weights_can_explain_are_no_finding(model, config):
    """A gate fused into the queries doubles their rows; latent attention has heads of other sizes."""
    target = model(target_config(), tokenizer_config=CHAT)
    odd = replace(target, config={**target.config, **config})
    assert said(check(odd, model(tiny(), tokenizer_config=CHAT))) == {}


def test_a_name_kept_for_later_may_lie_beyond_the_rows(model):
    kept = TOKENIZER | {"added_tokens": [{"id": 4, "content": "<|reserved_0|>", "special": True}]}
    report = fitting(model, target={"tokenizer": kept}, draft={"tokenizer": kept})
    assert report.findings == ()


@pytest.mark.parametrize("side", ["target", "draft"])
def test_both_models_get_the_rows_of_the_larger(model, side):
    config = {"target": target_config(), "draft": tiny()}[side] | {"vocab_size": 6}
    report = fitting(model, **{side: {"config": config}})
    assert report.vocab_rows == 6
    assert said(report) == {"vocab.width": "warning", "vocab.padding": "note"}


@pytest.mark.parametrize(
    ("dtype", "settings", "severity"),
    [
        ("I32", {"quant_method": "gptq"}, "error"),
        ("I32", None, "error"),
        ("F8_E4M3", {"quant_method": "modelopt"}, "warning"),
        ("F8_E4M3", {"quant_method": "compressed-tensors"}, "warning"),
        ("BF16", {"quant_method": "bitsandbytes"}, "error"),
    ],
)
def test_quantised_weights_are_refused_unless_a_runtime_takes_them(model, dtype, settings, severity):
    config = target_config() | ({"quantization_config": settings} if settings else {})
    assert said(fitting(model, target={"config": config, "dtype": dtype}))["target.quantized"] == severity


def test_other_float_types_are_only_noted(model):
    assert said(fitting(model, draft={"dtype": "F16"})) == {"dtype.differs": "note"}


def test_a_draft_with_a_shorter_context_bounds_the_pair(model):
    report = fitting(model, draft={"config": tiny(max_position_embeddings=2048)})
    assert said(report) == {"context.shorter": "warning"}
    assert report.context_length == 2048


def test_a_draft_with_a_longer_context_is_no_finding(model):
    report = fitting(model, target={"config": target_config() | {"max_position_embeddings": 2048}})
    assert report.findings == ()
    assert report.context_length == 2048


def test_a_config_without_a_context_length_is_named(model):
    config = tiny()
    del config["max_position_embeddings"]
    assert said(fitting(model, draft={"config": config})) == {"context.unknown": "warning"}


@pytest.mark.parametrize(
    ("heads", "kv_heads", "sizes"),
    [
        (64, 8, (1, 2, 4, 8)),
        (32, 1, (1, 2, 4, 8)),
        (28, 4, (1, 2, 4)),
        (12, 2, (1, 2, 4)),
        (14, 2, (1, 2)),
        (8, 3, (1,)),
    ],
)
def test_the_gpus_that_heads_split_over_follow_the_rule_for_key_value_heads(model, heads, kv_heads, sizes):
    config = tiny(num_attention_heads=heads, num_key_value_heads=kv_heads)
    assert shape_of(model(config)).tensor_parallel == sizes


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"rope_theta": 10000.0, "rope_scaling": None}, "theta 10000"),
        ({}, "theta 500000, llama3 × 8"),
        (
            {
                "rope_parameters": {"rope_theta": 1e6, "rope_type": "yarn", "factor": 4.0},
                "rope_scaling": None,
            },
            "theta 1e+06, yarn × 4",
        ),
        ({"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}, "theta 500000, llama3 × 8"),
        (
            {"rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
            "theta 10000, linear × 2",
        ),
        (
            {
                "rope_parameters": {"full_attention": {"rope_theta": 1e6, "rope_type": "default"}},
                "rope_scaling": None,
            },
            "theta 1e+06",
        ),
        ({"rope_theta": None, "rope_scaling": None}, "none"),
    ],
)
def test_rope_is_read_in_every_spelling(model, config, words):
    assert shape_of(model(tiny(**config))).rope == words


def test_ends_of_text_are_merged_from_all_three_files_in_order(model):
    report = fitting(
        model,
        target={
            "config": target_config() | {"eos_token_id": 2},
            "generation_config": {"eos_token_id": [1, 3]},
            "tokenizer_config": CHAT | {"eos_token": {"content": "a"}},
        },
        draft={"config": tiny(eos_token_id=[0, 1, 2, 3])},
    )
    assert report.eos_token_ids == (1, 3, 2, 0)
    finding = only(report)
    assert (finding.id, finding.repairable) == ("eos.sources", True)
    assert "1, 3, 2, 0" in finding.repair


def test_a_list_that_names_every_end_in_the_first_file_is_no_finding(model):
    """Qwen2.5: generation_config has both ids, the two other files one of them."""
    settings = {
        "generation_config": {"eos_token_id": [3, 2]},
        "tokenizer_config": CHAT | {"eos_token": "c"},
    }
    assert fitting(model, target=settings, draft=settings).findings == ()


def test_a_draft_that_ends_texts_elsewhere_gets_the_targets_list(model):
    finding = only(fitting(model, draft={"config": tiny(eos_token_id=2)}))
    assert (finding.id, finding.repairable) == ("eos.differs", True)


def test_a_target_without_an_end_of_text_is_named(model):
    none = {"eos_token_id": None}
    report = fitting(model, target={"config": target_config() | none}, draft={"config": tiny(**none)})
    assert said(report) == {"eos.missing": "warning"}


def test_an_end_of_text_beyond_the_vocabulary_refuses_the_pair(model):
    far = {"eos_token_id": 4}
    report = fitting(model, target={"config": target_config() | far}, draft={"config": tiny(**far)})
    assert said(report)["eos.range"] == "error"


BOS = {
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "c", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    }
}


def test_different_tokens_around_a_text_are_named(model):
    finding = only(fitting(model, draft={"tokenizer": TOKENIZER | BOS}))
    assert finding.id == "bos.differs"
    assert "the target puts nothing, the draft was trained with c …" in finding.message


def test_a_start_of_text_that_the_two_files_disagree_on_is_named(model):
    settings = {"tokenizer_config": CHAT | {"add_bos_token": True}}
    assert said(fitting(model, target=settings)) == {"bos.rule": "warning"}


def test_a_template_that_writes_the_start_of_text_itself_is_noted(model):
    settings = {
        "tokenizer": TOKENIZER | BOS,
        "tokenizer_config": {"bos_token": "c", "chat_template": "{{ bos_token }}{{ messages }}"},
    }
    assert said(fitting(model, target=settings, draft=settings)) == {"bos.double": "note"}


@pytest.mark.parametrize(
    ("target", "draft", "findings"),
    [
        (None, None, {"chat.missing": "note"}),
        ("{{ a }}", None, {"chat.draft": "warning"}),
        ("{{ a }}", "{{ b }}", {"chat.differs": "note"}),
        ("{{ a }}", "{{ a }}\n", {}),
    ],
)
def test_chat_templates_are_compared(model, target, draft, findings):
    report = fitting(
        model,
        target={"tokenizer_config": {"chat_template": target}},
        draft={"tokenizer_config": {"chat_template": draft}},
    )
    assert said(report) == findings
    assert report.ok


@pytest.mark.parametrize(("layers", "finding"), [(6, None), (12, "ratio.size"), (60, "ratio.size")])
def test_a_draft_of_more_than_a_fifth_is_warned_about(model, layers, finding):
    report = fitting(model, draft={"config": tiny(num_hidden_layers=layers)})
    assert list(said(report)) == ([finding] if finding else [])


@pytest.mark.parametrize(("layers", "words"), [(12, "only pays while more than"), (40, "cannot save time")])
def test_the_warning_about_size_says_when_the_draft_still_pays(model, layers, words):
    assert words in only(fitting(model, draft={"config": tiny(num_hidden_layers=layers)})).message


def test_another_family_and_code_of_its_own_are_noted(model):
    config = tiny(model_type="qwen2", auto_map={"AutoModelForCausalLM": "modeling.Evil"})
    assert said(fitting(model, draft={"config": config})) == {"family.differs": "note", "draft.code": "note"}


def test_the_worst_finding_comes_first(model):
    report = fitting(
        model,
        target={"config": target_config() | {"eos_token_id": 9}, "dtype": "F16"},
        draft={"tokenizer_config": {}},
    )
    severities = [finding.severity for finding in report.findings]
    assert severities == sorted(severities, key=["error", "warning", "note"].index)
    assert set(severities) == {"error", "warning", "note"}


def test_every_warning_and_error_says_what_to_do_and_what_build_does(model):
    report = fitting(
        model,
        target={
            "config": target_config() | {"eos_token_id": [9, 3]},
            "generation_config": {"eos_token_id": 2},
        },
        draft={"config": tiny(vocab_size=6, max_position_embeddings=10), "tokenizer_config": {}},
    )
    assert len(report.findings) > 4
    assert all(finding.repair for finding in report.findings if finding.severity != "note")
    assert all(finding.repair.startswith("build ") for finding in report.findings if finding.repairable)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 2**40)
    | st.floats(allow_nan=False)
    | st.text("a1[", max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(READ), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=250, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(changes=st.dictionaries(st.sampled_from(READ), JSON, min_size=1, max_size=3))
def test_no_value_in_config_json_makes_the_doctor_stumble(small_pair, changes):
    target, draft = small_pair()
    damaged = replace(draft, config={**draft.config, **changes}, generation_config=changes)
    for pair in ((target, damaged), (damaged, target)):
        json.dumps(check(*pair).as_dict())


@pytest.fixture
def small_pair(model: Maker) -> Callable[[], tuple[Checkpoint, Checkpoint]]:
    pair = model(tiny(num_hidden_layers=3), tokenizer_config=CHAT), model(tiny(), tokenizer_config=CHAT)
    return lambda: pair


def test_the_demo_pair_can_be_built_and_its_report_is_json(demo_pair):
    report = check(*(open_checkpoint(demo_pair / side) for side in ("target", "draft")))
    assert report.ok
    assert json.loads(json.dumps(report.as_dict()))["ok"] is True
    assert report.eos_token_ids == (2,)
    assert report.target.strings == report.target.vocab_rows == 4096
