"""The whole road, as a user walks it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_the_demo_builds_serves_verifies_and_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "trtspec", "demo", "--max-tokens", "4", "--json"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=1200, cwd=tmp_path, check=False)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert (found["ok"], found["answers"]) == (True, 9 * 20)
    assert found["tokens_per_s"].keys() == {"1", "8"}
    assert all(speeds.keys() == {"0", "3", "5", "-1"} for speeds in found["tokens_per_s"].values())
    assert not list(tmp_path.iterdir())
