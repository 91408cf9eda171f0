"""Output folders appear whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from trtspec.errors import OutputError

# One by one: in an editable install each lies in a folder of its own.
PACKAGES = ("trtspec", "trtspec.build", "trtspec.engines", "trtspec.triton_repo", "trtspec.client")


@contextmanager
def publish(output: Path) -> Iterator[Path]:
    """Yield a temporary sibling to fill; it becomes `output` when the block ends without an error.

    Raises OutputError, before the block runs, when `output` exists, lies inside trtspec itself or
    cannot be made.
    """
    check_output(output)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{output.name}.", suffix=".partial", dir=output.parent))
    except OSError as error:
        raise OutputError(f"{output}: cannot be made ({error.strerror}); choose another --output") from error
    try:
        yield partial
        make_readable(partial)
        partial.rename(output)
    except OSError as error:
        where = error.filename or output
        raise OutputError(
            f"{where}: {error.strerror} while {output} was written; nothing of it is left"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def check_output(output: Path) -> None:
    """Raise OutputError when a new folder cannot be published as `output`."""
    if output.exists() or output.is_symlink():
        raise OutputError(f"{output}: exists already; remove it or choose another --output")
    for folder in source_folders():
        if output.resolve().is_relative_to(folder):
            raise OutputError(f"{output}: lies inside trtspec itself; choose an --output outside {folder}")


def source_folders() -> list[Path]:
    """Return the folders of trtspec's packages, which never receive output."""
    specs = [find_spec(name) for name in PACKAGES]
    return [Path(path).resolve() for spec in specs if spec for path in spec.submodule_search_locations or ()]


def make_readable(folder: Path) -> None:
    """Let every user read a folder: a server may run under another account (mkdtemp makes it private)."""
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)


def link_or_copy(source: Path, destination: Path) -> None:
    """Give a file a second name; copy it where the file system cannot.

    Only for files of ours, which nobody writes to again: both names are one file.
    """
    try:
        os.link(source, destination)
    except OSError:
        shutil.copyfile(source, destination)
