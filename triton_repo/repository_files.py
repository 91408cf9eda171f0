"""The files that make a folder a Triton model repository."""

from __future__ import annotations

from pathlib import Path

from trtspec.errors import RepositoryError

CONFIGURATION = "config.pbtxt"


def is_repository(folder: Path) -> bool:
    """Whether a folder holds models."""
    return any(folder.glob(f"*/{CONFIGURATION}"))


def configurations(folder: Path) -> list[Path]:
    """Return the configurations of a repository's models, by path.

    Raises:
        RepositoryError: it is no folder, has no model, or one whose configuration is no file.
    """
    if not folder.is_dir():
        raise RepositoryError(
            f"{folder}: found no folder, expected a Triton model repository; write one with `trtspec repo`"
        )
    files = sorted(folder.glob(f"*/{CONFIGURATION}"))
    if not files:
        if (folder / CONFIGURATION).is_file():
            raise RepositoryError(
                f"{folder}: is one model, expected the repository that holds it; "
                f"give {folder.absolute().parent}"
            )
        raise RepositoryError(
            f"{folder}: found no MODEL/{CONFIGURATION}, expected a Triton model repository; "
            "write one with `trtspec repo`"
        )
    if odd := [file for file in files if file.exists() and not file.is_file()]:
        raise RepositoryError(f"{odd[0]}: is no regular file, expected a model's configuration; replace it")
    return files
