from __future__ import annotations

import click
import pytest

from trtspec.cli import EXIT_MISMATCH, main, trtspec


def test_a_command_that_exits_with_a_code_ends_the_process_with_it(monkeypatch):
    @click.command("mismatch")
    @click.pass_context
    def command_double(ctx: click.Context) -> None:
        ctx.exit(EXIT_MISMATCH)

    monkeypatch.setattr(trtspec, "get_command", lambda ctx, name: command_double)
    with pytest.raises(SystemExit) as stopped:
        main(["mismatch"])
    assert stopped.value.code == EXIT_MISMATCH
