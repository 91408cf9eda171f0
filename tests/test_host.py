"""What a machine has, asked of fake programs on PATH."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from processes import ends

from trtspec.engines.host import FoundGpu, Probe, read_host_facts

H100 = "NVIDIA H100 80GB HBM3, 81559, 9.0, 570.172.08, Disabled"
BANNER = "| NVIDIA-SMI 570.172.08    Driver Version: 570.172.08    CUDA Version: 12.8     |"


def fake_program(folder: Path, name: str, script: str) -> Probe:
    """Put a shell script on a search path of its own."""
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return Probe(search_path=str(folder), timeout_s=5)


def fake_nvidia_smi(folder: Path, rows: str, banner: str = BANNER) -> Probe:
    script = f"case \"$1\" in --query-gpu=*) printf '%s\\n' '{rows}' ;; *) echo '{banner}' ;; esac"
    return fake_program(folder, "nvidia-smi", script)


def test_gpus_driver_and_cuda_are_those_that_nvidia_smi_shows(tmp_path):
    facts = read_host_facts(fake_nvidia_smi(tmp_path, f"{H100}\n{H100}"))
    assert facts.gpus == (FoundGpu("NVIDIA H100 80GB HBM3", 81559 * 2**20, 90),) * 2
    assert (facts.driver, facts.cuda, facts.sm, facts.sms) == ("570.172.08", "12.8", 90, (90,))
    assert facts.gpu_problem == ""


def test_different_gpus_are_known_by_the_lowest(tmp_path):
    rows = (
        f"{H100}\nNVIDIA L40S, 46068, 8.9, 570.172.08, [N/A]\nNVIDIA RTX 5090, 32607, 12.0, 570.172.08, [N/A]"
    )
    facts = read_host_facts(fake_nvidia_smi(tmp_path, rows))
    assert (facts.sms, facts.sm) == ((89, 90, 120), 89)


def test_what_the_driver_does_not_say_is_unknown(tmp_path):
    facts = read_host_facts(fake_nvidia_smi(tmp_path, "NVIDIA GB10, [N/A], [N/A], 580.95.05, Enabled", "old"))
    assert facts.gpus == (FoundGpu("NVIDIA GB10", None, None, mig=True),)
    assert (facts.sm, facts.cuda, facts.driver) == (None, None, "580.95.05")


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo 'No devices were found'; exit 0", r"nvidia-smi lists none \(No devices were found\)"),
        ("exit 0", "nvidia-smi lists none"),
        (
            "echo 'NVIDIA-SMI has failed because it could not communicate with the driver.'; exit 9",
            "nvidia-smi: ended with 9: NVIDIA-SMI has failed because it could not communicate",
        ),
    ],
)
def test_a_machine_without_a_working_gpu_says_why(tmp_path, script, problem):
    facts = read_host_facts(fake_program(tmp_path, "nvidia-smi", script))
    assert facts.gpus == ()
    assert facts.sm is None
    assert re.match(problem, facts.gpu_problem)


def test_a_machine_without_nvidia_smi_has_no_gpu(tmp_path):
    facts = read_host_facts(Probe(search_path=str(tmp_path)))
    assert (facts.gpus, facts.gpu_problem) == ((), "nvidia-smi: not on PATH")


def test_a_program_that_hangs_is_given_up_with_its_children(tmp_path):
    child = tmp_path / "child"
    # Written whole or not at all.
    script = f"sleep 600 & echo $! > {child}.new; mv {child}.new {child}; wait"
    probe = fake_program(tmp_path, "docker", script)
    for timeout_s in (0.3, 3, 20):  # a longer one where it has not come so far in the one before
        answer = Probe(search_path=probe.search_path, timeout_s=timeout_s).ask("docker", "info")
        assert answer.problem == f"no answer in {timeout_s:g} s"
        if child.exists():
            break
    assert ends(int(child.read_text())), "the child of the hung program lives on"


def test_a_child_that_keeps_the_output_open_is_not_waited_for(tmp_path):
    child = tmp_path / "child"
    probe = fake_program(tmp_path, "docker", f"sleep 30 & echo $! > {child}; echo 27.1")
    answer = probe.ask("docker")
    os.kill(int(child.read_text()), 9)
    assert (answer.text, answer.problem) == ("27.1", "")


def test_a_program_that_cannot_be_run_is_a_problem_and_no_traceback(tmp_path):
    program = tmp_path / "docker"
    program.write_bytes(b"\x7fELF rubbish")
    program.chmod(0o755)
    answer = Probe(search_path=str(tmp_path)).ask("docker")
    assert answer.problem == f"{program} cannot be run (Exec format error)"


def test_versions_are_those_of_the_installed_packages(tmp_path, monkeypatch):
    for name, version in (("tensorrt_llm", "1.2.1"), ("tensorrt", "10.14.1.48")):
        metadata = tmp_path / f"{name}-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    monkeypatch.syspath_prepend(tmp_path)
    facts = read_host_facts(Probe(search_path=str(tmp_path)))
    assert (facts.tensorrt_llm, facts.tensorrt) == ("1.2.1", "10.14.1.48")
