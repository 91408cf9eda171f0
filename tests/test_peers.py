"""The benchmark of peers: what it computes from answers, and that it asks for what it needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks" / "peers"


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Any:
    """benchmarks/peers/report.py, which is a script's module and in no package."""
    monkeypatch.syspath_prepend(FOLDER)
    for name in ("report", "systems"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import report

    yield report
    for name in ("report", "systems"):
        del sys.modules[name]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER / "run.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_help_needs_no_peer() -> None:
    done = run("--help")
    assert done.returncode == 0, done.stderr
    assert "onnxruntime-genai" in done.stdout


def test_a_peer_without_an_interpreter_that_has_it_is_refused_before_anything_starts() -> None:
    done = run("--only", "openvino-genai", "--only", "trtspec")
    assert done.returncode == 2
    assert "openvino-genai: --peers-python is missing" in done.stderr


def test_a_row_has_medians_equal_answers_and_what_was_read(report: Any) -> None:
    from systems import Answer

    ids = list(range(10))
    expected = {prompt: Answer(ids, 9.0) for prompt in range(3)}
    answers = {
        0: Answer(ids, 1.0, 4, 12),
        1: Answer(ids, 2.0, 5, 15),
        2: Answer([*ids[:-1], 77], 8.0, 6, 18),
    }
    row = report.row("a", "bfloat16", 3, answers, expected, (2 * 10**9, 2 * 10**8))
    assert row.tokens_per_s == 10 / 2.0
    assert (row.equal, row.answers) == (2, 3)
    assert row.tokens_per_pass == 10 / 5
    assert row.read_gb_per_s == pytest.approx((5 * 1.0 + 15 * 0.1) * 2 / 2.0)


def test_passes_that_a_peer_does_not_tell_stay_unknown(report: Any) -> None:
    from systems import Answer

    row = report.row("a", "float32", 3, {0: Answer([1], 1.0)}, {}, (1, 1))
    assert (row.equal, row.tokens_per_pass, row.read_gb_per_s) == (None, None, None)
    assert "–" in report.table([row], 10.0, with_share=True)


def test_the_table_compares_each_at_its_best_draft_length(report: Any) -> None:
    from systems import Answer

    def row(system: str, draft_length: int, seconds: float) -> Any:
        return report.row(
            system, "float32", draft_length, {0: Answer([1] * 12, seconds, 12, 0)}, {}, (4 * 10**9, 0)
        )

    rows = [
        row("transformers", 0, 4.0),
        row("transformers", 3, 3.0),
        row("onnxruntime-genai", 3, 1.0),
        row("trtspec", 0, 3.0),
        row("trtspec", 3, 1.5),
        row("trtspec", 5, 2.0),
    ]
    lines = report.table(rows, 48.0, with_share=True).splitlines()
    assert [line.split()[1:5] for line in lines[1:4]] == [
        ["0", "3.0", "0.75", "1.00"],
        ["3", "4.0", "*", "1.00"],
        ["3", "12.0", "*", "3.00"],
    ]
    # 12 passes in 4 s, each of 4 GB: 12 of 48 GB/s.
    assert lines[1].endswith("25%")
    assert lines[-1] == "trtspec at γ 3 / onnxruntime-genai at γ 3, the best peer: 0.67"
    assert report.summary(rows, 48.0)["best"] == {"transformers": 3, "onnxruntime-genai": 3, "trtspec": 3}
