"""How the command ends: its exit codes, and what it leaves when a signal or the system ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import click
import pytest

from trtspec.cli import COMMANDS, EXIT_MISMATCH, main, trtspec


def test_a_command_that_exits_with_a_code_ends_the_process_with_it(monkeypatch):
    @click.command("mismatch")
    @click.pass_context
    def command_double(ctx: click.Context) -> None:
        ctx.exit(EXIT_MISMATCH)

    monkeypatch.setattr(trtspec, "get_command", lambda ctx, name: command_double)
    with pytest.raises(SystemExit) as stopped:
        main(["mismatch"])
    assert stopped.value.code == EXIT_MISMATCH


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_removes_the_temporary_folders_of_any_command(
    monkeypatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], number: signal.Signals, code: int
):
    @click.command("folder")
    def command_double() -> None:
        with tempfile.TemporaryDirectory(dir=tmp_path):
            os.kill(os.getpid(), number)
            raise AssertionError("the signal did not unwind")

    before = signal.getsignal(number)
    monkeypatch.setattr(trtspec, "get_command", lambda ctx, name: command_double)
    with pytest.raises(SystemExit) as stopped:
        main(["folder"])
    assert stopped.value.code == code
    assert capsys.readouterr().err == f"trtspec: stopped by {number.name}\n"
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(number) is before


def test_an_interrupt_of_an_import_gives_python_m_the_same_exit_code(tmp_path: Path):
    script = """
import click, runpy, sys
from trtspec.cli import trtspec

@click.command("importing")
def command_double():
    exec("import os, signal; os.kill(os.getpid(), signal.SIGINT)\\nwhile True: pass")

trtspec.get_command = lambda context, name: command_double
sys.argv = ["trtspec", "importing"]
runpy.run_module("trtspec", run_name="__main__")
"""
    (tmp_path / "interrupted.py").write_text(script)
    command = [sys.executable, "-m", "interrupted"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr.strip()) == (130, "trtspec: interrupted")


@pytest.mark.parametrize(
    "arguments",
    [
        ["build", "a", "b", "--output", "c", "--max-kl", "nan"],
        ["build", "a", "b", "--output", "c", "--free-gpu-memory", "nan"],
        ["serve", "a", "--start-timeout", "nan"],
    ],
)
def test_what_is_not_a_number_is_wrong_usage(capsys: pytest.CaptureFixture[str], arguments: list[str]):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "'nan' is not a number" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_no_help_shows_a_bound_that_is_none(capsys: pytest.CaptureFixture[str], command: str) -> None:
    main([command, "--help"])
    assert "None]" not in capsys.readouterr().out


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_does_not_end_the_cleaning_up(
    monkeypatch: pytest.MonkeyPatch, second: signal.Signals
) -> None:
    cleaned = []

    @click.command("slow")
    def command_double() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), second)
            cleaned.append("up")

    monkeypatch.setattr(trtspec, "get_command", lambda ctx, name: command_double)
    with pytest.raises(SystemExit) as stopped:
        main(["slow"])
    assert (stopped.value.code, cleaned) == (143, ["up"])


def test_a_hangup_that_is_ignored_stays_ignored(monkeypatch):
    @click.command("hangup")
    def command_double() -> None:
        os.kill(os.getpid(), signal.SIGHUP)

    monkeypatch.setattr(trtspec, "get_command", lambda ctx, name: command_double)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        main(["hangup"])
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [["--version"], ["demo", "--help"]])
def test_a_full_device_is_one_line_on_stderr(arguments: list[str], unbuffered: str):
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "trtspec", *arguments],
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert ended.returncode == 1
    assert ended.stderr == "trtspec: [Errno 28] No space left on device\n"


def test_a_reader_that_has_left_is_no_error_to_speak_of():
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "trtspec", "--version"],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writer)
    assert ended.stderr == ""
