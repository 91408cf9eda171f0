"""The memory plan against published sizes, against a simulated load, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from published_models import PUBLISHED, QWEN

from trtspec.engines.memory.decoder import Decoder, decoder_of
from trtspec.engines.memory.gpus import GIB, GPUS, MIB, find_gpu
from trtspec.engines.memory.plan import DoesNotFitError, plan_memory
from trtspec.engines.memory.pools import HEADROOM, Deployment
from trtspec.engines.memory.ranks import Engine, Limits, rank_memories
from trtspec.engines.memory.result import MemoryPlan
from trtspec.errors import PlanError


def decoder(name: str) -> Decoder:
    return decoder_of(PUBLISHED[name][0], name)


def deployment(target: str, draft: str, gpu: str = "H100", **changes: Any) -> Deployment:
    """A deployment; keywords that an engine has go to the target."""
    engine = {key: changes.pop(key) for key in list(changes) if key in Engine.__dataclass_fields__}
    draft_tp = changes.pop("draft_tp", 1)
    limits = Limits(**{key: changes.pop(key) for key in list(changes) if key in Limits.__dataclass_fields__})
    return Deployment(
        target=Engine(decoder=decoder(target), **engine),
        draft=Engine(decoder=decoder(draft), tp=draft_tp),
        gpu=find_gpu(gpu),
        limits=limits,
        **changes,
    )


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_and_cache_are_those_that_are_published(name: str):
    _, parameters, kv_bytes = PUBLISHED[name]
    assert decoder(name).parameters == parameters
    (rank,) = rank_memories(Engine(decoder=decoder(name)), Limits(), is_target=True)
    assert rank.kv_per_token == kv_bytes


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name not in {"gpt2", "Phi-3-mini"}])
def test_one_rank_holds_two_bytes_a_parameter(name: str):
    (rank,) = rank_memories(Engine(decoder=decoder(name)), Limits(), is_target=True)
    assert rank.weights == 2 * PUBLISHED[name][1]


def test_fp8_halves_the_matrices_and_leaves_embedding_head_and_norms():
    # Llama-3.1-8B: the FP8 checkpoints on the hub hold 9.1 GB, of which 2.1 GB are embedding and head.
    engine = Engine(decoder=decoder("Llama-3.1-8B"), fp8=True)
    (rank,) = rank_memories(engine, Limits(), is_target=True)
    whole = 2 * 128256 * 4096 * 2
    norms = (2 * 32 + 1) * 4096 * 2
    assert rank.weights == 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + whole + norms
    assert rank.weights == pytest.approx(9.08e9, rel=0.001)


def test_each_of_four_ranks_holds_a_quarter_of_the_matrices_and_the_whole_embedding():
    engine = Engine(decoder=decoder("Llama-3.1-70B"), tp=4)
    ranks = rank_memories(engine, Limits(), is_target=True)
    embedding, norms = 128256 * 8192 * 2, (2 * 80 + 1) * 8192 * 2
    matrices = 80 * (2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672) * 2
    assert [rank.weights for rank in ranks] == [matrices // 4 + embedding + embedding // 4 + norms] * 4
    assert ranks[0].kv_per_token == 327_680 // 4


def test_kv_heads_are_repeated_where_there_are_fewer_than_ranks():
    """Qwen2.5-1.5B has two KV heads: four ranks hold one each, so twice as much in all."""
    one, four = (
        rank_memories(Engine(decoder=decoder("Qwen2.5-1.5B"), tp=tp), Limits(), is_target=False)
        for tp in (1, 4)
    )
    assert sum(rank.kv_per_token for rank in four) == 2 * one[0].kv_per_token
    one_kv_head = 28 * 2 * 1536 * 128 * 2
    matrices = decoder("Qwen2.5-1.5B").matrices * 2 - 2 * one_kv_head
    vectors, table = decoder("Qwen2.5-1.5B").vectors * 2, 151936 * 1536 * 2
    assert four[0].weights == matrices // 4 + one_kv_head + vectors + table + table // 4


def test_pipeline_stages_share_the_layers_and_only_the_last_makes_logits():
    first, last = rank_memories(Engine(decoder=decoder("Qwen2.5-7B"), pp=2), Limits(), is_target=True)
    assert first.kv_per_token + last.kv_per_token == 57_344
    assert (first.logits, first.weights) == (0, last.weights)  # one has the embedding, one the head
    assert last.logits > 0


def test_logits_grow_with_batch_draft_length_and_acceptance_by_probabilities():
    def logits(**limits: Any) -> int:
        engine = Engine(decoder=decoder("Llama-3.1-8B"))
        return rank_memories(engine, Limits(**limits), is_target=True)[0].logits

    row = 128256 * 4
    assert logits(max_batch_size=1, max_draft_len=4) == 3 * 5 * row
    assert logits(max_batch_size=8, max_draft_len=4) == 8 * 3 * 5 * row
    assert logits(max_batch_size=1, max_draft_len=4, use_draft_logits=True) == (3 * 5 + 8 + 2 * 5) * row


def test_activations_are_those_of_one_layer_for_all_tokens_of_a_pass():
    def activations(tp: int = 1, **limits: Any) -> int:
        engine = Engine(decoder=decoder("Llama-3.1-8B"), tp=tp)
        return rank_memories(engine, Limits(**limits), is_target=True)[0].activations

    hidden, split = 4 * 4096, 2 * (32 + 8) * 128 + 3 * 14336
    assert activations(max_num_tokens=8192) == 8192 * 2 * (hidden + split) * 1.25
    assert activations(tp=4, max_num_tokens=8192) == 8192 * 2 * (hidden + split // 4) * 1.25
    # A pass holds at least a round of every sequence.
    rounds = activations(max_num_tokens=1, max_batch_size=100, max_draft_len=7)
    assert rounds == 800 * 2 * (hidden + split) * 1.25


def test_ranks_that_talk_to_each_other_take_more():
    def runtime(tp: int, pp: int) -> int:
        engine = Engine(decoder=decoder("Llama-3.1-8B"), tp=tp, pp=pp)
        return rank_memories(engine, Limits(), is_target=True)[0].runtime

    assert (runtime(1, 1), runtime(2, 1), runtime(1, 2)) == (GIB, GIB * 3 // 2, GIB * 3 // 2)


def test_an_fp8_cache_takes_half():
    engine = Engine(decoder=decoder("Llama-3.1-8B"), fp8_kv_cache=True)
    (rank,) = rank_memories(engine, Limits(), is_target=True)
    assert rank.kv_per_token == 65_536


def test_the_reserve_covers_what_the_published_log_leaves_to_the_context():
    """TensorRT-LLM's "Memory Usage" page: of 79.10 GiB, 70.48 stay beside a 6695 MiB engine."""
    loaded = (6695 + 1134.01 + 43.29 + 180.30) * MIB
    assert (79.10 - 70.48) * GIB - loaded < GIB


