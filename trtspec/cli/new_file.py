"""A file that a command is going to write."""

from __future__ import annotations

import os
from pathlib import Path

import click


def new_file(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """Refuse a report that could not be written, before there is one."""
    if value is None or str(value) == "-":
        return value
    try:
        value.stat()
    except FileNotFoundError:
        pass  # perhaps there will be one
    except OSError as error:
        raise click.BadParameter(f"{value}: cannot be written: {error.strerror}", ctx, param) from None
    if value.is_dir() or not value.absolute().parent.is_dir():
        found = "is a folder" if value.is_dir() else f"there is no folder {value.parent}"
        raise click.BadParameter(f"{value}: {found}, expected a file to write", ctx, param)
    if not os.access(value if value.exists() else value.absolute().parent, os.W_OK):
        raise click.BadParameter(f"{value}: cannot be written", ctx, param)
    return value
