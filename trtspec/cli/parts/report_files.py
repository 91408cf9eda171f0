"""The files that a command writes its reports to, stdout among them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import click

from trtspec.whole_file import check_whole, write_whole

Decorator = Callable[[Callable[..., None]], Callable[..., None]]
STDOUT = Path("-")


def file_option(name: str, what: str) -> Decorator:
    """Give a command an option for a file, or stdout; its parameter is `<name>_file`."""
    return click.option(
        f"--{name}",
        f"{name}_file",
        type=click.Path(path_type=Path, allow_dash=True),
        callback=_new_file,
        help=f"Write {what} to this file; - is stdout.",
    )


def check_files(files: Mapping[str, Path | None]) -> None:
    """Refuse files, by their option, that would be written over each other."""
    given = {option: file for option, file in files.items() if file is not None}
    on_stdout = [option for option, file in given.items() if file == STDOUT]
    if len(on_stdout) > 1:
        raise click.UsageError(f"{' and '.join(on_stdout)} would both be on stdout")
    named = [file.resolve() for file in given.values() if file != STDOUT and not file.is_char_device()]
    if len(set(named)) < len(named):
        raise click.UsageError(f"found one file for several of {', '.join(files)}, expected one for each")


def write_reports(texts: Iterable[tuple[Path | None, Callable[[], str]]]) -> list[str]:
    """Write each text that has a file; return why some could not be written, the others are."""
    faults = []
    for file, text_of in texts:
        if file == STDOUT:
            click.echo(text_of(), nl=False)
        elif file is not None:
            try:
                write_whole(file, text_of())
            except OSError as error:
                faults.append(f"{file}: cannot be written: {error.strerror}")
    return faults


def _new_file(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """Refuse a report that could not be written, before there is one."""
    if value is None or value == STDOUT:
        return value
    if value.is_dir() or not value.absolute().parent.is_dir():
        found = "is a folder" if value.is_dir() else f"there is no folder {value.parent}"
        raise click.BadParameter(f"{value}: {found}, expected a file to write", ctx, param)
    try:
        check_whole(value)
    except OSError as error:
        raise click.BadParameter(f"{value}: cannot be written: {error.strerror}", ctx, param) from None
    return value