def used(plan: MemoryPlan, order: tuple[str, str], saved: float, at_once: bool) -> tuple[list[int], float]:
    """Load both models on GPU 0 as TensorRT-LLM does; return tokens of each pool and the bytes used.

    Args:
        saved: share of the planned activations, logits and runtime that the models do not take.
        at_once: both models are loaded before the first takes its cache.
    """
    models = {"target": plan.target, "draft": plan.draft}
    ranks = {name: model.ranks[0] for name, model in models.items()}
    fixed = {name: rank.weights + (rank.fixed - rank.weights) * (1 - saved) for name, rank in ranks.items()}
    free = float(plan.gpu_memory_bytes - GIB) - (sum(fixed.values()) if at_once else 0)
    tokens = {}
    for name in order:
        free -= 0 if at_once else fixed[name]
        by_fraction = free * models[name].fraction_loaded_second / ranks[name].kv_per_token
        tokens[name] = min(int(by_fraction), models[name].max_tokens)
        free -= tokens[name] * ranks[name].kv_per_token
    return [tokens["target"], tokens["draft"]], free


@given(
    gpu=st.sampled_from(["L40S", "H100", "A100-80GB", "H200", "B200"]),
    draft=st.sampled_from(["Llama-3.2-1B", "Llama-3.1-8B"]),
    target=st.sampled_from(["Llama-3.1-8B", "Qwen2.5-7B"]),
    batch=st.integers(1, 64),
    order=st.sampled_from([("target", "draft"), ("draft", "target")]),
    saved=st.floats(0, 1),
    at_once=st.booleans(),
)
def test_both_caches_get_their_tokens_in_any_order_and_nothing_overflows(
    gpu, draft, target, batch, order, saved, at_once
):
    plan = plan_memory(deployment(target, draft, gpu, max_batch_size=batch))
    tokens, free = used(plan, order, saved, at_once)
    assert tokens == [plan.target.max_tokens, plan.draft.max_tokens]
    assert free >= 0


