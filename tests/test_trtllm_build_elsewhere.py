"""Engines compiled in a container, or by a script on another machine, and adopted."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from container_double import install as install_engine
from trtllm_build_double import install

from trtspec.build.adoption import adopt
from trtspec.build.options import BuildOptions
from trtspec.build.pair import build
from trtspec.build.runtimes.tensorrt.commands import BuildCommand
from trtspec.build.runtimes.tensorrt.options import TensorrtOptions
from trtspec.build.runtimes.tensorrt.script import compile_script
from trtspec.build.runtimes.tensorrt.toolchain import Container, Run
from trtspec.cli import main
from trtspec.engines.pair import EnginePair, open_pair
from trtspec.errors import BuildError, OutputError

IMAGE = "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"


@pytest.fixture
def gpu_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The environment of a machine with the double of trtllm-build; returns where it lies."""
    for name, value in install(tmp_path / "tools").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TRTLLM_BUILD_CALLS", str(tmp_path / "calls"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path / "tools"


@pytest.fixture(scope="module")
def converted(demo_pair: Path, tmp_path_factory: pytest.TempPathFactory) -> EnginePair:
    """The demo pair, to be compiled elsewhere; a path with what shells trip over."""
    folder = tmp_path_factory.mktemp("it's a $HOME; folder")
    return build_pair(demo_pair, folder / "pair", compile="later")


def build_pair(demo_pair: Path, output: Path, **tensorrt: Any) -> EnginePair:
    options = BuildOptions(runtime="tensorrt", dtype="float16", tensorrt=TensorrtOptions(**tensorrt))
    return build(demo_pair / "target", demo_pair / "draft", output, options, report=lambda line: None)


def run_script(pair: EnginePair, folder: Path) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    script = folder / "compile it.sh"
    script.write_text(compile_script(pair, script.name))
    command = ["bash", str(script), str(pair.path), str(folder / "the engines")]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)


def call_roles(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]


def run_cli(*words: object) -> int:
    try:
        main([str(word) for word in words])
    except SystemExit as exited:
        return int(exited.code or 0)
    return 0


def test_a_script_compiles_what_a_build_would_have(
    gpu_host: Path, converted: EnginePair, demo_pair: Path, tmp_path: Path
) -> None:
    done = run_script(converted, tmp_path / "a place")
    assert done.returncode == 0, done.stderr
    adopted = adopt(converted.path, tmp_path / "a place" / "the engines", tmp_path / "adopted")
    here = build_pair(demo_pair, tmp_path / "here")
    for role in ("target", "draft"):
        ours, theirs = (
            json.loads((pair.path / role / "config.json").read_text()) for pair in (here, adopted)
        )
        assert ours == theirs
    assert adopted.manifest.target.settings == here.manifest.target.settings
    assert adopted.manifest.host_needs == here.manifest.host_needs
    assert adopted.manifest.versions == here.manifest.versions
    assert adopted.manifest.compiled
    assert adopted.manifest.files == here.manifest.files
    assert open_pair(adopted.path).manifest == adopted.manifest
    assert "trtllm-build.log" in adopted.manifest.target.files


def test_a_script_says_nothing_of_the_machine_it_was_written_on(converted: EnginePair) -> None:
    script = compile_script(converted)
    assert str(converted.path) not in script
    assert IMAGE in script
    assert "set -euo pipefail" in script
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("exit", "out of memory"),
        ("speculation", "speculative_decoding_mode is 1, expected 2"),
        ("paged", "use_paged_context_fmha is False, expected True"),
        ("rank", "rank0.engine is missing"),
    ],
)
def test_a_script_stops_at_an_engine_that_is_not_what_was_asked(
    gpu_host: Path,
    converted: EnginePair,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    message: str,
) -> None:
    monkeypatch.setenv("TRTLLM_BUILD_FAULT", fault)
    done = run_script(converted, tmp_path / "place")
    assert done.returncode not in (0, 2)
    assert message in done.stdout + done.stderr
    assert {call["role"] for call in call_roles(tmp_path)} == {"target"}
    assert "compiled:" not in done.stdout


