"""The files that `trtspec bench` writes: JSON, CSV, a page, and a folder of pictures."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtspec.cli.parts.new_file import new_file
from trtspec.errors import ClientError
from trtspec.whole_file import write_whole

if TYPE_CHECKING:
    from trtspec.client.bench.result import BenchResult

Decorator = Callable[[Callable[..., None]], Callable[..., None]]


def file_option(name: str, what: str) -> Decorator:
    """Give a command an option for a file, or stdout."""
    return click.option(
        f"--{name}",
        f"{name}_file",
        type=click.Path(path_type=Path, allow_dash=True),
        callback=new_file,
        help=f"Write {what} to this file; - is stdout.",
    )


def new_folder(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """Make the folder, or refuse it before there is something to write."""
    if value is not None:
        try:
            value.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise click.BadParameter(f"{value}: cannot be made: {error.strerror}", ctx, param) from None
        if not os.access(value, os.W_OK):
            raise click.BadParameter(f"{value}: cannot be written", ctx, param)
    return value


def check_files(files: Mapping[str, Path]) -> None:
    """Refuse files, by their option, that would be written over each other."""
    on_stdout = [f"{option} -" for option, file in files.items() if str(file) == "-"]
    if len(on_stdout) > 1:
        raise click.UsageError(f"{' and '.join(on_stdout)} would both be on stdout")
    named = [file.resolve() for file in files.values() if str(file) != "-" and not file.is_char_device()]
    if len(set(named)) < len(named):
        raise click.UsageError(f"found one file for several of {', '.join(TEXTS)}, expected one for each")


def check_extra() -> None:
    """Say before the run, not after it, that there is nothing to draw with."""
    if missing := [name for name in ("jinja2", "matplotlib") if find_spec(name) is None]:
        raise ClientError(
            f"--html, --plots: {', '.join(missing)} not installed; run: pip install 'trtspec[bench]'"
        )


def write_files(files: Mapping[str, Path], result: BenchResult) -> list[str]:
    """Write the result to files by their option; return why one could not be, the others are written."""
    faults = []
    for option, file in files.items():
        text = TEXTS[option](result)
        if str(file) == "-":
            click.echo(text, nl=False)
            continue
        try:
            write_whole(file, text)
        except OSError as error:
            faults.append(f"{file}: cannot be written: {error.strerror}")
    return faults


def _to_json(result: BenchResult) -> str:
    return json.dumps(result.as_dict(), ensure_ascii=False) + "\n"


def _to_csv(result: BenchResult) -> str:
    from trtspec.client.bench.rows import to_csv

    return to_csv(result)


def _to_html(result: BenchResult) -> str:
    from trtspec.client.bench.html import to_html

    return to_html(result)


TEXTS: Mapping[str, Callable[[BenchResult], str]] = {
    "--json": _to_json,
    "--csv": _to_csv,
    "--html": _to_html,
}
