"""The command. Each module here is one subcommand and imports nothing heavy at its top."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import FrameType

import click

from trtspec import __version__
from trtspec.cli.parts.printable import printable
from trtspec.errors import TrtspecError

# name -> one-line help, so that `trtspec --help` imports no command module.
COMMANDS = {
    "doctor": "What this machine has, which runtimes it can build and serve.",
    "check": "Whether a pair can speculate, what to fix, what it costs.",
    "plan": "Whether two models fit their GPUs, and what to set for each.",
    "recipe": "A commented recipe.toml for a known pair.",
    "build": "Two checkpoints in, an engine pair out.",
    "adopt": "Engines that a script has compiled in, a finished pair out.",
    "cache": "See, check and shrink what builds have kept.",
    "convert": "One checkpoint in, a TensorRT-LLM or Hugging Face checkpoint out.",
    "repo": "An engine pair in, a Triton model repository out.",
    "serve": "Serve a repository; ready means it has answered.",
    "query": "Ask a running server, from the shell.",
    "verify": "Compare served answers with Hugging Face.",
    "bench": "What a draft gains, at which length, under which load.",
    "tune": "Whether and how far to speculate, predicted or measured.",
    "trace": "What was drafted in every round, and what of it was kept.",
    "demo": "The whole road on the pair that ships with trtspec.",
}

EXIT_ERROR = 1
EXIT_MISMATCH = 3
EXIT_SIGNAL = 128  # plus the signal's number, as shells report it
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class Terminated(BaseException):
    """SIGTERM or SIGHUP: unwinds like Ctrl-C does, so that servers and temporary folders go on the way."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)
        super().__init__(self.signal.name)


class LazyGroup(click.Group):
    """A group whose subcommands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = import_module(f"trtspec.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="trtspec")
def trtspec() -> None:
    """Speculative decoding in production: a Hugging Face pair in, a verified Triton deployment out.

    \b
    Example:
      trtspec build TARGET DRAFT --output work/pair
      trtspec repo work/pair --output work/repo
      trtspec serve work/repo
      trtspec query "The capital of France is"
      trtspec verify work/pair

    Exit codes: 0 done, 1 could not, 2 wrong usage, 3 ran and found a mismatch.
    """


def main(args: list[str] | None = None) -> None:
    """Run the command; an error of ours or of the system becomes one line on stderr and exit 1.

    A signal that ends the process unwinds first: exit 130 on SIGINT, 143 on SIGTERM, 129 on SIGHUP.
    """
    try:
        with _signals_unwind():
            # Out of standalone mode click returns the code of an Exit instead of raising it.
            if status := trtspec.main(args=args, standalone_mode=False):
                sys.exit(status)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("trtspec: interrupted", err=True)
        sys.exit(EXIT_SIGNAL + signal.SIGINT)
    except Terminated as terminated:
        click.echo(f"trtspec: stopped by {terminated.signal.name}", err=True)
        sys.exit(EXIT_SIGNAL + terminated.signal)
    except TrtspecError as error:
        click.echo(f"trtspec: {printable(str(error))}", err=True)
        sys.exit(EXIT_ERROR)
    except OSError as error:  # click has dealt with a broken pipe
        click.echo(f"trtspec: {error}", err=True)
        _drop_unwritten_output()
        sys.exit(EXIT_ERROR)


@contextmanager
def _signals_unwind() -> Iterator[None]:
    """Turn the first of the signals into Terminated; one that is ignored (nohup) or handled stays so.

    Those after it change nothing: `timeout` sends its signal twice, and the second would end what the
    first one cleans up. Ctrl-C still interrupts that.
    """

    def unwind(number: int, frame: FrameType | None) -> None:
        for other in taken:
            signal.signal(other, lambda number, frame: None)
        raise Terminated(number)

    taken = [number for number in ENDING_SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, unwind)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _drop_unwritten_output() -> None:
    """Give up what stdout still holds and cannot write; Python's exit would try again and complain."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
