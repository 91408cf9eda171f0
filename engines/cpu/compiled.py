"""The kernels, compiled once for each machine, however many copies of this folder there are.

numba keeps what it has compiled beside the file that it compiled, and this folder is copied into
every repository. So kernels.py is imported from one place for each content, in the user's cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import stat
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from .errors import EngineLoadError

_SOURCE = Path(__file__).with_name("kernels.py")
# In each folder; its time is when a process last loaded the kernels.
_USED = "used"
_PREFIX = "trtspec_kernels_"
# What no process has loaded for so long is of a version that nobody runs.
_KEPT_S = 30 * 24 * 3600.0
# Who holds the lock for longer compiles; reading what is kept takes less.
_READING_S = 2.0
# Held until the process ends, which removes them.
_temporary: list[tempfile.TemporaryDirectory[str]] = []


def load(caches: Path) -> Any:
    """Return the module kernels.py, imported from a folder below `caches` that is named by its content.

    Where nothing can be written there, or others can write too, a folder that ends with the process
    takes its place, and the kernels are compiled anew (half a minute) in every process.
    """
    content = _SOURCE.read_bytes()
    name = f"{_PREFIX}{hashlib.sha256(content).hexdigest()[:16]}"
    if name not in sys.modules:
        try:
            folder = _private(caches.expanduser()) / name
            is_new = not folder.is_dir()
            file = _write(_private(folder) / _SOURCE.name, content)
            if is_new:
                _remove_unused(folder.parent)
        except (OSError, RuntimeError) as error:  # RuntimeError: a user without a home
            warnings.warn(f"{caches}: {error}; nothing compiled is kept", RuntimeWarning, stacklevel=2)
            _temporary.append(tempfile.TemporaryDirectory(prefix="trtspec-kernels-"))
            file = _write(Path(_temporary[-1].name, _SOURCE.name), content)
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        # Before it runs: what numba has kept names the classes in it.
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def compile_for(kernel: Any, *arguments: Any) -> None:
    """Compile a kernel for arguments of these types, or read what another process has compiled.

    One process compiles, the others wait and read: two would take twice as long, and numba may mix up
    the files of two that end together. What is kept and cannot be read is removed and made anew.
    Both say so on stderr: it takes long.

    Raises:
        EngineLoadError: numba is told not to compile.
    """
    if not hasattr(kernel, "compile"):
        raise EngineLoadError(
            "NUMBA_DISABLE_JIT is set, and the cpu engine runs compiled only; unset it to run this engine"
        )
    signature = tuple(kernel.typeof_pyval(argument) for argument in arguments)
    failed: list[BaseException] = []
    folder = Path(kernel.py_func.__code__.co_filename).parent

    def work() -> None:
        try:
            with _locked(folder), _telling(folder):
                _compile(kernel, signature)
        except BaseException as error:
            failed.append(error)

    # Signals reach the main thread. While that is in LLVM, llvmlite's callbacks swallow what they raise.
    thread = Thread(target=work, name="compiler", daemon=True)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


@contextmanager
def _telling(folder: Path) -> Iterator[None]:
    """Say that kernels are compiled, where any is: reading what is kept is no event of numba's."""
    from numba.core.event import Listener, install_listener

    kept = "" if any(folder == Path(held.name) for held in _temporary) else f", once, and kept in {folder}"

    class Teller(Listener):  # type: ignore[misc,unused-ignore]  # older numba has no types
        def on_start(self, event: Any) -> None:
            _say(f"compiling the cpu engine's kernels: about 20 s{kept}")

        def on_end(self, event: Any) -> None:
            pass

    with install_listener("numba:compile", Teller()):
        yield


@cache
def _say(line: str) -> None:
    """Print a line on stderr; the same one never again."""
    sys.stderr.write(f"trtspec: {line}\n")
    sys.stderr.flush()


def _compile(kernel: Any, signature: tuple[Any, ...]) -> None:
    try:
        kernel.compile(signature)
        return
    except Exception:
        if signature in kernel.overloads:
            return  # It could not be kept: a full disk.
    for file in Path(kernel.stats.cache_path).glob("*.nb[ic]"):
        with suppress(OSError):
            file.unlink()
    try:
        kernel.compile(signature)
    except OSError:
        if signature not in kernel.overloads:
            raise


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Wait until no other process compiles in this folder; where there are no locks, go on without."""
    descriptor = None
    try:
        with suppress(OSError):
            descriptor = os.open(folder / "lock", os.O_CREAT | os.O_RDWR, 0o600)
            if not _is_soon_ours(descriptor):
                _say(f"waiting for another process that compiles the cpu engine's kernels in {folder}")
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _is_soon_ours(descriptor: int) -> bool:
    """Take the lock, or give up after the time that another process takes to read what is kept."""
    patience = time.monotonic() + _READING_S
    while time.monotonic() < patience:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(0.02)
    return False


def _private(folder: Path) -> Path:
    """Make the folder, or raise PermissionError: who can write there can run code as this user."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"{folder} belongs to uid {found.st_uid}, mode {stat.filemode(found.st_mode)}")
    return folder


def _write(file: Path, content: bytes) -> Path:
    """Make the file hold the content; untouched where it does, since numba goes by its time."""
    with tempfile.TemporaryFile(dir=file.parent):
        pass  # numba must be able to write there
    with _locked(file.parent):
        with suppress(OSError):
            (file.parent / _USED).touch()
        if not file.exists() or file.read_bytes() != content:
            descriptor, part = tempfile.mkstemp(dir=file.parent)
            with os.fdopen(descriptor, "wb") as handle:
                handle.write(content)
            os.replace(part, file)
    return file


def _remove_unused(caches: Path) -> None:
    """Remove what other versions have compiled and nobody has loaded for a month.

    A process that loads it at this moment either makes it used first, or finds it gone and compiles anew.
    """
    for folder in caches.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if _is_unused(folder):
                with _locked(folder):
                    if _is_unused(folder):
                        # Renamed first: nobody is to load half of it, or to lock what is going.
                        shutil.rmtree(folder.rename(folder.with_name(f"removed_{folder.name}")))


def _is_unused(folder: Path) -> bool:
    # Earlier versions left no mark of use.
    marks = [file for file in (folder / _USED, folder / _SOURCE.name) if file.exists()]
    return time.time() - max(file.stat().st_mtime for file in marks or [folder]) > _KEPT_S


def _caches() -> Path:
    """Return the user's folder for what can be made again; a relative one is invalid and not followed."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (named if named.is_absolute() else Path("~/.cache")) / "trtspec-kernels"


if TYPE_CHECKING:
    from . import kernels as kernels
else:
    kernels = load(_caches())
