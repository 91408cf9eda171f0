"""The converter as a whole: what it refuses, what it leaves behind, splits of any shape, the command."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from round_trip import read_back
from safetensors.torch import load_file, save_file
from tiny_checkpoints import edit_config, logits, make_model, save
from transformers import AutoModelForCausalLM

import trtspec
from trtspec.build.checkpoint import open_checkpoint
from trtspec.build.convert.converter import convert
from trtspec.build.convert.elements import cast, is_finite, raw_view
from trtspec.build.convert.families import family_of
from trtspec.build.convert.linears import find_linears
from trtspec.build.convert.splitting import check_split
from trtspec.build.convert.tables import Dimensions
from trtspec.build.tensor_file import read_header
from trtspec.cli import main
from trtspec.errors import BuildError, CheckpointError, OutputError

TORCH = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}


def change_tensors(folder: Path, **changes: Any) -> None:
    """Put tensors into a checkpoint, or take them out with None; dots are written as double underscores."""
    file = folder / "model.safetensors"
    tensors = {**load_file(file), **{name.replace("__", "."): value for name, value in changes.items()}}
    kept = {name: value for name, value in tensors.items() if value is not None}
    save_file(kept, file, {"format": "pt"})


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return save(make_model("llama31"), tmp_path / "hf")


def assert_nothing_left(tmp_path: Path) -> None:
    assert {entry.name for entry in tmp_path.iterdir()} == {"hf"}


# What is refused


def test_an_unknown_architecture_lists_the_known_ones(llama: Path, tmp_path: Path) -> None:
    edit_config(llama, architectures=["BertModel"])
    with pytest.raises(CheckpointError, match=r"'BertModel' has no table; supported are GPT2LMHeadModel, "):
        convert(llama, tmp_path / "out")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["BertModel"]}, "architecture 'BertModel' has no table"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0, expected a positive integer"),
        ({"hidden_act": "quick_gelu"}, "hidden_act is 'quick_gelu'"),
    ],
)
def test_a_fault_of_config_json_names_the_file(
    llama: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    edit_config(llama, **changes)
    with pytest.raises((CheckpointError, BuildError)) as refused:
        convert(llama, tmp_path / "out")
    assert str(refused.value).startswith(f"{llama}/config.json: {message}")


@pytest.mark.parametrize("layers", [3, 5, 10**12])
def test_layers_that_the_weights_do_not_hold_are_refused_before_they_are_planned(
    llama: Path, tmp_path: Path, layers: int
) -> None:
    edit_config(llama, num_hidden_layers=layers)
    with pytest.raises(CheckpointError, match=rf"config\.json: {layers} layers, the weights hold 4; "):
        convert(llama, tmp_path / "out")
    with pytest.raises(CheckpointError, match="the weights hold 4"):
        find_linears(open_checkpoint(llama))


@pytest.mark.parametrize("format", ["trtllm", "hf"])
@pytest.mark.parametrize("method", ["gptq", "awq", "bitsandbytes", None, ["fp8"]])
def test_a_quantisation_that_is_not_read_is_refused_by_its_name(
    llama: Path, tmp_path: Path, format: str, method: object
) -> None:
    edit_config(llama, quantization_config={"quant_method": method})
    expected = re.escape(f"quantised by {method}; convert an unquantised or FP8 checkpoint")
    with pytest.raises(BuildError, match=expected):
        convert(llama, tmp_path / "out", format=format)


def test_missing_tensors_are_counted_and_the_first_is_named(llama: Path, tmp_path: Path) -> None:
    change_tensors(llama, model__norm__weight=None, model__layers__1__mlp__up_proj__weight=None)
    with pytest.raises(
        CheckpointError, match=r"2 tensors, first 'model\.layers\.1\.mlp\.up_proj\.weight', missing"
    ):
        convert(llama, tmp_path / "out")


def test_left_over_tensors_are_counted_and_the_first_is_named(llama: Path, tmp_path: Path) -> None:
    change_tensors(llama, model__layers__0__self_attn__q_proj__bias=torch.zeros(64), extra=torch.zeros(1))
    with pytest.raises(CheckpointError, match=r"2 tensors, first 'extra', without a place"):
        convert(llama, tmp_path / "out")


def test_rotary_buffers_of_old_checkpoints_are_no_left_overs(llama: Path, tmp_path: Path) -> None:
    change_tensors(llama, model__layers__0__self_attn__rotary_emb__inv_freq=torch.zeros(8))
    convert(llama, tmp_path / "out")


def test_a_shape_that_config_json_does_not_imply_is_refused(llama: Path, tmp_path: Path) -> None:
    edit_config(llama, num_key_value_heads=4)
    with pytest.raises(
        CheckpointError, match=r"k_proj\.weight has shape \[32, 32\], config\.json implies \[64, 32\]"
    ):
        convert(llama, tmp_path / "out")


def test_quantised_weights_are_refused(llama: Path, tmp_path: Path) -> None:
    codes = torch.zeros(48, 32, dtype=torch.float8_e4m3fn)
    change_tensors(llama, model__layers__0__mlp__up_proj__weight=codes)
    with pytest.raises(
        CheckpointError, match=r"1 tensor, first .*, of type F8_E4M3; expected F16, BF16, F32"
    ):
        convert(llama, tmp_path / "out")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_weight_that_is_not_finite_is_named_and_nothing_is_published(
    tmp_path: Path, bad: float, dtype: torch.dtype
) -> None:
    source = save(make_model("llama31", dtype), tmp_path / "hf")
    weight = load_file(source / "model.safetensors")["model.layers.1.mlp.down_proj.weight"]
    weight[30, 5] = bad
    change_tensors(source, model__layers__1__mlp__down_proj__weight=weight)
    with pytest.raises(
        CheckpointError, match=r"down_proj\.weight' holds NaN or Inf, first at row 30, column 5"
    ):
        convert(source, tmp_path / "out", tp=2)
    assert_nothing_left(tmp_path)


@pytest.mark.parametrize(
    ("value", "source", "target"),
    [
        (65520.0, torch.bfloat16, "float16"),
        (-1e5, torch.float32, "float16"),
        (3.4e38, torch.float32, "bfloat16"),
    ],
)
def test_a_cast_that_overflows_is_refused_with_the_tensors_name(
    tmp_path: Path, value: float, source: torch.dtype, target: str
) -> None:
    folder = save(make_model("llama31", source), tmp_path / "hf")
    weight = load_file(folder / "model.safetensors")["model.layers.0.mlp.up_proj.weight"]
    weight[1, 2] = value
    change_tensors(folder, model__layers__0__mlp__up_proj__weight=weight)
    convert(folder, tmp_path / "kept")
    shutil.rmtree(tmp_path / "kept")
    with pytest.raises(BuildError, match=rf"up_proj\.weight' holds values too large for {target}"):
        convert(folder, tmp_path / "out", dtype=target)
    assert_nothing_left(tmp_path)


def test_the_largest_float16_still_fits(tmp_path: Path) -> None:
    folder = save(make_model("llama31"), tmp_path / "hf")
    change_tensors(folder, model__norm__weight=torch.full((32,), 65519.0))
    convert(folder, tmp_path / "out", dtype="float16")
    written = load_file(tmp_path / "out" / "rank0.safetensors")["transformer.ln_f.weight"]
    assert written.tolist() == [65504.0] * 32


def test_a_file_that_shrinks_while_it_is_read_is_refused(llama: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(llama)
    os.truncate(llama / "model.safetensors", 40_000)
    with pytest.raises(CheckpointError, match="ends inside tensor"):
        convert(checkpoint, tmp_path / "out")
    assert_nothing_left(tmp_path)


def test_a_missing_number_in_config_json_is_named(llama: Path, tmp_path: Path) -> None:
    edit_config(llama, intermediate_size=None)
    with pytest.raises(CheckpointError, match=r"config\.json: intermediate_size is missing"):
        convert(llama, tmp_path / "out")


# Where the head comes from


def test_a_lost_head_is_an_error_not_a_tied_one(llama: Path, tmp_path: Path) -> None:
    change_tensors(llama, lm_head__weight=None)
    with pytest.raises(CheckpointError, match=r"no lm_head\.weight, and config\.json does not tie it"):
        convert(llama, tmp_path / "out")


@pytest.mark.parametrize("pp", [1, 2])
def test_a_tied_head_is_written_out_from_the_embedding(tmp_path: Path, pp: int) -> None:
    source = save(make_model("qwen25_tied"), tmp_path / "hf")
    assert "lm_head.weight" not in load_file(source / "model.safetensors")
    made = convert(source, tmp_path / "out", pp=pp)
    found = read_back(tmp_path / "out")
    assert made.tied
    assert torch.equal(found["lm_head.weight"], found["model.embed_tokens.weight"])


def test_a_stored_head_equal_to_the_embedding_is_tied(tmp_path: Path) -> None:
    source = save(make_model("qwen25_tied"), tmp_path / "hf")
    embedding = load_file(source / "model.safetensors")["model.embed_tokens.weight"]
    change_tensors(source, lm_head__weight=embedding.clone())
    assert convert(source, tmp_path / "out").tied


def test_a_head_that_nearly_equals_the_embedding_is_its_own(tmp_path: Path) -> None:
    source = save(make_model("qwen25_tied"), tmp_path / "hf")
    head = load_file(source / "model.safetensors")["model.embed_tokens.weight"].clone()
    head[100, 31] += 2**-10
    change_tensors(source, lm_head__weight=head)
    made = convert(source, tmp_path / "out")
    assert made.tied is False
    assert "the two differ" in made.notes[0]
    assert torch.equal(read_back(tmp_path / "out")["lm_head.weight"], head)
    # As the reference does.
    assert torch.equal(AutoModelForCausalLM.from_pretrained(source).lm_head.weight.detach(), head)


def test_an_untied_head_equal_to_the_embedding_stays_untied(llama: Path, tmp_path: Path) -> None:
    embedding = load_file(llama / "model.safetensors")["model.embed_tokens.weight"]
    change_tensors(llama, lm_head__weight=embedding.clone())
    assert convert(llama, tmp_path / "out").tied is False
    assert json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"] is False


def test_the_vocabulary_is_the_embeddings_own(llama: Path, tmp_path: Path) -> None:
    edit_config(llama, vocab_size=96)
    convert(llama, tmp_path / "out", tp=2)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["vocab_size"] == 101
    head = load_file(tmp_path / "out" / "rank1.safetensors")["lm_head.weight"]
    assert head.shape == (51, 32)
    assert not head[50].any()


# Splits


@pytest.mark.parametrize(
    ("tp", "pp", "message"),
    [
        (3, 1, "--tp 3: 4 attention heads do not divide by 3; possible near it: 2 and 4"),
        (8, 1, "--tp 8: 4 attention heads do not divide by 8; possible near it: 4"),
        (5000, 1, "expected 1 to 1024 ranks; possible near it: 4"),
        (1, 3, "--pp 3: the number of layers, 4, does not divide by 3; possible near it: 2 and 4"),
        (1, 0, "--pp 0: .*; possible near it: 1"),
        (0, 1, "--tp 0: .*; possible near it: 1"),
    ],
)
def test_an_impossible_split_names_the_nearest_possible_ones(
    llama: Path, tmp_path: Path, tp: int, pp: int, message: str
) -> None:
    with pytest.raises(BuildError, match=message):
        convert(llama, tmp_path / "out", tp=tp, pp=pp)


@pytest.mark.parametrize(
    ("architecture", "changes", "tp", "reason"),
    [
        ("Qwen2ForCausalLM", {"heads": 28, "kv_heads": 4}, 7, "4 kv heads neither divide by 7 nor repeat"),
        ("LlamaForCausalLM", {"heads": 12, "kv_heads": 6}, 4, "6 kv heads neither divide by 4 nor repeat"),
        ("LlamaForCausalLM", {"intermediate": 6}, 4, "intermediate size 6 does not divide by 4"),
        ("GemmaForCausalLM", {"vocabulary": 102}, 4, "vocabulary 102, .* does not divide by 4"),
    ],
)
def test_each_reason_against_a_split_is_given(
    architecture: str, changes: dict[str, int], tp: int, reason: str
) -> None:
    sizes = {
        "hidden": 32,
        "intermediate": 168,
        "layers": 2,
        "heads": 4,
        "kv_heads": 2,
        "head_size": 8,
        "vocabulary": 104,
        "positions": 64,
    }
    with pytest.raises(BuildError, match=reason):
        check_split(family_of(architecture), Dimensions(**{**sizes, **changes}), tp, 1)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    hidden=st.integers(1, 12),
    head_size=st.sampled_from([2, 4, 6]),
    kv_heads=st.integers(1, 6),
    group=st.integers(1, 4),
    intermediate=st.integers(1, 24),
    vocabulary=st.integers(1, 40),
    layers=st.integers(1, 4),
    tp=st.sampled_from([1, 2, 3, 4, 6, 8]),
    pp=st.sampled_from([1, 2, 3]),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32]),
)
def test_any_shape_reads_back_or_is_refused_for_its_split(
    tmp_path_factory: pytest.TempPathFactory,
    hidden: int,
    head_size: int,
    kv_heads: int,
    group: int,
    intermediate: int,
    vocabulary: int,
    layers: int,
    tp: int,
    pp: int,
    dtype: torch.dtype,
) -> None:
    heads, root = kv_heads * group, tmp_path_factory.mktemp("any")
    shapes = {
        "self_attn.q_proj": (heads * head_size, hidden),
        "self_attn.k_proj": (kv_heads * head_size, hidden),
        "self_attn.v_proj": (kv_heads * head_size, hidden),
        "self_attn.o_proj": (hidden, heads * head_size),
        "mlp.gate_proj": (intermediate, hidden),
        "mlp.up_proj": (intermediate, hidden),
        "mlp.down_proj": (hidden, intermediate),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    tensors = {
        f"model.layers.{layer}.{name}.weight": torch.randn(shape).to(dtype)
        for layer in range(layers)
        for name, shape in shapes.items()
    }
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = torch.randn(vocabulary, hidden).to(dtype)
    tensors["model.norm.weight"] = torch.randn(hidden).to(dtype)
    source = root / "hf"
    source.mkdir()
    save_file(tensors, source / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_size,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
    }
    (source / "config.json").write_text(json.dumps(config))

    possible = (
        heads % tp == 0
        and (kv_heads % tp == 0 or tp % kv_heads == 0)
        and intermediate % tp == 0
        and layers % pp == 0
    )
    if not possible:
        with pytest.raises(BuildError, match="possible near it"):
            convert(source, root / "out", tp=tp, pp=pp)
        return
    convert(source, root / "out", tp=tp, pp=pp)
    found = read_back(root / "out")
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_tensors_of_many_blocks_are_split_across_ranks_at_any_row(tmp_path: Path) -> None:
    # 4001 rows of 1 KiB: blocks of 1 MiB end inside the ranks' shares.
    source = save(
        make_model("llama31", hidden_size=256, intermediate_size=2052, vocab_size=4001), tmp_path / "hf"
    )
    convert(source, tmp_path / "out", tp=4, workers=3)
    found = read_back(tmp_path / "out")
    for name, tensor in load_file(source / "model.safetensors").items():
        assert torch.equal(found[name], tensor), name


def test_a_row_longer_than_a_block_is_carried_whole(tmp_path: Path) -> None:
    source = save(
        make_model("llama31", hidden_size=4, intermediate_size=300_000, num_hidden_layers=1), tmp_path / "hf"
    )
    convert(source, tmp_path / "out", tp=2)
    found = read_back(tmp_path / "out")
    name = "model.layers.0.mlp.down_proj.weight"
    assert torch.equal(found[name], load_file(source / "model.safetensors")[name])


# Bytes and types


def all_patterns(dtype: str) -> Any:
    return np.arange(1 << 16, dtype=np.uint16), torch.arange(1 << 16).to(torch.uint16).view(TORCH[dtype])


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_finite_is_torchs_word_for_every_16_bit_pattern(dtype: str) -> None:
    bits, values = all_patterns(dtype)
    found = [is_finite(bits[i : i + 1], dtype) for i in range(len(bits))]
    assert found == torch.isfinite(values).tolist()


@pytest.mark.parametrize("target", ["F16", "BF16", "F32"])
@pytest.mark.parametrize("source", ["F16", "BF16"])
@pytest.mark.parametrize("plus", [0.0, 1.0])
def test_casting_every_16_bit_number_is_torchs_cast(source: str, target: str, plus: float) -> None:
    bits, values = all_patterns(source)
    numbers = ~torch.isnan(values)
    expected = values[numbers].float()
    # Minus zero plus zero is zero, so nothing is added where nothing should be.
    expected = (expected + plus if plus else expected).to(TORCH[target])
    found = cast(bits[numbers.numpy()], source, target, plus)
    kind = {2: torch.int16, 4: torch.int32}[found.itemsize]
    assert torch.equal(torch.from_numpy(found.view(f"i{found.itemsize}").copy()), expected.view(kind))


@given(st.lists(st.integers(0, (1 << 32) - 1), min_size=1, max_size=64), st.sampled_from(["F16", "BF16"]))
def test_narrowing_float32_rounds_like_torch(patterns: list[int], target: str) -> None:
    bits = np.array(patterns, np.uint32)
    values = torch.from_numpy(bits.view(np.float32).copy())
    assert is_finite(bits, "F32") == bool(torch.isfinite(values).all())
    numbers = ~torch.isnan(values)
    found = cast(bits[numbers.numpy()], "F32", target)
    assert torch.equal(
        torch.from_numpy(found.view(np.int16).copy()), values[numbers].to(TORCH[target]).view(torch.int16)
    )


def test_ties_round_to_even() -> None:
    # Exactly between two bfloat16 numbers, from an even and from an odd one.
    bits = np.array([0x3F80_8000, 0x3F81_8000], np.uint32)
    assert cast(bits, "F32", "BF16").tolist() == [0x3F80, 0x3F82]


def test_types_that_are_no_floats_are_always_finite() -> None:
    assert is_finite(raw_view(memoryview(b"\xff" * 16), 8), "I64")
    assert not is_finite(raw_view(memoryview(b"\xff" * 16), 8), "F64")


# The output


def test_same_inputs_give_the_same_bytes_whatever_the_workers(tmp_path: Path) -> None:
    source = save(make_model("mixtral"), tmp_path / "hf")
    for name, workers in (("a", 1), ("b", 5)):
        convert(source, tmp_path / name, tp=2, pp=2, workers=workers)
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


def test_every_tensor_begins_at_a_multiple_of_its_elements_size(tmp_path: Path) -> None:
    # Odd counts of 16-bit numbers lie before a float32 router, by name.
    sizes = {"hidden_size": 33, "head_dim": 16, "vocab_size": 102}
    source = save(make_model("mixtral", torch.bfloat16, **sizes), tmp_path / "hf")
    convert(source, tmp_path / "out")
    header = read_header(tmp_path / "out" / "rank0.safetensors")
    assert {tensor.dtype for tensor in header.values()} == {"BF16", "F32"}
    assert all(tensor.offset % tensor.element_bytes == 0 for tensor in header.values())


def test_another_user_can_read_what_was_written(llama: Path, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        convert(llama, tmp_path / "out")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o755
    assert {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "out").iterdir()} == {0o644}


@pytest.mark.parametrize("kind", ["folder", "file", "dangling link"])
def test_an_output_that_exists_is_refused_and_untouched(llama: Path, tmp_path: Path, kind: str) -> None:
    output = tmp_path / "out"
    if kind == "folder":
        output.mkdir()
    elif kind == "file":
        output.write_text("mine")
    else:
        output.symlink_to(tmp_path / "nowhere")
    with pytest.raises(OutputError, match="exists already"):
        convert(llama, output)
    assert not output.is_dir() or not list(output.iterdir())


def test_an_output_among_sources_is_refused(llama: Path) -> None:
    for place in (Path(trtspec.__file__).parent / "out", llama / "out"):
        with pytest.raises(OutputError, match="lies inside"):
            convert(llama, place)


def test_a_disk_that_says_no_is_an_error_of_ours(llama: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be made"):
        convert(llama, tmp_path / "file" / "out")


def test_progress_counts_every_source_byte(llama: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    convert(llama, tmp_path / "out", workers=2, progress=lambda done, total: seen.append((done, total)))
    size = sum(tensor.size_bytes for tensor in open_checkpoint(llama).tensors.values())
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (size, size)


def test_an_interrupted_conversion_leaves_nothing(llama: Path, tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(llama, tmp_path / "out", progress=interrupt)
    assert_nothing_left(tmp_path)


# The Hugging Face format


def test_hf_keeps_every_byte_and_file(tmp_path: Path) -> None:
    source = save(make_model("gemma2", torch.bfloat16), tmp_path / "hf", max_shard_size="20KB")
    (source / "tokenizer.json").write_text("{}")
    (source / "modeling_evil.py").write_text("")
    convert(source, tmp_path / "out", format="hf")
    expected = {file.name for file in source.iterdir()} - {"modeling_evil.py"}
    assert {file.name for file in (tmp_path / "out").iterdir()} == expected
    assert (tmp_path / "out" / "config.json").read_bytes() == (source / "config.json").read_bytes()
    for file in source.glob("*.safetensors"):
        written = load_file(tmp_path / "out" / file.name)
        original = load_file(file)
        assert written.keys() == original.keys()
        assert all(torch.equal(written[name], tensor) for name, tensor in original.items())


@pytest.mark.parametrize("family", ["llama31", "mixtral"])
def test_hf_cast_is_what_transformers_would_load(tmp_path: Path, family: str) -> None:
    source = save(make_model(family), tmp_path / "hf", max_shard_size="20KB")
    made = convert(source, tmp_path / "out", format="hf", dtype="bfloat16")
    assert made.dtype == "bfloat16"
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert found.dtype == torch.bfloat16
    expected = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    assert torch.equal(logits(found), logits(expected))


def test_hf_carries_types_it_does_not_know(llama: Path, tmp_path: Path) -> None:
    others = {
        "a": torch.arange(-3, 7).reshape(2, 5),
        "b": torch.tensor([True, False]),
        "c": torch.ones(3, 3).to(torch.float8_e4m3fn),
        "d": torch.tensor(3.5, dtype=torch.float64),
        "e": torch.zeros(0, 4),
    }
    change_tensors(llama, **others)
    convert(llama, tmp_path / "out", format="hf", dtype="float16")
    written = load_file(tmp_path / "out" / "model.safetensors")
    for name in "abcd":
        assert written[name].dtype == others[name].dtype
        assert torch.equal(
            written[name].reshape(-1).view(torch.uint8), others[name].reshape(-1).view(torch.uint8)
        )
    assert written["e"].shape == (0, 4)


def test_hf_refuses_to_cast_quantised_weights(llama: Path, tmp_path: Path) -> None:
    edit_config(llama, quantization_config={"quant_method": "fp8"})
    with pytest.raises(BuildError, match="would break their scales"):
        convert(llama, tmp_path / "out", format="hf", dtype="float16")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "hf", "tp": 2}, "a Hugging Face folder is split by its runtime"),
        ({"format": "gguf"}, "format is 'gguf', expected one of trtllm, hf"),
        ({"dtype": "int4"}, "dtype is 'int4', expected one of float16, bfloat16, float32"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    llama: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(BuildError, match=message):
        convert(llama, tmp_path / "out", **options)


# The command


def test_the_command_converts_and_says_what_it_made(
    demo_pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["convert", str(demo_pair / "draft"), "--output", str(tmp_path / "out"), "--tp", "2"])
    printed = capsys.readouterr()
    assert re.fullmatch(
        rf"{tmp_path}/out: LlamaForCausalLM, bfloat16, \d+ tensors, [\d.]+ MB, tp 2 x pp 1\n", printed.out
    )
    assert printed.err == ""
    assert {file.name for file in (tmp_path / "out").iterdir()} == {
        "config.json",
        "rank0.safetensors",
        "rank1.safetensors",
    }


def test_the_command_prints_one_json_object(
    demo_pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["convert", str(demo_pair / "draft"), "--output", str(tmp_path / "out"), "--format", "hf", "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert printed["output"] == str(tmp_path / "out")
    assert (printed["format"], printed["dtype"], printed["tied"]) == ("hf", "bfloat16", None)


def test_the_command_tells_notes_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = save(make_model("mistral"), tmp_path / "hf")
    edit_config(source, sliding_window=64)
    capsys.readouterr()
    main(["convert", str(source), "--output", str(tmp_path / "out")])
    assert capsys.readouterr().err.startswith("note: attention reaches 64 tokens back")


@pytest.mark.parametrize(
    "arguments", [["--dtype", "half"], ["--tp", "0"], ["--format", "onnx"], ["--quantization", "int4"]]
)
def test_wrong_usage_exits_2(demo_pair: Path, tmp_path: Path, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["convert", str(demo_pair / "draft"), "--output", str(tmp_path / "out"), *arguments])
    assert stopped.value.code == 2


def test_an_output_must_be_named(demo_pair: Path) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["convert", str(demo_pair / "draft")])
    assert stopped.value.code == 2


def test_what_cannot_be_converted_exits_1_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["convert", str(tmp_path), "--output", str(tmp_path / "out")])
    assert stopped.value.code == 1
    assert capsys.readouterr().err == (
        f"trtspec: {tmp_path}/config.json: missing; expected a Hugging Face checkpoint\n"
    )