def test_without_a_limit_in_tokens_the_fraction_depends_on_the_order():
    plan = plan_memory(deployment("Llama-3.1-8B", "Llama-3.2-1B"))
    usable = plan.gpu_memory_bytes - GIB
    target, draft = plan.target, plan.draft
    free = usable - target.ranks[0].fixed
    assert target.kv_bytes(0) / free == pytest.approx(target.fraction_loaded_first, abs=1e-4)
    free -= target.kv_bytes(0) + draft.ranks[0].fixed
    assert draft.kv_bytes(0) / free == pytest.approx(draft.fraction_loaded_second, abs=1e-4)
    assert draft.fraction_loaded_first < 0.2 < 0.7 < draft.fraction_loaded_second


def test_models_that_share_a_gpu_hold_the_same_tokens_and_leave_the_headroom():
    plan = plan_memory(deployment("Llama-3.1-8B", "Llama-3.2-1B"))
    assert plan.target.max_tokens == plan.draft.max_tokens
    (gpu,) = plan.gpus
    assert gpu.fixed + gpu.kv_cache + gpu.left == plan.gpu_memory_bytes - GIB
    assert gpu.left / (gpu.kv_cache + gpu.left) == pytest.approx(HEADROOM, abs=1e-3)


def test_a_draft_on_one_gpu_beside_a_target_on_four_limits_the_cache_of_all():
    plan = plan_memory(deployment("Llama-3.1-70B", "Llama-3.2-1B", tp=4))
    assert (plan.target.gpus, plan.draft.gpus) == ((0, 1, 2, 3), (0,))
    assert plan.target.max_tokens == plan.draft.max_tokens
    assert plan.gpus[0].left < plan.gpus[1].left
    # Of the target's ranks the one beside the draft has least free: its fraction counts for all.
    target, draft = plan.target, plan.draft
    free = plan.gpu_memory_bytes - GIB - plan.gpus[0].fixed - draft.kv_bytes(0)
    assert target.kv_bytes(0) / free == pytest.approx(target.fraction_loaded_second, abs=1e-4)
    alone = plan_memory(deployment("Llama-3.1-70B", "Llama-3.2-1B", tp=4, placement="apart"))
    assert alone.draft.gpus == (4,)
    assert alone.target.max_tokens > plan.target.max_tokens
    assert alone.target.fraction_loaded_first == alone.target.fraction_loaded_second


def test_sequences_are_counted_in_whole_blocks_with_their_drafted_tokens():
    plan = plan_memory(deployment("Llama-3.1-8B", "Llama-3.2-1B", max_draft_len=5), lengths=(1000, 9999))
    assert [entry.length for entry in plan.concurrency] == [1000, 4096]
    assert plan.concurrency[0].by_memory == plan.target.max_tokens // 1024  # 1005 tokens are 32 blocks
    assert plan.concurrency[0].served == 16
    plan = plan_memory(deployment("Llama-3.1-8B", "Llama-3.2-1B", max_draft_len=5), lengths=(1020,))
    assert plan.concurrency[0].by_memory == plan.target.max_tokens // 1056  # 1025 tokens are 33


def test_the_pytorch_runtime_has_one_fraction_and_one_context():
    plan = plan_memory(deployment("Llama-3.1-8B", "Llama-3.2-1B", runtime="pytorch"))
    assert plan.draft.ranks[0].runtime == 0
    (gpu,) = plan.gpus
    free = plan.gpu_memory_bytes - GIB - gpu.fixed
    assert plan.shared_fraction == pytest.approx(gpu.kv_cache / free, abs=1e-4)
    with pytest.raises(PlanError, match="is split like it; leave --placement and --draft-tp out"):
        plan_memory(deployment("Llama-3.1-70B", "Llama-3.2-1B", tp=4, runtime="pytorch"))


