"""The commands of trtllm-build against its own command line, held as data; and what excludes what."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trtllm_build_flags import FLAGS

from trtspec.build.options import BuildOptions
from trtspec.build.quantize.pair_quantizer import PairQuantization
from trtspec.build.runtimes.tensorrt.commands import BuildCommand, build_command
from trtspec.build.runtimes.tensorrt.conflicts import (
    Model,
    gpu_faults,
    length_faults,
    model_faults,
    option_faults,
    token_faults,
)
from trtspec.build.runtimes.tensorrt.expectations import Expectation, as_json, expectations
from trtspec.build.runtimes.tensorrt.options import TensorrtOptions

TARGET = Model("target", "LlamaForCausalLM", "bfloat16", None, False, 1, 1, 8192)
DRAFT = replace(TARGET, role="draft")
FP8_TARGET, FP8_DRAFT = (replace(model, quantization="FP8") for model in (TARGET, DRAFT))


def options(**changes: Any) -> BuildOptions:
    """Options of the runtime; those of TensorRT-LLM are told from the others by their name."""
    known = {field.name for field in fields(TensorrtOptions)}
    ours = {name: changes.pop(name) for name in list(changes) if name in known}
    return BuildOptions(runtime="tensorrt", tensorrt=TensorrtOptions(**ours), **changes)


def flags(model: Model, length: int = 4096, **changes: Any) -> dict[str, str]:
    return dict(build_command(model, options(**changes), length).flags)


def is_accepted(argv: tuple[str, ...]) -> bool:
    """Whether the real program would take these words."""
    words = list(argv[1:])
    while words:
        flag = FLAGS.get(words.pop(0).removeprefix("--"))
        if flag is None:
            return False
        if flag.switch:
            continue
        value = words.pop(0)
        if flag.choices and value not in flag.choices:
            return False
        flag.kind(value)
    return True


choices = st.fixed_dictionaries(
    {
        "acceptance": st.sampled_from(["tokens", "logits"]),
        "logits_dtype": st.sampled_from(["float32", "float16"]),
        "max_num_tokens": st.none() | st.integers(1, 1 << 20),
        "opt_num_tokens": st.none() | st.integers(1, 1 << 20),
        "tokens_per_block": st.sampled_from([16, 32, 64, 128]),
        "gemm_plugin": st.sampled_from([None, "auto", "fp8", "disable"]),
        **{
            name: st.booleans()
            for name in (
                *("low_latency_gemm", "gemm_swiglu", "fused_mlp", "reduce_fusion", "user_buffer"),
                "multiple_profiles",
            )
        },
        "workers": st.none() | st.integers(1, 64),
        "max_batch_size": st.integers(1, 4096),
        "max_draft_len": st.integers(1, 64),
    }
)
models = st.builds(
    Model,
    role=st.sampled_from(["target", "draft"]),
    architecture=st.sampled_from(["LlamaForCausalLM", "Qwen2ForCausalLM"]),
    dtype=st.sampled_from(["bfloat16", "float16"]),
    quantization=st.sampled_from([None, "FP8", "FP8_PER_CHANNEL_PER_TOKEN"]),
    fp8_cache=st.booleans(),
    tp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 2]),
    context=st.integers(4096, 1 << 17),
)


@given(models, choices)
def test_trtllm_build_takes_every_flag_and_value_that_is_ever_written(
    model: Model, chosen: dict[str, Any]
) -> None:
    command = build_command(model, options(**chosen), 4096)
    assert is_accepted(command.argv("a checkpoint", "an engine"))


@given(models, choices)
def test_a_command_is_read_back_as_it_was_written(model: Model, chosen: dict[str, Any]) -> None:
    command = build_command(model, options(**chosen), 4096)
    assert BuildCommand.parse(command.argv("x", "y")) == command


def test_the_target_takes_drafted_tokens_and_the_draft_does_not() -> None:
    target, draft = flags(TARGET, max_draft_len=5), flags(DRAFT, max_draft_len=5)
    assert (target["speculative_decoding_mode"], target["max_draft_len"]) == ("draft_tokens_external", "5")
    assert not {"speculative_decoding_mode", "max_draft_len"} & draft.keys()


@pytest.mark.parametrize("model", [TARGET, DRAFT, FP8_TARGET])
def test_caches_can_be_reused_on_every_engine(model: Model) -> None:
    wanted = {"kv_cache_type": "paged", "use_paged_context_fmha": "enable", "context_fmha": "enable"}
    assert wanted.items() <= flags(model).items()


def test_both_engines_hand_out_logits_where_they_decide() -> None:
    for model in (TARGET, DRAFT):
        assert "gather_generation_logits" in flags(model, acceptance="logits")
        assert "gather_generation_logits" not in flags(model)
        assert flags(model, logits_dtype="float16")["logits_dtype"] == "float16"


def test_inputs_are_as_long_as_sequences_and_the_draft_reaches_as_far_as_the_target() -> None:
    target, draft = flags(TARGET, 4096, max_draft_len=8), flags(DRAFT, 4096, max_draft_len=8)
    assert target["max_input_len"] == draft["max_input_len"] == "4096"
    # trtllm-build adds the 8 to the target itself.
    assert (target["max_seq_len"], draft["max_seq_len"]) == ("4096", "4104")
    assert target["max_batch_size"] == draft["max_batch_size"]
    assert flags(replace(DRAFT, context=4100), 4096)["max_seq_len"] == "4100"


@pytest.mark.parametrize(
    ("length", "changes", "tokens"),
    [
        (4096, {}, "8192"),
        (32768, {}, "32768"),  # a prompt in one go
        (1024, {"max_batch_size": 2048, "max_draft_len": 9}, "20480"),  # a round of all
        (2048, {"max_batch_size": 1}, "2048"),  # there are no more
        (32768, {"max_num_tokens": 8192}, "8192"),
    ],
)
def test_an_engine_computes_as_many_tokens_at_once_as_it_may_get(length, changes, tokens) -> None:
    assert flags(TARGET, length, **changes)["max_num_tokens"] == tokens


def test_kernels_follow_the_quantisation_of_each_engine() -> None:
    assert (flags(TARGET)["gemm_plugin"], flags(FP8_TARGET)["gemm_plugin"]) == ("auto", "disable")
    assert flags(TARGET, gemm_plugin="fp8")["gemm_plugin"] == "auto"
    assert flags(FP8_TARGET, gemm_plugin="fp8")["gemm_plugin"] == "fp8"
    fast = {"low_latency_gemm": True, "gemm_swiglu": True}
    kernels = {"low_latency_gemm_plugin": "fp8", "gemm_swiglu_plugin": "fp8"}
    assert kernels.items() <= flags(FP8_TARGET, **fast).items()
    assert not kernels.keys() & flags(TARGET, **fast).keys()
    rows = replace(TARGET, quantization="FP8_PER_CHANNEL_PER_TOKEN")
    assert (flags(rows)["use_fused_mlp"], flags(FP8_TARGET)["use_fused_mlp"]) == ("disable", "enable")


def test_fp8_attention_is_for_fp8_engines_with_an_fp8_cache() -> None:
    assert flags(replace(FP8_TARGET, fp8_cache=True))["use_fp8_context_fmha"] == "enable"
    assert flags(FP8_TARGET)["use_fp8_context_fmha"] == "disable"


def test_every_rank_has_a_worker_unless_said_otherwise() -> None:
    split = replace(TARGET, tp=4, pp=2)
    assert (flags(split)["workers"], flags(split, workers=2)["workers"]) == ("8", "2")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "float32"}, "float32 has no paged context attention"),
        ({"draft_tp": 0, "workers": -1}, "draft_tp, workers: expected at least 1"),
        ({"max_num_tokens": 143}, r"143 is less than a round .* 16 × \(8 \+ 1\) = 144"),
        ({"max_batch_size": 2**30}, "makes rounds of 9663676416 tokens, an engine counts to 2147483647"),
        ({"quantization": PairQuantization(calibrate=Path("x"))}, "--calibrate is for --quantization fp8"),
        ({"multiple_profiles": True, "opt_num_tokens": 16}, "leave --opt-num-tokens out"),
        ({"user_buffer": True}, "--user-buffer needs --reduce-fusion"),
        ({"gemm_swiglu": True, "fused_mlp": False}, "--gemm-swiglu needs --fused-mlp"),
        ({"low_latency_gemm": True, "gemm_plugin": "auto"}, "are for the same products"),
        ({"quantization": PairQuantization(max_kl=0.1)}, "measure on the cpu runtime"),
        ({"kv_cache": "fp8"}, "--kv-cache fp8 needs --quantization fp8"),
        ({"image": "other"}, "no container is asked for"),
        ({"acceptance": "both"}, "acceptance is 'both', expected one of tokens, logits"),
        ({"tokens_per_block": 48}, "tokens_per_block is 48, expected one of 16, 32, 64, 128"),
        ({"gemm_plugin": "float64"}, "gemm_plugin is 'float64'"),
    ],
)
def test_options_that_exclude_each_other_are_refused(changes: dict[str, Any], message: str) -> None:
    (fault,) = option_faults(options(**changes))
    assert re.search(message, fault)


@pytest.mark.parametrize(
    ("changes", "pair", "message"),
    [
        ({}, (replace(TARGET, dtype="float32"), DRAFT), "target's weights are float32"),
        ({}, (TARGET, replace(DRAFT, fp8_cache=True)), "draft has an FP8 cache without FP8 matrices"),
        (
            {"kv_cache": "fp8"},
            (replace(FP8_TARGET, fp8_cache=True), FP8_DRAFT),
            "the draft would not have an FP8 cache",
        ),
        ({"gemm_plugin": "fp8"}, (TARGET, DRAFT), "gemm-plugin fp8 is for FP8 engines"),
        ({"low_latency_gemm": True}, (TARGET, DRAFT), "low-latency-gemm is for FP8 engines"),
        ({"gemm_swiglu": True}, (TARGET, DRAFT), "gemm-swiglu is for FP8 engines"),
        ({"reduce_fusion": True}, (TARGET, DRAFT), "LlamaForCausalLM with --tp 1"),
        (
            {"reduce_fusion": True},
            (replace(TARGET, tp=2, architecture="Qwen2ForCausalLM"), DRAFT),
            "the target is Qwen2ForCausalLM",
        ),
        (
            {"reduce_fusion": True, "user_buffer": True},
            (replace(TARGET, tp=2), replace(DRAFT, tp=2)),
            "FP8 LlamaForCausalLM; the target is unquantised",
        ),
    ],
)
def test_options_that_do_not_suit_the_models_are_refused(changes, pair, message) -> None:
    (fault,) = model_faults(options(**changes), pair)
    assert message in fault


def test_what_suits_the_models_is_not_refused() -> None:
    on_ranks = tuple(replace(model, tp=2) for model in (FP8_TARGET, FP8_DRAFT))
    chosen = options(
        reduce_fusion=True, user_buffer=True, low_latency_gemm=True, gemm_swiglu=True, acceptance="logits"
    )
    assert option_faults(chosen) == model_faults(chosen, on_ranks) == gpu_faults(chosen, on_ranks, 90) == []
    assert model_faults(options(low_latency_gemm=True), (FP8_TARGET, DRAFT)) == []


def test_a_draft_that_reads_less_than_the_engines_hold_is_refused() -> None:
    short = replace(DRAFT, context=2048)
    (fault,) = length_faults(4096, (TARGET, short))
    assert "the draft reads 2048 tokens" in fault
    assert "--max-seq-len 2048" in fault
    assert length_faults(2048, (TARGET, short)) == []


def test_kernels_are_not_chosen_for_more_tokens_than_an_engine_computes() -> None:
    (fault,) = token_faults(options(opt_num_tokens=8193), 8192)
    assert fault == "--opt-num-tokens 8193 is more than --max-num-tokens, 8192"
    assert token_faults(options(opt_num_tokens=8192), 8192) == token_faults(options(), 8192) == []


@pytest.mark.parametrize(
    ("sm", "changes", "pair", "message"),
    [
        (75, {}, (TARGET, DRAFT), "SM80 or newer"),
        (86, {}, (FP8_TARGET, DRAFT), "FP8 engines need SM89"),
        (89, {"gemm_swiglu": True}, (FP8_TARGET, FP8_DRAFT), "for Hopper, SM90; this GPU is SM89"),
        (100, {"low_latency_gemm": True}, (FP8_TARGET, FP8_DRAFT), "no kernels for this GPU, SM100"),
        (
            103,
            {},
            (replace(TARGET, quantization="FP8_PER_CHANNEL_PER_TOKEN"), DRAFT),
            "target: FP8 with a scale for each row has no kernels",
        ),
    ],
)
def test_what_the_gpu_has_no_kernels_for_is_refused(sm, changes, pair, message) -> None:
    (fault,) = gpu_faults(options(**changes), pair, sm)
    assert message in fault


CHECKPOINT = {
    "architecture": "LlamaForCausalLM",
    "dtype": "bfloat16",
    "vocab_size": 1000,
    "mapping": {"tp_size": 2, "pp_size": 1, "world_size": 2},
    "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
}


def test_the_engine_has_to_say_what_the_command_asked() -> None:
    command = build_command(replace(TARGET, tp=2), options(acceptance="logits"), 4096)
    expected = {one.entry: one.value for one in expectations(command, CHECKPOINT)}
    assert expected["build_config.speculative_decoding_mode"] == 2
    assert expected["build_config.max_draft_len"] == 8
    # That trtllm-build lengthens the target by the tokens of a round, its source says.
    assert expected["build_config.max_seq_len"] == 4096 + 8
    assert expected["build_config.gather_generation_logits"] is True
    assert expected["build_config.plugin_config.use_paged_context_fmha"] is True
    assert expected["pretrained_config.mapping.tp_size"] == 2
    draft = {one.entry: one.value for one in expectations(build_command(DRAFT, options(), 4096), CHECKPOINT)}
    assert draft["build_config.speculative_decoding_mode"] == 1
    assert (draft["build_config.max_draft_len"], draft["build_config.max_seq_len"]) == (0, 4104)


@pytest.mark.parametrize(
    ("expected", "met", "unmet"),
    [
        (Expectation("x", 8), 8, 9),
        (Expectation("x", 8, "at least"), 9, 7),
        (Expectation("x", "paged"), "PAGED", "continuous"),
        (Expectation("x", False), None, True),
        (Expectation("x", True), True, None),
        (Expectation("x", None), None, "FP8"),
        (Expectation("x", "FP8"), "FP8", None),
    ],
)
def test_an_expectation_is_met_by_its_value_and_by_no_other(expected, met, unmet) -> None:
    assert expected.fault(met) is None
    assert str(expected.value) in (expected.fault(unmet) or "")


def test_expectations_can_be_written_as_json() -> None:
    command = build_command(TARGET, options(), 4096)
    written = json.loads(as_json(expectations(command, CHECKPOINT)))
    assert ["build_config.max_num_tokens", "at least", 8192] in written
