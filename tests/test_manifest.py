"""The schema that ships is the manifest's, and packages give their names without loading anything."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from trtspec.engines.manifest import Manifest, schema
from trtspec.engines.pair import EnginePair, read_manifest
from trtspec.errors import EngineError


def test_the_schema_that_ships_is_the_one_of_the_manifest() -> None:
    shipped = (files("trtspec.engines") / "manifest.schema.json").read_text("utf-8")
    assert shipped == schema(), "write trtspec.engines.manifest.schema() to engines/manifest.schema.json"


def test_a_manifest_reads_back_as_what_was_written(built_pair: EnginePair) -> None:
    text = (built_pair.path / "trtspec.json").read_text("utf-8")
    assert Manifest.model_validate_json(text) == built_pair.manifest
    assert json.loads(text).keys() == json.loads(schema())["properties"].keys()


def test_a_manifest_that_is_nothing_but_brackets_is_our_error(tmp_path: Path) -> None:
    (tmp_path / "trtspec.json").write_text("[" * 100_000)
    with pytest.raises(EngineError, match="not JSON"):
        read_manifest(tmp_path / "trtspec.json")


def test_a_manifest_that_is_not_there_is_our_error(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="cannot be read: No such file or directory, expected the manifest"):
        read_manifest(tmp_path / "trtspec.json")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"log_probs": [-1.0]}, "found 8, 1, 8, 8 ids, log_probs, margins and tolerances, expected as many"),
        ({"ids": [], "log_probs": [], "margins": [], "tolerances": []}, "at least one"),
        ({"tolerances": [float("nan")] * 8}, "target.0.tolerances.0: Input should be a finite number"),
        ({"tolerances": [float("inf")] * 8}, "Input should be a finite number"),
        ({"prompt_ids": [2**40]}, "expected 0 to 2147483647"),
        ({"prompt_ids": []}, "found no prompt"),
    ],
)
def test_a_fingerprint_that_compares_nothing_is_refused(
    built_pair: EnginePair, tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    manifest = json.loads((built_pair.path / "trtspec.json").read_text("utf-8"))
    manifest["fingerprint"]["target"][0] |= changed
    (tmp_path / "trtspec.json").write_text(json.dumps(manifest))
    with pytest.raises(EngineError, match=message):
        read_manifest(tmp_path / "trtspec.json")


NAMES = {
    "trtspec.build": ("BuildOptions", "PairQuantization", "build", "default_cache", "open_checkpoint"),
    "trtspec.engines": ("EnginePair", "Manifest", "check_contents", "check_host", "open_pair"),
    "trtspec.triton_repo": ("RepositoryOptions", "ServeOptions", "serve", "write_repository"),
}


@pytest.mark.parametrize("package", NAMES)
def test_a_package_gives_its_names_and_loads_them_when_they_are_asked_for(package: str) -> None:
    script = f"import sys, {package}\nprint('pydantic' in sys.modules or 'numpy' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"
    module = import_module(package)
    assert all(callable(getattr(module, name)) for name in NAMES[package])
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nothing'"):
        module.nothing  # noqa: B018
