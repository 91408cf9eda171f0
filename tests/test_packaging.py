"""The package holds what its folders hold, and imports no more than a command needs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import trtspec

ROOT = Path(__file__).parents[1]
FOLDERS = {
    "trtspec": ROOT / "trtspec",
    **{f"trtspec.{n}": ROOT / n for n in ("build", "engines", "triton_repo", "client")},
}
HEAVY = ("torch", "numba", "transformers", "tensorrt_llm", "tokenizers", "safetensors", "scipy")


def loaded_after(code: str) -> set[str]:
    """The modules a fresh interpreter has loaded after running some code."""
    script = f"import sys\n{code}\nprint('\\n'.join(sys.modules))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def packages_on_disk() -> set[str]:
    found = set()
    for name, folder in FOLDERS.items():
        for init in folder.rglob("__init__.py"):
            found.add(".".join([name, *init.parent.relative_to(folder).parts]))
    return found


def test_pyproject_lists_every_package() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    listed = re.search(r"^packages = \[(.*?)\]", text, re.S | re.M)
    assert listed is not None
    assert set(re.findall(r'"([\w.]+)"', listed[1])) == packages_on_disk()


def test_gitignore_hides_no_source_folder() -> None:
    entries = (ROOT / ".gitignore").read_text().split("\n")
    assert not {"build", "build/", "/build/", "dist/build"} & set(entries)
    ignored = subprocess.run(
        ["git", "check-ignore", "build/pair.py", "engines/pair.py", "client/verify/greedy.py"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    assert ignored.returncode == 1


def test_the_wheel_carries_sources_types_and_the_demo_pair(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "-q",
        "-w",
        str(tmp_path),
        str(ROOT),
    ]
    if subprocess.run([sys.executable, "-c", "import setuptools"], check=False).returncode:
        command.remove("--no-build-isolation")
    subprocess.run(command, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {
        f"trtspec/{p.relative_to(ROOT)}"
        for n in ("build", "engines", "triton_repo", "client")
        for pattern in ("*.py", "*.j2")
        for p in (ROOT / n).rglob(pattern)
    }
    assert sources <= names
    demo = {
        f"trtspec/demo_pair/{name}"
        for name in ("target/model.safetensors", "draft/config.json", "LICENSE-PYTHON.txt")
    }
    assert demo | {"trtspec/py.typed"} <= names
    assert not [name for name in names if name.startswith(("build/", "tests/"))]


@pytest.mark.parametrize("name", ["", "bench", "build", "demo", "plan", "serve", "verify"])
def test_help_imports_nothing_heavy(name: str) -> None:
    arguments = [*name.split(), "--help"]
    loaded = loaded_after(f"from trtspec.cli import main\ntry: main({arguments})\nexcept SystemExit: pass")
    assert "trtspec.cli" in loaded
    assert not {name for name in loaded if name.split(".")[0] in HEAVY}


def test_the_client_imports_numpy_and_tritonclient_only() -> None:
    loaded = {name.split(".")[0] for name in loaded_after("import trtspec.client")}
    assert not loaded & {*HEAVY, "click", "rich", "pydantic"}
    others = {name for name in loaded_after("import trtspec.client") if name.startswith("trtspec.")}
    assert {name.split(".")[1] for name in others} == {"choices", "client", "errors", "prompts"}


@pytest.mark.parametrize(
    ("folder", "below"),
    [("build", {"engines"}), ("triton_repo", {"engines"}), ("engines", set()), ("client", set())],
)
def test_a_folder_imports_only_what_lies_below_it(folder: str, below: set[str]) -> None:
    others = {*FOLDERS, "trtspec.cli"} - {"trtspec", f"trtspec.{folder}"} - {f"trtspec.{n}" for n in below}
    for file in (ROOT / folder).rglob("*.py"):
        imported = re.findall(r"^\s*(?:from|import) (trtspec\.\w+)", file.read_text(), re.M)
        assert not others & set(imported), file


@pytest.mark.parametrize("package", ["engines/cpu", "triton_repo/speculation"])
def test_what_is_copied_into_repositories_needs_nothing_of_ours(package: str) -> None:
    for file in (ROOT / package).glob("*.py"):
        assert not re.search(r"^\s*(from|import) trtspec", file.read_text(), re.M), file


def test_no_checkpoint_is_loaded_with_its_own_code() -> None:
    calls = {
        f"{file.relative_to(ROOT)}:{call.lineno}": call
        for folder in FOLDERS.values()
        for file in folder.rglob("*.py")
        for call in ast.walk(ast.parse(file.read_text()))
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(".from_pretrained")
    }
    assert calls
    # One that is given None reads no folder.
    reading = {where: call for where, call in calls.items() if ast.unparse(call.args[0]) != "None"}
    assert reading != calls
    assert not [
        where
        for where, call in reading.items()
        if "trust_remote_code=False" not in map(ast.unparse, call.keywords)
    ]


def test_the_version_is_the_one_of_pyproject() -> None:
    assert f'version = "{trtspec.__version__}"' in (ROOT / "pyproject.toml").read_text()
