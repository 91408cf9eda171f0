"""The compiled pass in its parts: products, rounding, and where it is kept once compiled."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trtspec.engines.cpu import compiled
from trtspec.engines.cpu.compiled import kernels

FOLDER = Path(compiled.__file__).parent
sizes = st.integers(1, 70)


def random(seed: int, *shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def halves(weight: np.ndarray[Any, np.dtype[np.float32]]) -> tuple[Any, Any]:
    """A matrix rounded down to bfloat16: its upper halves, and the values they are."""
    upper = (weight.view(np.uint32) >> 16).astype(np.uint16)
    return upper, (upper.astype(np.uint32) << 16).view(np.float32)


@given(rows=st.integers(1, 20), size=sizes, outputs=sizes, narrow=st.booleans(), seed=st.integers(0, 99))
def test_a_product_is_the_matrix_product(rows: int, size: int, outputs: int, narrow: bool, seed: int) -> None:
    x, weight = random(seed, rows, size), random(seed + 1, outputs, size)
    stored, values = halves(weight) if narrow else (weight, weight)
    y = np.empty((rows, kernels.padded(outputs)), np.float32)
    kernels._product(x, rows, size, kernels.pack(stored), size * kernels.BLOCK, outputs, y)
    expected = x.astype(np.float64) @ values.T.astype(np.float64)
    np.testing.assert_allclose(y[:, :outputs], expected, atol=1e-5 * size)
    assert not y[:, outputs:].any()


@given(rows=st.integers(2, 20), size=sizes, narrow=st.booleans(), seed=st.integers(0, 99))
def test_a_row_has_the_same_bits_whatever_is_beside_it(rows: int, size: int, narrow: bool, seed: int) -> None:
    x, weight = random(seed, rows, size), random(seed + 1, 32, size)
    packed = kernels.pack(halves(weight)[0] if narrow else weight)

    def product(x: Any) -> Any:
        y = np.empty((len(x), 32), np.float32)
        kernels._product(x, len(x), size, packed, size * kernels.BLOCK, 32, y)
        return y

    together = product(x)
    assert all((product(x[row : row + 1]) == together[row]).all() for row in range(rows))


@given(st.integers(1, 70), sizes, st.booleans())
def test_a_row_is_found_again_in_the_packed_matrix(rows: int, size: int, narrow: bool) -> None:
    weight = random(rows, rows, size)
    stored, values = halves(weight) if narrow else (weight, weight)
    packed, row = kernels.pack(stored), np.empty(size, np.float32)
    for index in range(rows):
        kernels._unpack(packed, index, row)
        assert (row == values[index]).all()


def test_rounding_to_fp8_is_torchs() -> None:
    powers = np.float32(2.0) ** np.arange(-20, 10)
    x = np.concatenate([np.linspace(-500, 500, 40_001), random(1, 20_000) / 100, powers, powers * 1.0625])
    x = x.astype(np.float32)[None]
    codes, scales = np.empty_like(x), np.empty(1, np.float32)
    kernels._quantise(x, 1, x.size, 1.0, codes, scales)
    expected = torch.from_numpy(x).clamp(-448, 448).to(torch.float8_e4m3fn).float().numpy()
    assert (codes == expected).all()


def test_the_exponential_is_close_over_all_of_float32() -> None:
    x = np.linspace(-87, 88, 50_001, dtype=np.float32)
    y = np.array([kernels._exp(value) for value in x[::50]])
    np.testing.assert_allclose(y, np.exp(x[::50].astype(np.float64)), rtol=3e-7)


def test_nothing_is_taken_for_a_small_probability() -> None:
    assert kernels._exp(np.float32(-1e30)) < 1e-37


def copied(tmp_path: Path) -> Path:
    """The engine's folder as a repository holds it, a package of another name."""
    package = tmp_path / "copy_of_cpu"
    shutil.copytree(FOLDER, package, ignore=shutil.ignore_patterns("__pycache__"))
    return package


def run_copy(package: Path, caches: Path) -> str:
    """Import a copy in a process of its own and return the file that its kernels came from."""
    code = f"from {package.name}.compiled import kernels; print(kernels.__file__, kernels.run.__name__)"
    environment = os.environ | {"XDG_CACHE_HOME": str(caches)}
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=package.parent, env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    file, name = ran.stdout.split()
    assert name == "run"
    return file


