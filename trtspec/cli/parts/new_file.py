"""A file that a command is going to write."""

from __future__ import annotations

from pathlib import Path

import click

from trtspec.whole_file import check_whole


def new_file(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """Refuse a report that could not be written, before there is one."""
    if value is None or str(value) == "-":
        return value
    if value.is_dir() or not value.absolute().parent.is_dir():
        found = "is a folder" if value.is_dir() else f"there is no folder {value.parent}"
        raise click.BadParameter(f"{value}: {found}, expected a file to write", ctx, param)
    try:
        check_whole(value)
    except OSError as error:
        raise click.BadParameter(f"{value}: cannot be written: {error.strerror}", ctx, param) from None
    return value
