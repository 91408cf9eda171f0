"""What the terminal gets of words that a server or a file has chosen."""

from __future__ import annotations

import pytest
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trtspec.cli.parts.console import console
from trtspec.cli.parts.report import to_stderr

HOSTILE = "a\x1b[2Jb\x9b3m [red]c[/red]"
SHOWN = r"a\x1b[2Jb\x9b3m [red]c[/red]"


def test_words_of_others_neither_style_nor_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(HOSTILE, title=HOSTILE)
    table.add_row(Text(HOSTILE))
    for part in (HOSTILE, Text(HOSTILE), table, Padding(Text(HOSTILE), 1)):
        console(width=80).print(part)
        shown = capsys.readouterr().out
        assert SHOWN in shown
        assert "\x1b" not in shown
    to_stderr(HOSTILE)
    assert capsys.readouterr().err == f"{SHOWN}\n"


def test_a_column_is_as_wide_as_what_is_printed_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("x")
    table.add_row(HOSTILE)
    console().print(table)
    lines = capsys.readouterr().out.splitlines()
    assert len({len(line) for line in lines}) == 1


def test_a_long_line_stays_one(capsys: pytest.CaptureFixture[str]) -> None:
    console(width=20).print("word " * 50)
    assert len(capsys.readouterr().out.splitlines()) == 1