def test_a_plan_that_cannot_fit_is_refused_with_what_would():
    with pytest.raises(DoesNotFitError, match=r"GPU 0 would hold 139\.3 GiB .* it has 78\.6 GiB") as refused:
        plan_memory(deployment("Llama-3.1-70B", "Llama-3.2-1B"))
    assert refused.value.would_fit == ("--target-quantization fp8", "--tp 2", "--gpu B200")


def test_more_ranks_are_advised_for_the_draft_too_where_it_is_split_like_the_target():
    with pytest.raises(DoesNotFitError) as refused:
        plan_memory(deployment("Llama-3.1-70B", "Llama-3.1-8B", "50GB"))
    assert "--tp 4" in refused.value.would_fit
    with pytest.raises(DoesNotFitError):  # the draft whole on one of the four GPUs
        plan_memory(deployment("Llama-3.1-70B", "Llama-3.1-8B", "50GB", tp=4, draft_tp=1))


def test_fp8_is_no_advice_where_the_gpu_has_none():
    with pytest.raises(DoesNotFitError) as refused:
        plan_memory(deployment("Llama-3.1-70B", "Llama-3.2-1B", "A100-80GB"))
    assert refused.value.would_fit == ("--tp 2", "--gpu B200")


def test_fewer_sequences_are_advised_where_their_logits_are_too_many():
    many = deployment("Llama-3.1-8B", "Llama-3.2-1B", max_batch_size=8192)
    with pytest.raises(DoesNotFitError) as refused:
        plan_memory(many)
    assert "--max-batch-size 2048" in refused.value.would_fit
    assert plan_memory(replace(many, limits=replace(many.limits, max_batch_size=2048)))


def test_where_one_change_is_too_little_two_are_looked_for():
    with pytest.raises(DoesNotFitError) as refused:
        plan_memory(deployment("Llama-3.1-70B", "Llama-3.1-8B", "L4", draft_tp=1))
    assert refused.value.would_fit
    assert all(" with " in change or change == "--gpu B200" for change in refused.value.would_fit)


@pytest.mark.parametrize(
    ("changes", "works"),
    [({"fp8": True}, True), ({"tp": 2, "draft_tp": 2}, True), ({"max_num_tokens": 2048}, False)],
)
def test_what_would_fit_does_fit(changes: dict[str, Any], works: bool):
    wanted = deployment("Llama-3.1-70B", "Llama-3.2-1B", **changes)
    if works:
        assert plan_memory(wanted).concurrency[-1].by_memory >= 1
    else:
        with pytest.raises(DoesNotFitError):
            plan_memory(wanted)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tp": 3}, "28 heads and 4 KV heads cannot be split over 3 ranks"),
        ({"tp": 14}, "28 heads and 4 KV heads cannot be split over 14 ranks"),
        ({"pp": 3}, "28 layers cannot be split into 3 equal stages"),
    ],
)
def test_splits_that_the_sizes_do_not_allow_are_refused(changes, message):
    with pytest.raises(PlanError, match=message):
        plan_memory(deployment("Qwen2.5-7B", "Qwen2.5-1.5B", **changes))


def test_gpus_are_found_by_name_or_size():
    assert find_gpu("h100") is GPUS["H100"]
    assert find_gpu("a100 80gb") is GPUS["A100-80GB"]
    assert find_gpu("NVIDIA H100 80GB HBM3") is GPUS["H100"]
    assert find_gpu("NVIDIA A100-SXM4-80GB") is GPUS["A100-80GB"]
    assert find_gpu("h100-sxm") is GPUS["H100"]
    assert find_gpu("80GB").memory_bytes == 80 * 10**9
    assert find_gpu("79.5GiB").memory_bytes == round(79.5 * GIB)
    assert find_gpu(str(48 * GIB)).memory_bytes == 48 * GIB
    with pytest.raises(PlanError, match=r"^--gpu H101: unknown; did you mean H100\? known are L4, .* 80GB"):
        find_gpu("H101")


@pytest.mark.parametrize("text", ["0", "80", "80MB"])
def test_a_size_without_its_unit_is_no_gpu(text: str):
    with pytest.raises(
        PlanError, match=rf"^--gpu {text}: [\d,]+ bytes of memory; give the size with its unit"
    ):
        find_gpu(text)


