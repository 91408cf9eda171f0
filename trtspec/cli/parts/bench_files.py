"""The files that `trtspec bench` writes: JSON, CSV, a page, and a folder of pictures."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtspec.cli.parts.report_files import write_reports
from trtspec.errors import ClientError

if TYPE_CHECKING:
    from trtspec.client.bench.result import BenchResult


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


def check_extra() -> None:
    """Say before the run, not after it, that there is nothing to draw with."""
    if missing := [name for name in ("jinja2", "matplotlib") if find_spec(name) is None]:
        raise ClientError(
            f"--html, --plots: {', '.join(missing)} not installed; run: pip install 'trtspec[bench]'"
        )


def write_files(files: Mapping[str, Path | None], result: BenchResult) -> list[str]:
    """Write the result to files by their option; return why one could not be, the others are written."""
    return write_reports((file, partial(TEXTS[option], result)) for option, file in files.items())


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
