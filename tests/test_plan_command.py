"""`trtspec plan`, as it is typed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trtspec.build.checkpoint import open_checkpoint
from trtspec.build.decoder import decoder_of_checkpoint, read_decoder
from trtspec.cli import main
from trtspec.engines.manifest import Manifest
from trtspec.engines.memory.decoder import decoder_of
from trtspec.engines.memory.result import MemoryPlan

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "num_key_value_heads": 8,
}
MODELS: dict[str, dict[str, Any]] = {
    "target-70b": {
        **LLAMA,
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
    },
    "draft-8b": {
        **LLAMA,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    },
}


@pytest.fixture
def models(tmp_path: Path) -> list[str]:
    """Two folders that hold a config.json each, and no weights."""
    for name, values in MODELS.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(values))
    return [str(tmp_path / name) for name in MODELS]


def stopped(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_a_pair_that_fits_is_shown_with_what_to_set(models, capsys):
    main(["plan", *models, "--gpu", "H100", "--tp", "4", "--draft-tp", "1"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "tensorrt on H100" in shown
    assert "│ GPUs │ 0, 1, 2, 3 │ 0 │" in shown
    assert "│ KV cache per token │ 80 KiB │ 128 KiB │" in shown
    assert "kv_cache_free_gpu_mem_fraction, loaded second" in shown
    assert "max_tokens_in_paged_kv_cache set too" in shown


def test_layers_with_a_window_are_told_in_a_note(models, capsys):
    file = Path(models[1]) / "config.json"
    file.write_text(json.dumps({**MODELS["draft-8b"], "model_type": "mistral", "sliding_window": 1024}))
    main(["plan", *models, "--gpu", "B200"])
    assert "note: the draft has layers that attend to the last 1,024 tokens only" in capsys.readouterr().out
    main(["plan", *models, "--gpu", "B200", "--json"])
    assert len(json.loads(capsys.readouterr().out)["notes"]) == 1


def test_a_pair_that_does_not_fit_exits_with_3_and_says_what_would(models, capsys):
    assert stopped(["plan", *models, "--gpu", "H100"]) == 3
    shown = capsys.readouterr().out
    assert shown.startswith("does not fit: target-70b and draft-8b on H100: GPU 0 would hold ")
    assert "what would fit: --tp 4; --gpu B200" in shown


def test_json_is_the_plan_or_why_there_is_none(models, capsys):
    main(["plan", *models, "--gpu", "B200", "--json"])
    plan = MemoryPlan.model_validate_json(capsys.readouterr().out)
    assert plan.target.max_tokens == plan.draft.max_tokens > 0
    assert stopped(["plan", *models, "--gpu", "40GB", "--json"]) == 3
    refused = json.loads(capsys.readouterr().out)
    assert refused["reason"].startswith("target-70b and draft-8b on 40GB: GPU 0 would hold")
    assert refused["would_fit"]


def test_the_options_reach_the_plan(models, capsys):
    options = ["--tp", "2", "--target-quantization", "fp8", "--kv-cache", "fp8", "--max-seq-len", "8192"]
    limits = ["--max-batch-size", "4", "--max-draft-len", "5", "--max-num-tokens", "4096", "--length", "2000"]
    main(["plan", *models, "--gpu", "H100", *options, *limits, "--json"])
    plan = json.loads(capsys.readouterr().out)
    assert [entry["length"] for entry in plan["concurrency"]] == [2000, 8192]
    assert [plan[name] for name in ("max_batch_size", "max_draft_len", "max_num_tokens")] == [4, 5, 4096]
    assert plan["target"]["ranks"][0]["kv_per_token"] == 80 * 2 * 4 * 128
    assert plan["draft"]["gpus"] == [0, 1]
    assert plan["target"]["ranks"][0]["weights"] < 40 * 10**9
    assert plan["draft"]["ranks"][0]["weights"] > 8 * 10**9


def test_the_pytorch_runtime_is_given_one_fraction(models, capsys):
    main(["plan", *models, "--gpu", "H200", "--tp", "2", "--runtime", "pytorch"])
    assert "kv_cache_config.free_gpu_memory_fraction: 0.95, for both together" in capsys.readouterr().out


def test_a_built_pair_is_planned_by_its_manifest(built_pair, capsys):
    main(["plan", str(built_pair.path), "--gpu", "L4", "--json"])
    plan = json.loads(capsys.readouterr().out)
    settings = built_pair.manifest.target.settings
    assert plan["max_seq_len"] == settings.max_seq_len
    assert plan["target"]["ranks"][0]["weights"] == 2 * built_pair.manifest.target.parameters


def test_headers_say_what_the_formula_says(demo_pair):
    for role in ("target", "draft"):
        checkpoint = open_checkpoint(demo_pair / role)
        counted = decoder_of_checkpoint(checkpoint, role)
        assert counted == decoder_of(checkpoint.config, role)
        assert read_decoder(str(demo_pair / role)) == counted
        assert read_decoder(str(demo_pair / role / "config.json")) == counted


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["TARGET", "--gpu", "H100"], 2, "Missing argument 'DRAFT'; only an engine pair stands alone"),
        (["TARGET", "DRAFT", "--gpu", "H10"], 1, "trtspec: --gpu H10: unknown; did you mean H100?"),
        (["TARGET", "DRAFT", "--gpu", "H100", "--tp", "3"], 1, "trtspec: target-70b: 64 heads and 8 KV"),
        (["nowhere", "DRAFT", "--gpu", "H100"], 1, "trtspec: nowhere: not a folder"),
    ],
)
def test_wrong_usage_and_our_errors_have_their_codes(models, capsys, arguments, code, message):
    names = dict(zip(("TARGET", "DRAFT"), models, strict=True))
    assert stopped(["plan", *(names.get(word, word) for word in arguments)]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err


def test_sequences_longer_than_those_that_are_planned_are_refused(models, capsys) -> None:
    assert stopped(["plan", *models, "--gpu", "B200", "--length", "1024", "--length", "4097"]) == 1
    assert capsys.readouterr().err == (
        "trtspec: --length 4097: a sequence has 4096 tokens at most; give shorter ones, or a longer "
        "--max-seq-len\n"
    )


def test_the_gpu_is_this_machines_where_none_is_named(models, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    assert stopped(["plan", *models]) == 1
    assert "no GPU to plan for on this machine (nvidia-smi: not on PATH)" in capsys.readouterr().err
    program = folder / "nvidia-smi"
    rows = [
        f"NVIDIA {name}, {size}, 9.0, 580.95.05, Disabled" for name, size in (("B", 183359), ("A", 180000))
    ]
    program.write_text("#!/bin/sh\n" + "\n".join(f"echo '{row}'" for row in rows))
    program.chmod(0o755)
    main(["plan", *models, "--json"])
    plan = MemoryPlan.model_validate_json(capsys.readouterr().out)
    assert (plan.gpu, plan.gpu_memory_bytes) == ("NVIDIA A", 180000 * 2**20)


def test_a_pair_of_tensorrt_is_planned_with_its_ranks_and_its_fp8_caches(tmp_path, capsys):
    """As trtllm-build leaves it; the weights are not looked at."""
    settings = {"dtype": "bfloat16", "max_seq_len": 8192, "max_batch_size": 4, "max_draft_len": 5, "tp": 2}
    engine = {
        "architecture": "LlamaForCausalLM",
        "source_dtype": "BF16",
        "parameters": 1,
        "settings": {**settings, "vocab_size": 128256},
        "files": {},
    }
    manifest = {
        "trtspec_version": "0",
        "runtime": "tensorrt",
        "compiled": True,
        "target": engine,
        "draft": engine,
        "eos_token_ids": [],
        "repairs": [],
        "files": {},
    }
    (tmp_path / "trtspec.json").write_text(
        json.dumps({"format": Manifest.model_fields["format"].default, **manifest})
    )
    for role, model in zip(("target", "draft"), ("target-70b", "draft-8b"), strict=True):
        quantization = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
        built = {**MODELS[model], "architecture": "LlamaForCausalLM", "quantization": quantization}
        (tmp_path / role).mkdir()
        limits = {"max_num_tokens": 2048}
        config = {"pretrained_config": built, "build_config": limits}
        (tmp_path / role / "config.json").write_text(json.dumps(config))
    main(["plan", str(tmp_path), "--gpu", "H100", "--json"])
    plan = MemoryPlan.model_validate_json(capsys.readouterr().out)
    assert (plan.runtime, plan.max_seq_len, plan.max_draft_len) == ("tensorrt", 8192, 5)
    assert plan.target.gpus == plan.draft.gpus == (0, 1)
    assert plan.target.ranks[0].kv_per_token == 80 * 2 * 4 * 128
    assert plan.target.ranks[0].weights < 38 * 10**9
    assert plan.max_num_tokens == 2048
    assert stopped(["plan", str(tmp_path), "--gpu", "H100", "--tp", "4", "--max-seq-len", "64"]) == 2
    assert "has its own --tp, --max-seq-len; leave it out" in " ".join(capsys.readouterr().err.split())


def test_no_sequences_are_planned_that_the_target_cannot_read(demo_pair, capsys):
    pair = [str(demo_pair / role) for role in ("target", "draft")]
    main(["plan", *pair, "--gpu", "L4", "--json"])
    plan = MemoryPlan.model_validate_json(capsys.readouterr().out)
    assert (plan.max_seq_len, plan.concurrency[-1].length) == (2048, 2048)
    assert stopped(["plan", *pair, "--gpu", "L4", "--max-seq-len", "4096"]) == 1
    assert "--max-seq-len 4096: target reads 2048 tokens" in capsys.readouterr().err


def test_a_pair_and_a_draft_are_too_much(built_pair, models, capsys):
    assert stopped(["plan", str(built_pair.path), models[1], "--gpu", "L4"]) == 2
    assert "is an engine pair; leave DRAFT out" in capsys.readouterr().err


def test_help_has_an_example_and_the_exit_codes(capsys):
    main(["plan", "--help"])
    shown = capsys.readouterr().out
    assert "trtspec plan models/Llama-3.3-70B models/Llama-3.2-1B --gpu H100 --tp 4 --draft-tp 1" in shown
    assert "Exit codes: 0 they fit, 3 they do not." in shown


def test_planning_imports_no_model_code(models):
    code = (
        "import sys; from trtspec.cli import main; "
        f"main(['plan', *{models!r}, '--gpu', 'B200', '--json']); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'tokenizers')))"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0
    )
