"""Pairs compiled by a double of trtllm-build: what comes out, and every way it can go wrong."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from processes import ends
from safetensors.torch import load_file, save_file
from tritonclient.grpc.model_config_pb2 import ModelConfig
from trtllm_build_double import install, read_calls

from trtspec.build.convert.converter import convert
from trtspec.build.options import BuildOptions
from trtspec.build.pair import build
from trtspec.build.quantize.pair_quantizer import PairQuantization
from trtspec.build.runtimes.tensorrt.built_engine import check_engine
from trtspec.build.runtimes.tensorrt.commands import BuildCommand
from trtspec.build.runtimes.tensorrt.options import TensorrtOptions
from trtspec.build.runtimes.tensorrt.process import run_logged
from trtspec.build.runtimes.tensorrt.toolchain import Installed, Versions
from trtspec.cli import main
from trtspec.cli.parts.report import reporting
from trtspec.engines.host import HostFacts
from trtspec.engines.pair import EnginePair, open_pair
from trtspec.errors import BuildError, PlanError
from trtspec.triton_repo.launch import LaunchOptions
from trtspec.triton_repo.options import RepositoryOptions
from trtspec.triton_repo.repository import write_repository


class Tools:
    """The double on PATH, and what was asked of it."""

    def __init__(self, folder: Path, environment: pytest.MonkeyPatch) -> None:
        self.folder, self.environment = folder, environment
        self.calls = folder / "calls"
        self.install()
        environment.setenv("TRTLLM_BUILD_CALLS", str(self.calls))

    def install(self, **versions: str) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        for name, value in install(self.folder, **versions).items():
            self.environment.setenv(name, value)

    def remove(self) -> None:
        (self.folder / "bin" / "trtllm-build").unlink()

    def fail(self, fault: str, role: str = "target") -> None:
        self.environment.setenv("TRTLLM_BUILD_FAULT", fault)
        self.environment.setenv("TRTLLM_BUILD_FAULTY", role)

    def have_gpus(self, count: int, sm: int = 90) -> None:
        self.environment.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        self.environment.setenv("TRTLLM_BUILD_GPUS", str(count))
        self.environment.setenv("TRTLLM_BUILD_SM", str(sm))

    def events(self, kind: str = "begin") -> dict[str, Any]:
        entries = read_calls(self.calls) if self.calls.exists() else []
        return {entry["role"]: entry for entry in entries if entry["event"] == kind}


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    found = Tools(tmp_path / "tools", monkeypatch)
    found.have_gpus(1)
    return found


def options(**changes: Any) -> BuildOptions:
    tensorrt = changes.pop("tensorrt", TensorrtOptions())
    return BuildOptions(**{"runtime": "tensorrt", "dtype": "float16", **changes}, tensorrt=tensorrt)


def build_in(
    demo_pair: Path, folder: Path, wanted: BuildOptions | None = None, said: list[str] | None = None
) -> EnginePair:
    report = (lambda line: None) if said is None else said.append
    return build(
        demo_pair / "target", demo_pair / "draft", folder / "pair", wanted or options(), report=report
    )


def engine_config(pair: EnginePair, role: str) -> dict[str, Any]:
    return json.loads((pair.path / role / "config.json").read_text())


def test_a_pair_is_compiled_and_says_what_its_engines_say(
    tools: Tools, demo_pair: Path, tmp_path: Path
) -> None:
    pair = build_in(demo_pair, tmp_path, options(max_draft_len=5, max_batch_size=4))
    manifest = pair.manifest
    assert (manifest.runtime, manifest.compiled) == ("tensorrt", True)
    assert {"tensorrt_llm": "1.2.1", "tensorrt": "10.14.1.48"}.items() <= manifest.versions.items()
    assert manifest.target.files.keys() == {"config.json", "rank0.engine", "trtllm-build.log"}
    config = engine_config(pair, "target")["build_config"]
    assert (config["speculative_decoding_mode"], config["max_draft_len"], config["max_seq_len"]) == (
        2,
        5,
        2053,
    )
    settings = manifest.target.settings
    assert (settings.max_seq_len, settings.max_draft_len, settings.max_batch_size) == (2048, 5, 4)
    assert settings.dtype == "float16"
    assert engine_config(pair, "draft")["build_config"]["speculative_decoding_mode"] == 1
    assert open_pair(pair.path).manifest == manifest


def test_the_manifest_says_where_the_engines_run(tools: Tools, demo_pair: Path, tmp_path: Path) -> None:
    needs = build_in(demo_pair, tmp_path).manifest.host_needs
    assert needs is not None
    assert (needs.sm, needs.min_sm, needs.gpus) == (90, 80, 1)
    assert (needs.tensorrt_llm, needs.tensorrt) == ("1.2.1", "10.14.1.48")
    assert needs.container == "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"


@pytest.mark.parametrize("version", ["1.2.0", "1.2.1.post1"])
def test_engines_of_a_release_that_no_image_holds_name_none(
    tools: Tools, demo_pair: Path, tmp_path: Path, version: str
) -> None:
    tools.install(version=version)
    needs = build_in(demo_pair, tmp_path).manifest.host_needs
    assert needs is not None
    assert (needs.tensorrt_llm, needs.container) == (version, None)


def test_the_manifest_holds_the_commands_that_were_run(tools: Tools, demo_pair: Path, tmp_path: Path) -> None:
    pair = build_in(demo_pair, tmp_path)
    for command, role in zip(pair.manifest.commands, ("target", "draft"), strict=True):
        run = ["trtllm-build", *tools.events()[role]["argv"]]
        assert BuildCommand.parse(command) == BuildCommand.parse(run)
        assert command[:5] == ("trtllm-build", "--checkpoint_dir", f"{role}-checkpoint", "--output_dir", role)


def test_the_manifest_holds_the_memory_plan_and_the_repository_follows_it(
    tools: Tools, demo_pair: Path, tmp_path: Path
) -> None:
    pair = build_in(demo_pair, tmp_path, options(gpu="H100"))
    assert pair.manifest.memory is not None
    assert (pair.manifest.memory.gpu, pair.manifest.memory.max_seq_len) == ("H100", 2048)
    repository = write_repository(pair, tmp_path / "repo")
    for model, plan in (
        ("tensorrt_llm", pair.manifest.memory.target),
        ("tensorrt_llm_draft", pair.manifest.memory.draft),
    ):
        config = text_format.Parse((repository / model / "config.pbtxt").read_text(), ModelConfig())
        cache = config.parameters["max_tokens_in_paged_kv_cache"].string_value
        assert cache == str(plan.max_tokens)
    named = RepositoryOptions(launch=LaunchOptions(target_gpus=(1,), draft_gpus=(1,)))
    write_repository(pair, tmp_path / "elsewhere", named)


def test_a_pair_that_cannot_fit_its_gpu_is_refused_before_anything_starts(
    tools: Tools, demo_pair: Path, tmp_path: Path
) -> None:
    with pytest.raises(PlanError, match=r"GPU 0 would hold .* what would fit: "):
        build_in(demo_pair, tmp_path, options(gpu="L4", max_batch_size=2000000))
    assert not tools.events()
    assert not (tmp_path / "pair").exists()


def test_nothing_lies_beside_a_pair_that_was_compiled(tools: Tools, demo_pair: Path, tmp_path: Path) -> None:
    before = {path.name for path in Path.cwd().iterdir()}
    build_in(demo_pair, tmp_path / "work")
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["pair"]
    assert {path.name for path in Path.cwd().iterdir()} == before  # where trtllm-build drops its cache


def test_the_double_takes_no_hugging_face_checkpoint_and_no_unknown_flag(
    tools: Tools, demo_pair: Path, tmp_path: Path
) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["trtllm-build", *words], capture_output=True, text=True, cwd=tmp_path)

    assert run("--checkpoint_dir", str(demo_pair / "target"), "--output_dir", "x").returncode == 1
    for words in (["--use_embedding_sharing"], ["--gemm_plugin", "float8"], ["--max_batch_size", "many"]):
        refused = run(*words)
        assert (refused.returncode, "usage: trtllm-build" in refused.stderr) == (2, True)


@pytest.mark.parametrize("quantised", [{"target": "fp8"}, {"target": "fp8", "draft": "fp8"}])
def test_fp8_engines_are_quantised_on_the_way(
    tools: Tools, demo_pair: Path, tmp_path: Path, quantised: dict[str, Any]
) -> None:
    texts = tmp_path / "texts"
    texts.write_text("def main():\nimport os\n")
    pair = build_in(demo_pair, tmp_path, options(quantization=PairQuantization(**quantised, calibrate=texts)))
    assert pair.manifest.draft is not None
    for role, engine in (("target", pair.manifest.target), ("draft", pair.manifest.draft)):
        wanted = "FP8" if role in quantised else None
        assert engine_config(pair, role)["pretrained_config"]["quantization"]["quant_algo"] == wanted
        found = engine.quantization
        assert (found.algorithm if found else None) == wanted
        if found:
            assert (found.origin, found.activations) == ("trtspec", "static")
            assert found.calibration is not None
            assert found.calibration.texts == 2
    assert pair.manifest.host_needs is not None
    assert pair.manifest.host_needs.min_sm == 89


def test_an_fp8_cache_is_reused_like_any_other(tools: Tools, demo_pair: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.write_text("def main():\n")
    quantised = PairQuantization(target="fp8", draft="fp8", calibrate=texts)
    pair = build_in(
        demo_pair, tmp_path, options(quantization=quantised, tensorrt=TensorrtOptions(kv_cache="fp8"))
    )
    for role in ("target", "draft"):
        config = engine_config(pair, role)
        plugins = config["build_config"]["plugin_config"]
        assert config["pretrained_config"]["quantization"]["kv_cache_quant_algo"] == "FP8"
        assert plugins["use_paged_context_fmha"]
        assert plugins["use_fp8_context_fmha"]


def test_ranks_are_compiled_for_each_model_on_its_own(tools: Tools, demo_pair: Path, tmp_path: Path) -> None:
    tools.have_gpus(2)
    pair = build_in(demo_pair, tmp_path, options(tp=2, tensorrt=TensorrtOptions(draft_tp=1)))
    assert {"rank0.engine", "rank1.engine"} <= pair.manifest.target.files.keys()
    assert pair.manifest.draft is not None
    assert "rank1.engine" not in pair.manifest.draft.files
    assert (pair.manifest.target.settings.tp, pair.manifest.draft.settings.tp) == (2, 1)
    assert pair.manifest.host_needs is not None
    assert pair.manifest.host_needs.gpus == 2
    workers = {
        role: call["argv"][call["argv"].index("--workers") + 1] for role, call in tools.events().items()
    }
    assert workers == {"target": "2", "draft": "1"}


@pytest.mark.parametrize("narrow", ["draft", "target"])
def test_the_draft_gets_the_width_of_the_targets_logits(
    tools: Tools, demo_pair: Path, tmp_path: Path, narrow: str
) -> None:
    for role in ("target", "draft"):
        shutil.copytree(demo_pair / role, tmp_path / role)
        tokenizer = json.loads((tmp_path / role / "tokenizer.json").read_text())
        model = tokenizer["model"]
        model["vocab"] = {word: i for word, i in model["vocab"].items() if i < 4090}
        model["merges"] = model["merges"][: 4090 - 3 - 256]
        (tmp_path / role / "tokenizer.json").write_text(json.dumps(tokenizer))
    weights = load_file(tmp_path / narrow / "model.safetensors")
    weights["model.embed_tokens.weight"] = weights["model.embed_tokens.weight"][:4090].clone()
    save_file(weights, tmp_path / narrow / "model.safetensors")
    config = json.loads((tmp_path / narrow / "config.json").read_text())
    (tmp_path / narrow / "config.json").write_text(json.dumps({**config, "vocab_size": 4090}))
    pair = build_in(tmp_path, tmp_path, options(tensorrt=TensorrtOptions(acceptance="logits")))
    width = 4096 if narrow == "draft" else 4090
    for role in ("target", "draft"):
        assert engine_config(pair, role)["pretrained_config"]["vocab_size"] == width
    assert pair.manifest.draft is not None
    assert pair.manifest.draft.settings.vocab_size == pair.manifest.target.settings.vocab_size == width
    assert "vocab.width" in pair.manifest.repairs


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("exit", r"target: trtllm-build ended with exit code 3; its log is .*\n(.*\n)*.*out of memory"),
        ("version", "version is 1.1.0, expected 1.2.1"),
        ("speculation", "max_draft_len is 0, expected 8; .*speculative_decoding_mode is 1, expected 2"),
        ("paged", "use_paged_context_fmha is False, expected True"),
        ("logits", "gather_generation_logits is True, expected False"),
        ("rank", "rank0.engine is missing"),
        ("engine", r"rank0.engine has [\d,]+ bytes, its weights alone [\d,]+: cut short"),
        ("config", "config.json: 1 entry is not as trtllm-build 1.2.1 writes, first"),
    ],
)
def test_a_wrong_engine_is_no_pair_and_its_log_is_kept(
    tools: Tools, demo_pair: Path, tmp_path: Path, fault: str, message: str
) -> None:
    tools.fail(fault)
    with pytest.raises(BuildError, match=message) as error:
        build_in(demo_pair, tmp_path / "work")
    log = tmp_path / "work" / "pair.target.log"
    assert str(log) in str(error.value)
    assert "TensorRT LLM version" in log.read_text()
    assert not (tmp_path / "work" / "pair").exists()


def test_the_draft_is_looked_at_like_the_target(tools: Tools, demo_pair: Path, tmp_path: Path) -> None:
    tools.fail("logits", "draft")
    with pytest.raises(BuildError, match=r"draft: not the engine that was asked for: build_config\.gather"):
        build_in(demo_pair, tmp_path)


def test_all_that_is_wrong_with_an_engine_is_said_at_once(
    tools: Tools, demo_pair: Path, tmp_path: Path
) -> None:
    pair = build_in(demo_pair, tmp_path, options(tensorrt=TensorrtOptions(compile="later")))
    command = BuildCommand.parse(pair.manifest.commands[0])
    engine = tmp_path / "engine"
    subprocess.run(command.argv(pair.target, engine), check=True, capture_output=True, cwd=tmp_path)
    assert check_engine(engine, command, pair.target, name="x").version == "1.2.1"
    config = json.loads((engine / "config.json").read_text())
    config["build_config"] |= {"max_batch_size": 1, "kv_cache_type": "CONTINUOUS"}
    config["pretrained_config"]["mapping"]["tp_size"] = 4
    (engine / "config.json").write_text(json.dumps(config))
    (engine / "rank0.engine").unlink()
    with pytest.raises(BuildError) as error:
        check_engine(engine, command, pair.target, name="x")
    for part in ("max_batch_size is 1", "CONTINUOUS", "tp_size is 4, expected 1", "rank0.engine is missing"):
        assert part in str(error.value)


def test_without_trtllm_build_the_three_ways_are_named_and_nothing_is_written(
    tools: Tools, demo_pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(BuildError, match=r"--container .*26\.07.*--script FILE.*tensorrt-llm==1\.2\.1"):
        build_in(demo_pair, tmp_path / "work")
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize("version", ["1.1.0", "1.2.0rc8", "1.3.0"])
def test_another_tensorrt_llm_is_refused_before_anything_is_converted(
    tools: Tools, demo_pair: Path, tmp_path: Path, version: str
) -> None:
    tools.install(version=version)
    with pytest.raises(
        BuildError, match=rf"TensorRT-LLM is {version}, engines are built with 1\.2\.1.*26\.07"
    ):
        build_in(demo_pair, tmp_path / "work")
    assert not (tmp_path / "work").exists()


def test_a_trtllm_build_of_unknown_version_is_refused(
    tools: Tools, demo_pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH")
    with pytest.raises(BuildError, match="TensorRT-LLM is none"):
        build_in(demo_pair, tmp_path / "work")


@pytest.mark.parametrize("first_line", ["#!/usr/bin/env python3", "#!/usr/bin/env -S python3", "#!/bin/sh"])
def test_the_python_of_trtllm_build_is_found_however_it_is_started(tools: Tools, first_line: str) -> None:
    program = tools.folder / "bin" / "trtllm-build"
    program.write_text(f"{first_line}\n")
    (program.parent / "python3").symlink_to(sys.executable)
    assert Installed(program).versions() == Versions(tensorrt_llm="1.2.1", tensorrt="10.14.1.48")


def test_everything_wrong_is_said_before_anything_starts(
    tools: Tools, demo_pair: Path, tmp_path: Path
) -> None:
    tools.have_gpus(1, sm=75)
    tools.remove()
    wanted = TensorrtOptions(reduce_fusion=True, gemm_swiglu=True)
    with pytest.raises(BuildError) as error:
        build_in(demo_pair, tmp_path / "work", options(tensorrt=wanted))
    for part in (
        "reduce-fusion",
        "gemm-swiglu is for FP8",
        "SM80",
        "trtllm-build is not on PATH",
    ):
        assert part in str(error.value)
    assert not (tmp_path / "work").exists()


def test_one_gpu_compiles_one_engine_after_the_other(tools: Tools, demo_pair: Path, tmp_path: Path) -> None:
    build_in(demo_pair, tmp_path)
    begin, end = tools.events("begin"), tools.events("end")
    assert end["target"]["time"] < begin["draft"]["time"] or end["draft"]["time"] < begin["target"]["time"]
    assert begin["target"]["gpus"] is None


def test_with_a_gpu_for_each_rank_engines_are_compiled_side_by_side(
    tools: Tools, demo_pair: Path, tmp_path: Path
) -> None:
    tools.have_gpus(3)
    tools.environment.setenv("TRTLLM_BUILD_MEETS", "1")
    build_in(demo_pair, tmp_path, options(tp=2, tensorrt=TensorrtOptions(draft_tp=1)))
    begin = tools.events()
    assert (begin["target"]["gpus"], begin["draft"]["gpus"]) == ("0,1", "2")


def test_an_engine_that_fails_ends_the_one_beside_it(tools: Tools, demo_pair: Path, tmp_path: Path) -> None:
    tools.have_gpus(2)
    tools.fail("hang")
    tools.environment.setenv("TRTLLM_BUILD_MEETS", "1")
    tools.environment.setenv("TRTLLM_BUILD_OTHER_FAULT", "exit")
    with pytest.raises(BuildError, match="draft: trtllm-build ended with exit code 3"):
        build_in(demo_pair, tmp_path)
    assert ends(tools.events("begin")["target"]["pid"])


def test_a_second_build_of_the_same_compiles_nothing(tools: Tools, demo_pair: Path, tmp_path: Path) -> None:
    first = build_in(demo_pair, tmp_path / "one")
    calls = tools.calls.read_text()
    second = build_in(demo_pair, tmp_path / "two")
    assert tools.calls.read_text() == calls
    assert second.manifest == first.manifest


def test_other_limits_compile_again_from_the_same_checkpoints(
    tools: Tools, demo_pair: Path, tmp_path: Path
) -> None:
    build_in(demo_pair, tmp_path / "one")
    said: list[str] = []
    pair = build_in(demo_pair, tmp_path / "two", options(max_batch_size=2), said)
    assert engine_config(pair, "target")["build_config"]["max_batch_size"] == 2
    assert not any("LlamaForCausalLM from" in line for line in said)


def test_gpus_are_shared_out_only_where_each_rank_gets_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from trtspec.build.runtimes.tensorrt.compilation import share_gpus
    from trtspec.engines.host import FoundGpu

    host = HostFacts(gpus=(FoundGpu("double", None, 90),) * 5)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert share_gpus(host, [4, 1]) == (("0", "1", "2", "3"), ("4",))
    assert share_gpus(host, [4, 2]) == (None, None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,GPU-1")
    assert share_gpus(host, [1, 1]) == (("7",), ("GPU-1",))
    assert share_gpus(host, [2, 1]) == (None, None)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_a_compilation_that_hangs_ends_with_the_build(
    tools: Tools, demo_pair: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    tools.fail("hang")
    command = [sys.executable, "-m", "trtspec", "build", str(demo_pair / "target"), str(demo_pair / "draft")]
    command += ["--output", str(tmp_path / "work" / "pair"), "--runtime", "tensorrt", "--dtype", "float16"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while "target" not in tools.events("worker"):
        assert process.poll() is None, process.stderr
        time.sleep(0.05)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == code, said
    for event in ("worker", "begin"):
        assert ends(tools.events(event)["target"]["pid"])
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["pair.target.log"]


def test_a_program_that_cannot_be_started_is_an_exit_code_and_a_line_in_the_log(tmp_path: Path) -> None:
    log, program = tmp_path / "log", str(tmp_path / "no-program")
    environment = dict(os.environ)
    assert run_logged([program], log, folder=tmp_path, environment=environment, go_on=lambda: None) == 127
    assert log.read_text() == f"{program}: cannot be run: No such file or directory\n"


def test_the_signal_that_ended_a_program_is_told(tmp_path: Path) -> None:
    program, environment = ["sh", "-c", "kill -9 $$"], dict(os.environ)
    log = tmp_path / "log"
    assert run_logged(program, log, folder=tmp_path, environment=environment, go_on=lambda: None) == -9


def test_children_that_a_program_leaves_are_ended_too(tmp_path: Path) -> None:
    program = "sleep 300 & echo $!"
    log = tmp_path / "log"
    assert (
        run_logged(["sh", "-c", program], log, folder=tmp_path, environment=os.environ, go_on=lambda: None)
        == 0
    )
    assert ends(int(log.read_text()))


def test_a_build_that_ends_elsewhere_ends_the_compilation(tmp_path: Path) -> None:
    class EndedError(Exception):
        pass

    def stop() -> None:
        raise EndedError

    with pytest.raises(EndedError):
        run_logged(["sleep", "300"], tmp_path / "log", folder=tmp_path, environment=os.environ, go_on=stop)


def test_converted_checkpoints_are_those_of_convert(demo_pair: Path, tmp_path: Path) -> None:
    pair = build_in(demo_pair, tmp_path, options(tensorrt=TensorrtOptions(compile="later")))
    assert not pair.manifest.compiled
    for role in ("target", "draft"):
        convert(demo_pair / role, tmp_path / role, dtype="float16")
        for file in (tmp_path / role).iterdir():
            assert (pair.path / role / file.name).read_bytes() == file.read_bytes()


def run_cli(*words: object) -> int:
    try:
        main([str(word) for word in words])
    except SystemExit as exited:
        return int(exited.code or 0)
    return 0


def test_a_dry_run_prints_the_commands_that_a_build_runs_and_writes_nothing(
    tools: Tools, demo_pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["build", demo_pair / "target", demo_pair / "draft", "--output", tmp_path / "work" / "pair"]
    words += ["--runtime", "tensorrt", "--dtype", "bfloat16", "--acceptance", "logits", "--max-draft-len", 4]
    assert run_cli(*words, "--dry-run", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert not (tmp_path / "work").exists()
    assert tools.events() == {}
    assert run_cli(*words) == 0
    for engine in shown["engines"]:
        run = tools.events()[engine["role"]]["argv"]
        assert BuildCommand.parse(engine["command"]) == BuildCommand.parse(["trtllm-build", *run])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--opt-num-tokens", 9000], "--opt-num-tokens 9000 is more than --max-num-tokens, 8192"),
        (
            ["--tp", 4],
            "draft: --tp 4: 2 attention heads do not divide by 4; possible near it: 2; the draft al",
        ),
        (["--quantization", "fp8", "--calibrate", "/nowhere.jsonl"], "/nowhere.jsonl: cannot be read"),
    ],
)
def test_a_dry_run_finds_what_would_stop_the_build(
    demo_pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    place = ["build", demo_pair / "target", demo_pair / "draft", "--output", tmp_path / "pair"]
    assert run_cli(*place, "--runtime", "tensorrt", "--dry-run", *words) == 1
    assert message in capsys.readouterr().err


def test_a_dry_run_needs_no_trtllm_build_and_reads_like_a_shell(
    demo_pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    words = ["build", demo_pair / "target", demo_pair / "draft", "--output", tmp_path / "pair"]
    assert run_cli(*words, "--runtime", "tensorrt", "--dtype", "float16", "--dry-run") == 0
    said = capsys.readouterr().out
    assert "target: LlamaForCausalLM, float16, not quantised, tp 1 x pp 1" in said
    assert "trtllm-build \\\n  --checkpoint_dir" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--dry-run"], "for --runtime tensorrt only: --dry-run"),
        (["--draft-tp", "2", "--gemm-swiglu"], "only: --draft-tp, --gemm-swiglu"),
        (["--runtime", "tensorrt", "--script", "x", "--container"], "--script leaves compiling to"),
        (["--runtime", "tensorrt", "--script", os.devnull], "exists already"),
        (["--runtime", "tensorrt", "--tokens-per-block", "48"], "'48' is not one of '16', '32'"),
    ],
)
def test_flags_that_make_no_sense_are_wrong_usage(
    demo_pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    place = ["build", demo_pair / "target", demo_pair / "draft", "--output", tmp_path / "pair"]
    assert run_cli(*place, *words) == 2
    assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_a_build_that_cannot_compile_says_so_in_one_line(
    demo_pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    words = ["build", demo_pair / "target", demo_pair / "draft", "--output", tmp_path / "pair"]
    assert run_cli(*words, "--runtime", "tensorrt", "--dtype", "float16") == 1
    assert "trtspec: trtllm-build is not on PATH. There are three ways" in capsys.readouterr().err


def test_a_terminal_shows_every_line_and_what_each_model_waits_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with reporting() as report:
        report("target: compiles 1 rank")
        report("note: [no markup] here")
        report("target: compiled in 3 s")
    said = capsys.readouterr().err
    for line in ("target: compiles 1 rank", "note: [no markup] here", "target: compiled in 3 s"):
        assert line in said
    assert "0:00:0" in said


def test_a_file_gets_plain_lines_and_json_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    with reporting() as report:
        report("target: compiles 1 rank")
    with reporting(quiet=True) as report:
        report("draft: compiles 1 rank")
    assert capsys.readouterr().err == "target: compiles 1 rank\n"
