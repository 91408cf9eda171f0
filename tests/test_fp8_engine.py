"""FP8 on the cpu runtime: the engine, the pair that is built, its quality, and the reference of verify."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from cpu_checkpoints import SIZES, write_random, write_settings
from fp8_checkpoints import TEXTS, change_tensors, compress, matrices, with_tokenizer, write_texts
from safetensors.torch import load_file
from test_fp8_convert import to_fp8
from tiny_checkpoints import edit_config, make_model, save
from torch import Tensor
from transformers import LlamaConfig, Qwen2Config

from trtspec.build.checkpoint import open_checkpoint
from trtspec.build.options import BuildOptions
from trtspec.build.pair import build
from trtspec.build.quantize.pair_quantizer import PairQuantization
from trtspec.build.quantize.quality import acceptance, compare, evaluate
from trtspec.build.quantize.quantizer import quantize
from trtspec.cli import main
from trtspec.client.verify import HuggingFaceReference
from trtspec.client.verify.fp8 import load_fp8
from trtspec.engines.cpu.architecture import read_architecture
from trtspec.engines.cpu.engine import Engine
from trtspec.engines.cpu.errors import EngineLoadError
from trtspec.engines.cpu.model import Model, Segment
from trtspec.engines.cpu.request import Request
from trtspec.engines.cpu.weights import Weights
from trtspec.engines.host import gpu_problem, min_sm
from trtspec.engines.pair import open_pair
from trtspec.errors import BuildError, CheckpointError

IDS = [(7 * t * t + 3) % 61 for t in range(40)]
CONFIGS: dict[str, Any] = {
    "llama": LlamaConfig(**SIZES, architectures=["LlamaForCausalLM"]),
    "llama, biases": LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "qwen2, tied": Qwen2Config(**SIZES, tie_word_embeddings=True),
}

# Summed in another order, a value that lies on the edge between two codes may fall to either side, which
# moves a few rows; rounding that is left out moves all of them. Of the logits' standard deviation, as rms.
NOISE = 0.04

# Rounding to FP8 is not continuous: two ways of summing part there. On the demo pair that moves logits by
# up to 0.14, of a standard deviation of 2.1; the margin at a changed choice was at most 0.04.
FP8_NOISE_LOGITS = 0.15


@pytest.fixture(params=["static", "dynamic", "per channel", "own input scales"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """An engine folder for each way in which scales can come."""
    source = write_random(tmp_path / "hf", CONFIGS["llama"])
    if request.param in ("static", "dynamic"):
        to_fp8(source, tmp_path / "fp8", format="hf", static=request.param == "static")
    else:
        compress(source, per_channel=request.param == "per channel", dynamic=request.param == "per channel")
        quantize(source, tmp_path / "fp8", format="hf")
    return write_settings(tmp_path / "fp8")


def emulated(folder: Path) -> Any:
    """A model of transformers with weights and inputs rounded, written out from the format alone."""
    stored = load_file(folder / "model.safetensors")
    model = load_fp8(folder)
    for name, module in matrices(model).items():
        codes, scale = stored[f"{name}.weight"], stored[f"{name}.weight_scale"]
        assert torch.equal(module.weight, codes.float() * (scale[:, None] if scale.dim() else scale))
    return model


def own_model(folder: Path, dtype: torch.dtype = torch.float32) -> Model:
    architecture = read_architecture(json.loads((folder / "config.json").read_text()), 128)
    assert architecture is not None
    return Model(architecture, Weights(folder, dtype), slots=2, max_seq_len=128)


def test_logits_are_those_of_dequantised_weights_and_rounded_inputs(engine: Path) -> None:
    ours = own_model(engine).forward([Segment(0, 0, IDS, len(IDS))])
    with torch.inference_mode():
        theirs = emulated(engine)(torch.tensor([IDS])).logits[0]
    assert (ours - theirs).abs().median() < 1e-4
    assert (ours - theirs).square().mean().sqrt() < NOISE * theirs.std()


def test_rounding_the_inputs_makes_a_difference(engine: Path) -> None:
    model, rounded = emulated(engine), own_model(engine).forward([Segment(0, 0, IDS, len(IDS))])
    for module in matrices(model).values():
        module._forward_pre_hooks.clear()
    with torch.inference_mode():
        exact = model(torch.tensor([IDS])).logits[0]
    assert (rounded - exact).square().mean().sqrt() > NOISE * exact.std()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_does_not_depend_on_the_rows_beside_it(engine: Path, dtype: torch.dtype) -> None:
    model = own_model(engine, dtype)
    model.forward([Segment(0, 0, IDS[:20], 0)])
    model.forward([Segment(1, 0, IDS[:20], 0)])
    one = torch.cat([model.forward([Segment(0, t, [IDS[t]], 1)]) for t in range(20, 28)])
    assert torch.equal(model.forward([Segment(1, 20, IDS[20:28], 8)]), one)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_projection_that_stayed_unquantised_is_not_rounded_with_its_neighbours(
    tmp_path: Path, dynamic: bool
) -> None:
    source = write_random(tmp_path / "hf", CONFIGS["llama"])
    weight = load_file(source / "model.safetensors")["model.layers.0.self_attn.k_proj.weight"]
    compress(source, per_channel=False, dynamic=dynamic)
    changes = {"weight": weight, "weight_scale": None, "input_scale": None}
    change_tensors(source, **{f"model__layers__0__self_attn__k_proj__{n}": t for n, t in changes.items()})
    quantize(source, tmp_path / "fp8", format="hf")
    ours = own_model(tmp_path / "fp8").forward([Segment(0, 0, IDS, len(IDS))])
    with torch.inference_mode():
        theirs = load_fp8(tmp_path / "fp8")(torch.tensor([IDS])).logits[0]
    assert (ours - theirs).abs().median() < 1e-4


@pytest.mark.parametrize("name", ["llama, biases", "qwen2, tied"])
def test_biases_are_added_after_the_scales(tmp_path: Path, name: str) -> None:
    source = write_random(tmp_path / "hf", CONFIGS[name])
    to_fp8(source, tmp_path / "fp8", format="hf")
    ours = own_model(tmp_path / "fp8").forward([Segment(0, 0, IDS, len(IDS))])
    with torch.inference_mode():
        theirs = emulated(tmp_path / "fp8")(torch.tensor([IDS])).logits[0]
    assert (ours - theirs).abs().median() < 1e-4


@pytest.mark.parametrize("family", ["gemma3", "phi3"])
def test_other_architectures_run_dequantised_through_transformers(tmp_path: Path, family: str) -> None:
    source = save(make_model(family), tmp_path / "hf")
    to_fp8(source, tmp_path / "fp8", format="hf", cache=True)
    write_settings(tmp_path / "fp8")
    (chunk,) = Engine(tmp_path / "fp8").generate(Request(input_ids=IDS, max_new_tokens=8))
    reference = emulated(tmp_path / "fp8")
    with torch.inference_mode():
        logits = reference(torch.tensor([[*IDS, *chunk.ids]])).logits[0, len(IDS) - 1 : -1]
    served = logits.gather(1, torch.tensor(chunk.ids)[:, None])[:, 0]
    assert (logits.amax(-1) - served).max() < FP8_NOISE_LOGITS


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight_scale": None}, r"there is no model\.layers\.1\.mlp\.down_proj\.weight_scale"),
        ({"weight_scale": torch.tensor(0.0)}, "not a finite value above 0"),
        ({"input_scale": torch.tensor(float("nan"))}, "not a finite value above 0"),
        ({"weight_scale": torch.ones(3)}, "have 3 values, expected 1 or 48"),
    ],
)
def test_an_engine_with_scales_that_cannot_be_right_is_refused(
    tmp_path: Path, changes: dict[str, Tensor | None], message: str
) -> None:
    source = write_random(tmp_path / "hf", CONFIGS["llama"])
    to_fp8(source, tmp_path / "fp8", format="hf")
    prefix = "model__layers__1__mlp__down_proj__"
    change_tensors(tmp_path / "fp8", **{prefix + name: value for name, value in changes.items()})
    with pytest.raises(EngineLoadError, match=message):
        Engine(write_settings(tmp_path / "fp8"))


# The reference of verify


def test_the_reference_says_that_it_is_dequantised(tmp_path: Path) -> None:
    folder = with_tokenizer(tmp_path / "hf")
    to_fp8(folder, tmp_path / "fp8", format="hf")
    assert "float32 on dequantised FP8" in HuggingFaceReference(tmp_path / "fp8", folder).name
    assert "FP8" not in HuggingFaceReference(folder).name


def test_an_fp8_reference_says_so_and_shows_what_it_dequantised(tmp_path: Path) -> None:
    folder = with_tokenizer(tmp_path / "hf")
    to_fp8(folder, tmp_path / "fp8", format="hf")
    fp8, plain = HuggingFaceReference(tmp_path / "fp8", folder), HuggingFaceReference(folder)
    assert (fp8.dtype, fp8.arithmetic, plain.arithmetic) == ("fp8", "fp8", "float32")
    assert [(proof.name, proof.verdict) for proof in fp8.proofs()] == [
        ("known answer", "ok"),
        ("dequantised", "ok"),
    ]
    assert [proof.name for proof in plain.proofs()] == ["known answer"]


def test_a_reference_that_holds_codes_in_place_of_values_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The codes as weights: what transformers makes of such a folder by itself."""
    folder = save(make_model("llama31"), tmp_path / "hf")
    to_fp8(folder, tmp_path / "fp8", format="hf")
    ones = {
        f"{name}_scale".replace(".", "__"): torch.tensor(1.0)
        for name, tensor in load_file(tmp_path / "fp8/model.safetensors").items()
        if tensor.dtype == torch.float8_e4m3fn
    }
    change_tensors(tmp_path / "fp8", **ones)
    with pytest.raises(CheckpointError, match=r"28 of 28 FP8 matrices are not dequantised in the reference"):
        load_fp8(tmp_path / "fp8")


