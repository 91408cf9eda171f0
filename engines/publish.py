"""Output folders appear whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from importlib.util import find_spec
from pathlib import Path

from trtspec.errors import OutputError

# One by one: in an editable install each lies in a folder of its own.
PACKAGES = ("trtspec", "trtspec.build", "trtspec.engines", "trtspec.triton_repo", "trtspec.client")

# What a disk or a quota that is full says.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
PARTIAL = ".partial"
YOUNG_S = 1.0


@contextmanager
def publish(output: Path) -> Iterator[Path]:
    """Yield a temporary sibling to fill; it becomes `output` when the block ends without an error.

    Raises OutputError, before the block runs, when `output` exists, lies inside trtspec itself or
    cannot be made.
    """
    check_output(output)
    with temporary_sibling(output) as partial:
        try:
            yield partial
            make_readable(partial)
            partial.rename(output)
        except OSError as error:
            # Of a copy that had no room, `filename` is the source.
            where = output.parent if error.errno in FULL else error.filename or output
            reason = error.strerror or error
            raise OutputError(
                f"{where}: {reason} while {output} was written; nothing of it is left"
            ) from error


@contextmanager
def temporary_sibling(output: Path) -> Iterator[Path]:
    """Yield a new folder beside `output`, which is removed when the block ends.

    Those of processes that were killed are removed too.

    Raises:
        OutputError: it cannot be made.
    """
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(output)
        folder = Path(tempfile.mkdtemp(prefix=f".{output.name}.", suffix=PARTIAL, dir=output.parent))
    except OSError as error:
        raise OutputError(f"{output}: cannot be made ({error.strerror}); choose another --output") from error
    lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _try_lock(lock)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _remove_abandoned(output: Path) -> None:
    """Remove the temporary siblings whose process has ended: they are locked as long as it lives."""
    for folder in output.parent.glob(f".{escape(output.name)}.*{PARTIAL}"):
        with suppress(OSError):
            # A younger one may be of a process that has not locked it yet.
            if time.time() - folder.stat().st_mtime > YOUNG_S and _is_abandoned(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _try_lock(lock)
    finally:
        os.close(lock)


def _try_lock(descriptor: int) -> bool:
    """Lock a file that is open, until it is closed; False where another has, or the file system cannot."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


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
    """Let every user read a folder: a server may run under another account (mkdtemp makes it private).

    What is read-only stays so: it may be one file with another of that name.
    """
    for path in [folder, *folder.rglob("*")]:
        mode = 0o755 if path.is_dir() else 0o644 if path.stat().st_mode & stat.S_IWUSR else 0o444
        path.chmod(mode)


def link_or_copy(source: Path, destination: Path) -> None:
    """Give a file a second name; copy it where the file system cannot.

    Only for files of ours, which nobody writes to again: both names are one file.
    """
    try:
        os.link(source, destination)
    except OSError:
        shutil.copyfile(source, destination)
        shutil.copymode(source, destination)
