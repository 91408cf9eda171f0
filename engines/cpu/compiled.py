"""The kernels, compiled once for each machine, however many copies of this folder there are.

numba keeps what it has compiled beside the file that it compiled, and this folder is copied into
every repository. So kernels.py is imported from one place for each content, in the user's cache.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

_SOURCE = Path(__file__).with_name("kernels.py")
# Held until the process ends, which removes them.
_temporary: list[tempfile.TemporaryDirectory[str]] = []


def load(caches: Path) -> Any:
    """Return the module kernels.py, imported from a folder below `caches` that is named by its content.

    Where nothing can be written there, a folder that ends with the process takes its place, and the
    kernels are compiled anew (some ten seconds) at their first use.
    """
    content = _SOURCE.read_bytes()
    name = f"trtspec_kernels_{hashlib.sha256(content).hexdigest()[:16]}"
    if name not in sys.modules:
        try:
            file = _write(caches.expanduser() / name / _SOURCE.name, content)
        except (OSError, RuntimeError):  # RuntimeError: a user without a home
            _temporary.append(tempfile.TemporaryDirectory(prefix="trtspec-kernels-"))
            file = _write(Path(_temporary[-1].name, _SOURCE.name), content)
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        # Before it runs: what numba has kept names the classes in it.
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


def _write(file: Path, content: bytes) -> Path:
    """Make the file hold the content; untouched where it does, since numba goes by its time."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=file.parent):
        pass  # numba must be able to write there
    if not file.exists() or file.read_bytes() != content:
        descriptor, part = tempfile.mkstemp(dir=file.parent)
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(content)
        os.replace(part, file)
    return file


if TYPE_CHECKING:
    from . import kernels as kernels
else:
    kernels = load(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "trtspec-kernels"))
