"""An engine of the cpu runtime that cannot be run, as those see it who run it in process."""

from __future__ import annotations

from pathlib import Path

import pytest
from cpu_checkpoints import copy_checkpoint

from trtspec.engines.fingerprint import fingerprint_of
from trtspec.engines.load import load_engine
from trtspec.errors import EngineError, TrtspecError


def test_an_engine_that_cannot_be_run_is_an_error_of_the_one_tree(demo_pair: Path, tmp_path: Path) -> None:
    folder = copy_checkpoint(demo_pair / "draft", tmp_path / "draft", dtype="float16")
    with pytest.raises(EngineError, match=r"engine\.json: dtype is 'float16', expected one of"):
        load_engine(folder)


def test_a_fingerprint_of_a_broken_engine_is_refused_in_one_line(demo_pair: Path, tmp_path: Path) -> None:
    folder = copy_checkpoint(demo_pair / "draft", tmp_path / "draft")
    (folder / "config.json").write_text("{")
    with pytest.raises(TrtspecError, match=r"config\.json: not JSON"):
        fingerprint_of(folder, None, demo_pair / "draft", {"target": "float32"})