def written(file: str) -> tuple[int, int, int]:
    """What changes when a file is written anew; reading changes another time."""
    found = os.stat(file)
    return found.st_ino, found.st_size, found.st_mtime_ns


def test_copies_of_the_engine_share_what_is_compiled(tmp_path: Path) -> None:
    caches = tmp_path / "caches"
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    file = run_copy(copied(tmp_path / "one"), caches)
    before = written(file)
    assert file.startswith(str(caches))
    assert run_copy(copied(tmp_path / "two"), caches) == file
    assert written(file) == before
    assert stat.S_IMODE(os.stat(Path(file).parent).st_mode) == 0o700


def test_a_changed_engine_does_not_take_what_another_compiled(tmp_path: Path) -> None:
    package, caches = copied(tmp_path), tmp_path / "caches"
    file = run_copy(package, caches)
    with (package / "kernels.py").open("a") as source:
        source.write("\n# changed\n")
    assert run_copy(package, caches) != file


def test_a_damaged_copy_is_written_anew(tmp_path: Path) -> None:
    package, caches = copied(tmp_path), tmp_path / "caches"
    file = Path(run_copy(package, caches))
    file.write_text("run = None")
    assert run_copy(package, caches) == str(file)
    assert file.read_bytes() == (package / "kernels.py").read_bytes()


def test_an_engine_runs_where_the_cache_cannot_be_written(tmp_path: Path) -> None:
    caches = tmp_path / "caches"
    caches.write_text("no folder")
    file = Path(run_copy(copied(tmp_path), caches))
    assert caches not in file.parents
    assert not file.parent.exists()


def kept(caches: Path, name: str, **days: float) -> Path:
    """A folder in the cache with files of these ages."""
    folder = caches / f"trtspec_kernels_{name}"
    folder.mkdir(parents=True, mode=0o700)
    for file, age in days.items():
        path = folder / {"kernels": "kernels.py"}.get(file, file)
        path.touch()
        os.utime(path, (time.time() - age * 86400,) * 2)
    return folder


def test_a_new_version_removes_what_nobody_has_loaded_for_a_month(tmp_path: Path) -> None:
    package, caches = copied(tmp_path), tmp_path / "caches"
    folders = caches / "trtspec-kernels"
    unused = [
        kept(folders, "unused", kernels=90, used=40),
        kept(folders, "older", kernels=40),
    ]
    others = [kept(folders, "used", kernels=90, used=20), kept(folders, "young", kernels=20)]
    foreign = folders / "something"
    foreign.mkdir()
    os.utime(foreign, (0, 0))
    file = Path(run_copy(package, caches))
    assert set(folders.iterdir()) == {file.parent, foreign, *others}
    # Only who is new looks; whoever comes again marks his own as used.
    os.utime(file.parent / "used", (0, 0))
    unused[0].mkdir()
    os.utime(unused[0], (0, 0))
    assert run_copy(package, caches) == str(file)
    assert unused[0].is_dir()
    assert (file.parent / "used").stat().st_mtime > 0


def test_what_another_process_takes_up_meanwhile_stays(tmp_path: Path) -> None:
    folder = kept(tmp_path, "old", kernels=90, used=40)
    with compiled._locked(folder):
        remover = Thread(target=compiled._remove_unused, args=(tmp_path,))
        remover.start()
        (folder / "used").touch()
    remover.join()
    assert (folder / "kernels.py").exists()


def test_two_new_versions_at_once_remove_the_same(tmp_path: Path) -> None:
    for name in range(20):
        kept(tmp_path, str(name), kernels=40)
    removers = [Thread(target=compiled._remove_unused, args=(tmp_path,)) for _ in range(4)]
    for remover in removers:
        remover.start()
    for remover in removers:
        remover.join()
    assert not list(tmp_path.iterdir())


