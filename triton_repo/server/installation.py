"""Find a Triton server to run: one on PATH, or the one inside the nvidia-pytriton wheel."""

from __future__ import annotations

import ctypes.util
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from trtspec.errors import ServerError

BACKEND_FILES = ("libtriton_python.so", "triton_python_backend_utils.py")
STUB = "triton_python_backend_stub"


@dataclass(frozen=True)
class Installation:
    """A server binary and what it needs around it.

    backend_files empty means that the binary knows its own backends (a container's does).
    """

    binary: Path
    backend_files: tuple[Path, ...] = ()
    library_folders: tuple[Path, ...] = ()
    python_folder: Path | None = None

    def link_backends(self, folder: Path) -> Path | None:
        """Make a backend directory of links in `folder` and return it; None if none is needed.

        The backend looks for its stub beside itself, and the wheel keeps one stub per Python
        elsewhere; links leave the wheel as it was installed.
        """
        if not self.backend_files:
            return None
        python = folder / "python"
        python.mkdir(parents=True)
        for file in self.backend_files:
            (python / file.name).symlink_to(file)
        return folder


def find_installation(search_path: str | None = None, wheel: str = "pytriton") -> Installation:
    """Return the `tritonserver` on PATH (or on `search_path`), else the one in the installed `wheel`.

    Raises:
        ServerError: there is none, or the wheel's cannot run with this Python.
    """
    if found := shutil.which("tritonserver", path=search_path):
        return Installation(Path(found))
    spec = find_spec(wheel)  # found, not imported: importing it changes the process
    if spec is None or spec.origin is None:
        raise ServerError(
            "tritonserver: found none on PATH, and the package nvidia-pytriton is not installed; "
            "run inside a Triton container, or pip install 'trtspec[local]' (Linux x86-64)"
        )
    return bundled_installation(Path(spec.origin).parent)


def bundled_installation(
    package: Path,
    *,
    python_version: str = f"{sys.version_info.major}.{sys.version_info.minor}",
    numpy_version: str | None = None,
    libpython: str | None = None,
    library_folders: Sequence[Path] | None = None,
) -> Installation:
    """Return the server inside the nvidia-pytriton wheel, whose `pytriton` folder is `package`.

    The other arguments describe the Python that will run the models; by default this one.

    Raises:
        ServerError: names everything that stands in the way, not only the first.
    """
    root = package / "tritonserver"
    stub = root / "python_backend_stubs" / python_version / STUB
    soname = libpython or f"libpython{python_version}.so.1.0"
    folders = python_library_folders() if library_folders is None else library_folders
    folder = next((folder for folder in folders if (folder / soname).is_file()), None)
    # Without --enable-shared this Python has no library of its own; the loader may know a system's.
    known_to_loader = library_folders is None and ctypes.util.find_library(f"python{python_version}")

    faults = [
        _stub_fault(stub),
        None if folder or known_to_loader else _libpython_fault(soname, folders),
        _numpy_fault(_installed_numpy() if numpy_version is None else numpy_version),
    ]
    if found := [fault for fault in faults if fault]:
        raise ServerError("the tritonserver of nvidia-pytriton cannot run here: " + "; ".join(found))

    backend = root / "backends" / "python"
    libraries = package.parent / "nvidia_pytriton.libs"
    return Installation(
        binary=root / "bin" / "tritonserver",
        backend_files=(*(backend / name for name in BACKEND_FILES), stub),
        library_folders=(libraries, folder) if folder else (libraries,),
        # The stub finds its site-packages through the first python3 on PATH and nothing else.
        python_folder=Path(sys.executable).parent,
    )


def python_library_folders() -> list[Path]:
    """Return where this Python's own shared library can lie, best first."""
    configured = Path(sysconfig.get_config_var("LIBDIR") or "/usr/lib")
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    # A relocated Python still has the LIBDIR of the machine that built it: then its prefix is right.
    return [Path(sys.base_prefix) / "lib", configured, configured / multiarch]


def _stub_fault(stub: Path) -> str | None:
    if stub.is_file():
        return None
    there = sorted((folder.name for folder in stub.parents[1].glob("3.*")), key=lambda name: int(name[2:]))
    return (
        f"found no stub for Python {stub.parent.name}, expected one of {', '.join(there)}; use one of these"
    )


def _libpython_fault(soname: str, folders: Sequence[Path]) -> str:
    looked = ", ".join(map(str, dict.fromkeys(folders)))
    return (
        f"found no {soname} in {looked}; install the package that has it (libpython3-dev, python3-libs), "
        "or use a Python built with --enable-shared"
    )


def _numpy_fault(numpy_version: str) -> str | None:
    if not numpy_version:
        return "found no numpy for its models, expected numpy 1.x; pip install 'numpy<2'"
    if int(numpy_version.split(".")[0]) < 2:
        return None
    return (
        f"found numpy {numpy_version}, with which its tensors arrive empty, expected 1.x; "
        "pip install 'numpy<2'"
    )


def _installed_numpy() -> str:
    try:
        return version("numpy")
    except PackageNotFoundError:
        return ""