def test_a_script_that_was_stopped_goes_on_with_the_engine_that_is_missing(
    gpu_host: Path, converted: EnginePair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTLLM_BUILD_FAULT", "exit")
    monkeypatch.setenv("TRTLLM_BUILD_FAULTY", "draft")
    assert run_script(converted, tmp_path).returncode != 0
    engines = tmp_path / "the engines"
    before = (engines / "target" / "rank0.engine").stat().st_mtime_ns
    monkeypatch.delenv("TRTLLM_BUILD_FAULT")
    done = run_script(converted, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "the target is compiled already\ncompiling the draft" in done.stdout
    assert (engines / "target" / "rank0.engine").stat().st_mtime_ns == before
    assert adopt(converted.path, engines, tmp_path / "adopted").manifest.compiled


def test_a_script_goes_on_with_engines_of_its_pair_and_machine_only(
    gpu_host: Path, converted: EnginePair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_script(converted, tmp_path).returncode == 0
    monkeypatch.setenv("TRTLLM_BUILD_SM", "89")
    assert "begun with {" in run_script(converted, tmp_path).stderr
    (tmp_path / "the engines" / "pair.json").write_text("{}")
    assert "not with engines of this pair" in run_script(converted, tmp_path).stderr


def test_a_script_refuses_another_tensorrt_llm(
    converted: EnginePair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in install(tmp_path / "tools", version="1.3.0").items():
        monkeypatch.setenv(name, value)
    done = run_script(converted, tmp_path / "place")
    assert done.returncode == 1
    assert f"TensorRT-LLM is 1.3.0, expected 1.2.1; run this in {IMAGE}" in done.stderr


def test_a_script_needs_both_folders_and_overwrites_none(converted: EnginePair, tmp_path: Path) -> None:
    script = tmp_path / "compile.sh"
    script.write_text(compile_script(converted))

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", str(script), *map(str, words)], capture_output=True, text=True, check=False
        )

    assert (run().returncode, "usage:" in run(converted.path).stderr) == (2, True)
    assert "no trtspec.json" in run(tmp_path, tmp_path / "new").stderr
    assert "exists already" in run(converted.path, tmp_path).stderr


@pytest.fixture
def engines(gpu_host: Path, converted: EnginePair, tmp_path: Path) -> Path:
    """Engines that the script has compiled."""
    assert run_script(converted, tmp_path / "place").returncode == 0
    return tmp_path / "place" / "the engines"


def test_engines_of_another_pair_are_not_adopted(
    engines: Path, converted: EnginePair, tmp_path: Path
) -> None:
    config = json.loads((engines / "draft" / "config.json").read_text())
    config["pretrained_config"]["vocab_size"] = 7
    (engines / "draft" / "config.json").write_text(json.dumps(config))
    with pytest.raises(BuildError, match=r"draft: not the engine .*vocab_size is 7, expected 4096"):
        adopt(converted.path, engines, tmp_path / "pair")
    assert not (tmp_path / "pair").exists()


def test_what_is_missing_of_the_engines_is_named(
    engines: Path, converted: EnginePair, tmp_path: Path
) -> None:
    (engines / "versions.json").unlink()
    with pytest.raises(BuildError, match=r"versions\.json: missing; expected the folder that the script"):
        adopt(converted.path, engines, tmp_path / "pair")
    with pytest.raises(OutputError, match="exists already"):
        adopt(converted.path, engines, engines)


def test_only_a_converted_pair_can_be_finished(engines: Path, built_pair: EnginePair, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="made for --runtime cpu and compiled already"):
        adopt(built_pair.path, engines, tmp_path / "pair")


def test_the_commands_lead_from_checkpoints_to_a_finished_pair(
    gpu_host: Path, demo_pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, pair = tmp_path / "compile.sh", tmp_path / "converted"
    words = ["build", demo_pair / "target", demo_pair / "draft", "--output", pair]
    assert run_cli(*words, "--runtime", "tensorrt", "--dtype", "float16", "--script", script) == 0
    assert f"converted, to be compiled with {script}" in capsys.readouterr().out
    assert os.access(script, os.X_OK)
    subprocess.run([script, pair, tmp_path / "engines"], check=True, capture_output=True)
    finished = ["adopt", pair, tmp_path / "engines", "--output", tmp_path / "pair"]
    assert run_cli(*finished, "--json") == 0
    assert json.loads(capsys.readouterr().out)["compiled"] is True
    assert run_cli(*finished) == 1
    assert "exists already" in capsys.readouterr().err
    assert run_cli("adopt", pair) == 2


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_a_container_compiles_what_a_build_on_this_machine_would_have(
    gpu_host: Path, demo_pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    hidden = hide_trtllm_build(gpu_host, monkeypatch)
    install_engine(tmp_path / "engine", engine, image=IMAGE, inside=hidden, environment=monkeypatch)
    pair = build_pair(demo_pair, tmp_path / "pair", compile="container")
    made_with = {"tensorrt_llm": "1.2.1", "tensorrt": "10.14.1.48", "cuda": "13.0", "container": IMAGE}
    assert made_with.items() <= pair.manifest.versions.items()
    assert pair.manifest.host_needs is not None
    assert (pair.manifest.host_needs.container, pair.manifest.host_needs.cuda) == (IMAGE, "13.0")
    assert {"config.json", "rank0.engine"} <= pair.manifest.target.files.keys()
    runs = [json.loads(line) for line in (tmp_path / "engine" / "runs").read_text().splitlines()]
    compiled = [run for run in runs if "trtllm-build" in run]
    assert len(compiled) == 2
    for run in compiled:
        words = " ".join(run)
        assert "--network none" in words
        assert "readonly" in words
        gpus = "--gpus all" if engine == "docker" else "--device nvidia.com/gpu=all"
        assert gpus in words


def hide_trtllm_build(tools: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Move trtllm-build off PATH; return the folder that it lies in."""
    inside = tools / "inside"
    inside.mkdir()
    shutil.move(tools / "bin" / "trtllm-build", inside / "trtllm-build")
    return inside


def test_a_container_of_another_release_is_refused(
    demo_pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in install(tmp_path / "tools", version="1.1.0").items():
        monkeypatch.setenv(name, value)
    hidden = hide_trtllm_build(tmp_path / "tools", monkeypatch)
    install_engine(tmp_path / "engine", "docker", image="mine:1", inside=hidden, environment=monkeypatch)
    with pytest.raises(BuildError, match=r"mine:1: TensorRT-LLM is 1\.1\.0"):
        build_pair(demo_pair, tmp_path / "work" / "pair", compile="container", image="mine:1")
    with pytest.raises(BuildError, match=r"other:1: .* could not be found out \(.*no such image"):
        build_pair(demo_pair, tmp_path / "work" / "pair", compile="container", image="other:1")
    assert not (tmp_path / "work").exists()


def test_without_docker_and_podman_the_other_way_is_named(
    demo_pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(BuildError, match=r"neither docker nor podman is on PATH.*--script FILE"):
        build_pair(demo_pair, tmp_path / "pair", compile="container")


def test_a_container_that_fails_leaves_its_log_and_no_container(
    gpu_host: Path, demo_pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = hide_trtllm_build(gpu_host, monkeypatch)
    install_engine(tmp_path / "engine", "docker", image=IMAGE, inside=hidden, environment=monkeypatch)
    monkeypatch.setenv("TRTLLM_BUILD_FAULT", "exit")
    with pytest.raises(BuildError, match="ended with exit code 3"):
        build_pair(demo_pair, tmp_path / "work" / "pair", compile="container")
    assert "out of memory" in (tmp_path / "work" / "pair.target.log").read_text()


def test_folders_that_cannot_be_mounted_are_refused(tmp_path: Path) -> None:
    run = Run(BuildCommand({}), tmp_path, tmp_path / "a,b", tmp_path, tmp_path, None, lambda: None)
    with pytest.raises(BuildError, match="a,b: a container cannot be given a path with a comma"):
        Container(Path("docker"), IMAGE).argv(run, "a name")