def compile_product(caches: Path, code: str = "") -> subprocess.Popen[str]:
    """Start a process that compiles a kernel in `caches` and prints how often it had to."""
    code = (
        f"{code}\nimport numpy as np\n"
        "from trtspec.engines.cpu.compiled import compile_for, kernels\n"
        "compile_for(kernels.fill, np.zeros((1, 1), np.float32), np.zeros(1, np.float32))\n"
        "print(sum(kernels.fill.stats.cache_misses.values()), kernels.pack(np.ones((1, 1), np.float32))[0])\n"
    )
    environment = os.environ | {"XDG_CACHE_HOME": str(caches)}
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def output(process: subprocess.Popen[str]) -> str:
    out, error = process.communicate()
    assert process.returncode == 0, error
    return out.strip()


def test_of_two_processes_one_compiles_and_the_other_reads(tmp_path: Path) -> None:
    both = [compile_product(tmp_path) for _ in range(2)]
    assert sorted(output(process) for process in both) == ["0 1.0", "1 1.0"]


def test_who_compiles_says_so_once_and_where_it_is_kept_and_who_reads_says_nothing(tmp_path: Path) -> None:
    compiling, reading = (compile_product(tmp_path).communicate()[1] for _ in range(2))
    (folder,) = (tmp_path / "trtspec-kernels").iterdir()
    line = f"trtspec: compiling the cpu engine's kernels: about 20 s, once, and kept in {folder}\n"
    assert (compiling, reading) == (line, "")


def test_who_waits_for_another_that_compiles_says_so(tmp_path: Path) -> None:
    folder = Path(run_copy(copied(tmp_path), tmp_path)).parent
    with compiled._locked(folder):
        waiting = compile_product(tmp_path)
        assert waiting.stderr is not None
        line = waiting.stderr.readline()
    output(waiting)
    assert (
        line == f"trtspec: waiting for another process that compiles the cpu engine's kernels in {folder}\n"
    )


def test_an_engine_that_numba_must_not_compile_is_refused(tmp_path: Path) -> None:
    process = compile_product(tmp_path, "import os\nos.environ['NUMBA_DISABLE_JIT'] = '1'")
    assert process.communicate()[1].splitlines()[-1] == (
        "trtspec.engines.cpu.errors.EngineLoadError: NUMBA_DISABLE_JIT is set, and the cpu engine runs "
        "compiled only; unset it to run this engine"
    )


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
def test_what_was_kept_and_cannot_be_read_is_compiled_anew(ending: str, tmp_path: Path) -> None:
    output(compile_product(tmp_path))
    (kept,) = tmp_path.rglob(f"*.{ending}")
    kept.write_bytes(b"")
    assert output(compile_product(tmp_path)).endswith("1.0")
    assert output(compile_product(tmp_path)) == "0 1.0"


def test_a_full_disk_keeps_nothing_and_the_engine_runs(tmp_path: Path) -> None:
    full = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (25_000, 25_000))"
    source = (FOLDER / "kernels.py").stat().st_size
    assert source < 25_000
    assert output(compile_product(tmp_path, full)).endswith("1.0")


@pytest.mark.parametrize("folder", ["", "kernels"])
def test_what_others_can_write_is_not_run(folder: str, tmp_path: Path) -> None:
    package, caches = copied(tmp_path), tmp_path / "caches"
    file = Path(run_copy(package, caches))
    (file.parent if folder else file.parents[1]).chmod(0o777)
    assert caches not in Path(run_copy(package, caches)).parents


def test_a_relative_cache_folder_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert run_copy(copied(tmp_path), Path("caches")).startswith(str(tmp_path / "home/.cache"))


def test_an_interrupt_while_kernels_are_compiled_is_not_lost(tmp_path: Path) -> None:
    """LLVM calls back into Python, and what a signal raises there would be ignored."""
    code = (
        "import os, signal, threading\n"
        "from llvmlite.binding import executionengine\n"
        "read = executionengine.string_at\n"
        "def interrupted(*arguments):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    threading.Event().wait(0.2)\n"
        "    return read(*arguments)\n"
        "executionengine.string_at = interrupted\n"
    )
    process = compile_product(tmp_path, code)
    _, error = process.communicate()
    assert process.returncode != 0
    assert "KeyboardInterrupt" in error
    assert "Exception ignored" not in error


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_weights_of_bfloat16_are_packed_as_halves(dtype: torch.dtype, demo_pair: Path) -> None:
    from trtspec.engines.cpu.weights import Weights

    assert Weights(demo_pair / "draft", dtype).narrow