def test_a_reference_without_a_scale_is_refused(tmp_path: Path) -> None:
    folder = save(make_model("llama31"), tmp_path / "hf")
    to_fp8(folder, tmp_path / "fp8", format="hf")
    change_tensors(tmp_path / "fp8", model__layers__0__mlp__up_proj__weight_scale=None)
    with pytest.raises(CheckpointError, match="28 FP8 matrices, 1 of them without a weight_scale"):
        load_fp8(tmp_path / "fp8")


# Quality


def distributions(model: Any) -> Tensor:
    with torch.inference_mode():
        rows = [model(torch.tensor([text])).logits[0, :-1] for text in TEXTS]
    return torch.cat(rows).double().log_softmax(-1)


def test_quality_is_that_of_whole_models(tmp_path: Path) -> None:
    source = save(make_model("llama31"), tmp_path / "hf")
    to_fp8(source, tmp_path / "fp8", format="hf")
    checkpoints = open_checkpoint(source), open_checkpoint(tmp_path / "fp8")
    found = compare(evaluate(*checkpoints, TEXTS, torch.float32), TEXTS)
    before, after = distributions(make_model("llama31")), distributions(emulated(tmp_path / "fp8"))
    following = torch.tensor([token for text in TEXTS for token in text[1:]])[:, None]
    assert found.tokens == len(following)
    assert found.top1_agreement == (before.argmax(-1) == after.argmax(-1)).double().mean().item()
    expected = (before.exp() * (before - after)).sum(-1).mean().item()
    assert found.kl_divergence == pytest.approx(expected, rel=1e-3)
    assert found.perplexity_before == pytest.approx((-before.gather(1, following).mean()).exp().item())
    assert found.perplexity_after == pytest.approx((-after.gather(1, following).mean()).exp().item())
    original, stored = load_file(source / "model.safetensors"), emulated(tmp_path / "fp8").state_dict()
    for module, error in found.weight_errors.items():
        weight = original[f"{module}.weight"]
        assert error == pytest.approx(((stored[f"{module}.weight"] - weight).norm() / weight.norm()).item())
        assert 0.02 < error < 0.04