def test_a_model_of_unknown_make_needs_its_weights_and_a_size_that_is_missing_is_named():
    with pytest.raises(PlanError, match="is of a MambaForCausalLM, whose parameters are only known from its"):
        decoder_of({**PUBLISHED["Qwen2.5-7B"][0], "architectures": ["MambaForCausalLM"]}, "m")
    with pytest.raises(PlanError, match=r"m: config\.json has no num_hidden_layers that is a positive"):
        decoder_of({**PUBLISHED["Qwen2.5-7B"][0], "num_hidden_layers": None}, "m")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"intermediate_size": None}, "no intermediate_size that is a positive number"),
        ({"intermediate_size": -1}, "says intermediate_size -1; expected 1 or more"),
        ({"head_dim": "128", "num_key_value_heads": 1.5}, "num_key_value_heads 1.5, head_dim '128'"),
        ({"max_position_embeddings": "32k"}, "max_position_embeddings '32k'"),
        ({"num_key_value_heads": 3}, "num_attention_heads 28, which cannot share num_key_value_heads 3"),
        (
            {"architectures": 3},
            "is of a model of no named class, whose parameters are only known from its weights",
        ),
    ],
)
def test_a_lone_config_with_a_size_that_is_none_is_refused(change: dict[str, Any], message: str):
    with pytest.raises(PlanError, match=message):
        decoder_of({**PUBLISHED["Qwen2.5-7B"][0], **change}, "m")


def test_the_config_of_a_compiled_engine_says_the_same_as_that_of_its_checkpoint():
    source = PUBLISHED["Qwen2.5-7B"][0]
    engine = {**source, "architecture": QWEN, "head_size": 128, "quantization": {"quant_algo": None}}
    del engine["architectures"]
    assert decoder_of({"pretrained_config": engine}, "m") == decoder_of(source, "m")


def test_a_plan_survives_json():
    plan = plan_memory(deployment("Llama-3.1-8B", "Llama-3.2-1B"))
    assert MemoryPlan.model_validate_json(plan.model_dump_json()) == plan


SLIDING = {"sliding_window": 1024, "layer_types": ["sliding_attention", "full_attention"]}


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({}, None),
        ({"sliding_window": None}, None),
        ({"model_type": "mistral", "sliding_window": 1024}, 1024),
        ({"model_type": "qwen2", "sliding_window": 1024}, None),
        ({"model_type": "qwen2", "sliding_window": 1024, "use_sliding_window": False}, None),
        ({"model_type": "qwen2", **SLIDING, "use_sliding_window": True}, 1024),
        (
            {"model_type": "qwen2", "sliding_window": 9, "use_sliding_window": True, "max_window_layers": 28},
            None,
        ),
        (
            {"model_type": "qwen2", "sliding_window": 9, "use_sliding_window": True, "max_window_layers": 21},
            9,
        ),
        ({"model_type": "gemma3_text", **SLIDING}, 1024),
        ({"model_type": "gemma3_text", **SLIDING, "layer_types": ["full_attention"] * 28}, None),
    ],
)
def test_a_window_is_one_that_some_layer_has(changes: dict[str, Any], window: int | None):
    config = {**PUBLISHED["Qwen2.5-7B"][0]}
    for name in ("model_type", "sliding_window", "use_sliding_window", "max_window_layers", "layer_types"):
        config.pop(name, None)
    assert config["num_hidden_layers"] == 28
    assert decoder_of({**config, **changes}, "model").window == window


def test_a_window_shorter_than_sequences_is_a_note_and_changes_no_number():
    plain = deployment("Qwen2.5-7B", "Qwen2.5-1.5B", max_seq_len=4096)
    windowed = replace(plain.target, decoder=replace(plain.target.decoder, window=1024))
    plan = plan_memory(replace(plain, target=windowed))
    (note,) = plan.notes
    assert note.startswith("the target has layers that attend to the last 1,024 tokens only")
    assert plan.model_copy(update={"notes": ()}) == plan_memory(plain)
    at_most = replace(plain.target, decoder=replace(plain.target.decoder, window=4096))
    assert plan_memory(replace(plain, target=at_most)).notes == ()