def test_acceptance_is_that_of_whole_models(tmp_path: Path) -> None:
    target = save(make_model("llama31"), tmp_path / "target")
    draft = save(make_model("qwen3"), tmp_path / "draft")
    to_fp8(target, tmp_path / "fp8", format="hf")
    before, after = acceptance(
        evaluate(open_checkpoint(target), open_checkpoint(tmp_path / "fp8"), TEXTS, torch.float32),
        evaluate(open_checkpoint(draft), None, TEXTS, torch.float32),
    )
    q = distributions(make_model("qwen3"))
    for found, p in (
        (before, distributions(make_model("llama31"))),
        (after, distributions(emulated(tmp_path / "fp8"))),
    ):
        expected = torch.minimum(p, q).exp().sum(-1).mean().item()
        assert found.sampled == pytest.approx(expected, rel=1e-3)
        assert found.greedy == (p.argmax(-1) == q.argmax(-1)).double().mean().item()


# The pair


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A few texts to calibrate on and others to measure on: quicker than those that ship."""
    folder = tmp_path_factory.mktemp("texts")
    calibrate = write_texts(folder / "calibrate.jsonl", ["def add(a, b):\n    return a + b\n", "import os\n"])
    return calibrate, write_texts(folder / "evaluate.jsonl", ["class Queue:\n    pass\n", "for i in x:\n"])


@pytest.fixture(scope="module")
def built(
    demo_pair: Path, texts: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[str]]:
    """The demo pair, its draft quantised, and what the build said."""
    output, said = tmp_path_factory.mktemp("built") / "pair", []
    options = PairQuantization(draft="fp8", calibrate=texts[0], evaluate=texts[1])
    build(
        demo_pair / "target",
        demo_pair / "draft",
        output,
        BuildOptions(quantization=options),
        report=said.append,
    )
    return output, said


def test_only_what_was_asked_for_is_quantised(built: tuple[Path, list[str]]) -> None:
    manifest = open_pair(built[0]).manifest
    assert manifest.target.quantization is None
    assert manifest.draft.quantization is not None
    dtypes = {
        name: {str(t.dtype) for t in load_file(built[0] / name / "model.safetensors").values()}
        for name in ("target", "draft")
    }
    assert dtypes == {
        "target": {"torch.bfloat16"},
        "draft": {"torch.bfloat16", "torch.float8_e4m3fn", "torch.float32"},
    }


def test_the_manifest_records_calibration_quality_acceptance_and_host(
    built: tuple[Path, list[str]],
) -> None:
    manifest = open_pair(built[0]).manifest
    found = manifest.draft.quantization
    assert found is not None
    assert found.calibration is not None
    assert found.quality is not None
    assert (found.algorithm, found.origin, found.activations) == ("FP8", "trtspec", "static")
    assert (found.calibration.texts, found.calibration.compute_dtype) == (2, "float32")
    assert found.quality.texts_sha256 != found.calibration.texts_sha256
    assert 0 < found.quality.kl_divergence < 0.1
    assert len(found.quality.weight_errors) == 7
    assert manifest.acceptance is not None
    assert 0 < manifest.acceptance.sampled_after < 1
    assert manifest.host_needs is not None
    assert manifest.host_needs.min_sm == 89


def test_the_build_reports_each_layer(built: tuple[Path, list[str]]) -> None:
    assert "draft: calibrated 1 of 1 layers" in built[1]
    assert not [line for line in built[1] if line.startswith("target: calibrated")]


def test_an_fp8_engine_answers(built: tuple[Path, list[str]]) -> None:
    chunks = list(Engine(built[0] / "draft").generate(Request(input_ids=[335, 20, 7], max_new_tokens=5)))
    assert sum(len(chunk.ids) for chunk in chunks) == 5


def test_a_model_that_moves_too_far_fails_the_build(
    demo_pair: Path, texts: tuple[Path, Path], tmp_path: Path
) -> None:
    options = PairQuantization(draft="fp8", calibrate=texts[0], evaluate=texts[1], max_kl=1e-9)
    with pytest.raises(BuildError, match=r"draft: FP8 moves .* by 0\.\d+ nats on average, --max-kl allows"):
        build(
            demo_pair / "target",
            demo_pair / "draft",
            tmp_path / "pair",
            BuildOptions(quantization=options),
            report=lambda line: None,
        )
    assert not list(tmp_path.iterdir())


def test_texts_that_calibration_has_seen_measure_nothing(
    demo_pair: Path, texts: tuple[Path, Path], tmp_path: Path
) -> None:
    options = PairQuantization(draft="fp8", calibrate=texts[0], evaluate=texts[0])
    with pytest.raises(BuildError, match="calibration has seen these texts"):
        build(
            demo_pair / "target",
            demo_pair / "draft",
            tmp_path / "pair",
            BuildOptions(quantization=options),
            report=lambda line: None,
        )


def test_a_ready_made_checkpoint_keeps_its_codes_in_the_pair(demo_pair: Path, tmp_path: Path) -> None:
    made = tmp_path / "draft"
    to_fp8(demo_pair / "draft", made, format="hf")
    said: list[str] = []
    pair = build(demo_pair / "target", made, tmp_path / "pair", report=said.append)
    assert "draft: FP8 already, quantised by modelopt; its codes and scales are kept" in said
    quantization = pair.manifest.draft.quantization
    assert quantization is not None
    assert (quantization.origin, quantization.quality) == ("modelopt", None)
    before, after = (load_file(folder / "model.safetensors") for folder in (made, pair.draft))
    assert all(torch.equal(before[name].float(), after[name].float()) for name in before)


def test_the_pair_check_reads_ready_made_checkpoints(demo_pair: Path, tmp_path: Path) -> None:
    to_fp8(demo_pair / "draft", tmp_path / "draft", format="hf")
    edit_config(tmp_path / "draft", quantization_config={"quant_method": "modelopt", "quant_algo": "NVFP4"})
    (tmp_path / "draft" / "hf_quant_config.json").unlink()
    with pytest.raises(CheckpointError, match="quant_algo is 'NVFP4'"):
        build(demo_pair / "target", tmp_path / "draft", tmp_path / "pair", report=lambda line: None)


def test_the_command_prints_what_quantisation_cost(
    demo_pair: Path, texts: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [str(demo_pair / "target"), str(demo_pair / "draft")]
    options = ["--draft-quantization", "fp8", "--calibrate", "none", "--evaluate", str(texts[1])]
    main(["build", *models, "--output", str(tmp_path / "pair"), *options])
    said = capsys.readouterr().out
    assert "KL, nats" in said
    assert "acceptance of draft tokens: 0." in said
    quantization = open_pair(tmp_path / "pair").manifest.draft.quantization
    assert quantization is not None
    assert (quantization.activations, quantization.calibration) == ("dynamic", None)


def test_one_word_for_both_models_and_a_word_for_one_are_wrong_usage(demo_pair: Path, tmp_path: Path) -> None:
    models = [str(demo_pair / "target"), str(demo_pair / "draft")]
    options = ["--quantization", "fp8", "--draft-quantization", "none"]
    with pytest.raises(SystemExit) as stopped:
        main(["build", *models, "--output", str(tmp_path / "pair"), *options])
    assert stopped.value.code == 2


@pytest.mark.parametrize(("sm", "runs"), [(80, False), (86, False), (89, True), (90, True), (120, True)])
def test_fp8_engines_need_ada_or_newer(sm: int, runs: bool) -> None:
    assert (gpu_problem(min_sm(fp8=True), sm) is None) is runs
    assert gpu_problem(min_sm(fp8=False), sm) is None
