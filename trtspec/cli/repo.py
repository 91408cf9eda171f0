"""`trtspec repo`: write a repository, and `trtspec repo lint`: check one."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtspec.choices import LAUNCH_MODES
from trtspec.cli import EXIT_MISMATCH
from trtspec.cli.parts.fields import Number
from trtspec.recipe.option import recipe_option

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trtspec.triton_repo.lint import Finding
    from trtspec.triton_repo.repository import RepositoryOptions

DEFAULT = "write"
# Of a timeout, in seconds: a day.
LONGEST = 86_400


class _DefaultGroup(click.Group):
    """A group whose first word may also be an argument of its hidden command `write`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in {*self.commands, *ctx.help_option_names}:
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.commands[DEFAULT].format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


class _DraftTokens(click.ParamType):  # type: ignore[type-arg]
    """A number of draft tokens, auto, or a table by the number of requests in flight."""

    name = "N|auto|TABLE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from trtspec.triton_repo.speculation.draft_table import read_draft_tokens

        try:
            return value if value == "auto" else read_draft_tokens(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _gpus(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """Return the GPU numbers of an option."""
    if value is None:
        return None
    numbers = value.split(",")
    if not all(number.isdecimal() for number in numbers):
        raise click.BadParameter(f"{value!r} is not GPU numbers with commas between, as in 0,1")
    return tuple(map(int, numbers))


@click.group(
    "repo", cls=_DefaultGroup, options_metavar="", subcommand_metavar="[PAIR] --output DIR | lint REPO"
)
def command() -> None:
    """Write the Triton model repository of an engine PAIR, or check one.

    It needs nothing outside itself: move it, copy it to another host, serve it there. With --from-nvidia,
    the engines, tokenizer and settings of a filled repository of NVIDIA's recipe become ours.

    \b
    Example:
      trtspec repo work/pair --output work/repo
      trtspec repo --from-nvidia triton_model_repo --output work/repo
      trtspec repo lint work/repo
    """


@command.command(DEFAULT, hidden=True)
@click.argument("pair", type=click.Path(path_type=Path), required=False)
@click.option(
    "--output", type=click.Path(path_type=Path), required=True, help="Folder to make; must not exist."
)
@click.option(
    "--from-nvidia",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="In place of PAIR: a repository of NVIDIA's recipe (inflight_batcher_llm, triton_cli).",
)
@click.option(
    "--num-draft-tokens",
    type=_DraftTokens(),
    help="γ of a request that asks for none. auto: chosen for every round; 1:5,4:3,16:0: 5 from one request "
    "in flight on, 3 from four, none from sixteen.  [default: 5]",
)
@click.option(
    "--chat-template",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Jinja file that renders conversations, in place of the checkpoint's.",
)
@click.option(
    "--exclude-input-in-output/--include-input-in-output",
    default=None,
    help="What text_output holds when a request does not say.  [default: exclude; --from-nvidia: as there]",
)
@click.option(
    "--max-inflight-requests",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="More than that are told: busy.",
)
@click.option(
    "--target-timeout",
    type=Number(0, LONGEST, min_open=True),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="A target that sends nothing for so long has failed: the request ends with an error.",
)
@click.option(
    "--draft-timeout",
    type=Number(0, LONGEST, min_open=True),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="A draft that sends nothing for so long has failed: the answer goes on without it. Not with "
    "--runtime pytorch, where both are one engine.",
)
@click.option(
    "--launch-mode",
    type=click.Choice(LAUNCH_MODES),
    help="TensorRT-LLM: one process; one that spawns a process for each rank; or mpirun starts them.  "
    "[default: leader for engines of one rank, else orchestrator]",
)
@click.option(
    "--target-gpus",
    metavar="LIST",
    callback=_gpus,
    help="TensorRT-LLM: one for each rank.  [default: from 0 on]",
)
@click.option(
    "--draft-gpus",
    metavar="LIST",
    callback=_gpus,
    help="TensorRT-LLM: one for each rank.  [default: from 0 on]",
)
@click.option(
    "--fast-logits", is_flag=True, help="TensorRT-LLM: the draft's logits go from GPU to GPU; mode ranks."
)
@click.option(
    "--memory-plan",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TensorRT-LLM: GPUs and cache sizes, as `trtspec plan --json` prints them.",
)
@recipe_option("repo")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def write(pair: Path | None, output: Path, from_nvidia: Path | None, as_json: bool, **options: Any) -> None:
    """Write a repository."""
    if (pair is None) == (from_nvidia is None):
        raise click.UsageError("give either a PAIR or --from-nvidia DIR")
    if from_nvidia is not None:
        _take_over(from_nvidia, output, _options(**options), as_json)
    elif pair is not None:
        _write(pair, output, _options(**options), as_json)


@command.command("lint")
@click.argument("repository", type=click.Path(path_type=Path), required=False)
@click.option("--rules", is_flag=True, help="List the rules and end.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def lint_command(repository: Path | None, rules: bool, as_json: bool) -> None:
    """Check REPOSITORY without a server: ours, NVIDIA's recipe, or edited by hand.

    Engines are looked at where they are on this machine.

    \b
    Example:
      trtspec repo lint work/repo
      trtspec repo lint triton_model_repo --json
      trtspec repo lint --rules

    Exit codes: 0 no errors (warnings there may be), 3 errors.
    """
    from trtspec.triton_repo.lint import RULES, lint

    if rules:
        table = [{"id": rule.id, "severity": rule.severity, "rule": rule.sentence} for rule in RULES]
        lines = (f"{row['id']:24} {row['severity']:8} {row['rule']}" for row in table)
        click.echo(json.dumps({"rules": table}, ensure_ascii=False) if as_json else "\n".join(lines))
        return
    if repository is None:
        raise click.UsageError("give a REPOSITORY, or --rules")
    findings = lint(repository)
    errors = sum(finding.severity == "error" for finding in findings)
    if as_json:
        result = {"ok": not errors, "findings": [asdict(finding) for finding in findings]}
        click.echo(json.dumps(result, ensure_ascii=False))
    else:
        _show(findings)
        click.echo(f"{repository}: {errors} errors, {len(findings) - errors} warnings")
    if errors:
        raise click.exceptions.Exit(EXIT_MISMATCH)


def _options(
    memory_plan: Path | None, exclude_input_in_output: bool | None, **options: Any
) -> RepositoryOptions:
    from trtspec.triton_repo.launch import LaunchOptions
    from trtspec.triton_repo.repository import RepositoryOptions
    from trtspec.triton_repo.tensorrt_repository import read_memory_plan

    launch = LaunchOptions(
        mode=options.pop("launch_mode"),
        target_gpus=options.pop("target_gpus"),
        draft_gpus=options.pop("draft_gpus"),
        fast_logits=options.pop("fast_logits"),
    )
    memory = read_memory_plan(memory_plan) if memory_plan else None
    return RepositoryOptions(
        launch=launch,
        memory=memory,
        exclude_input_in_output=exclude_input_in_output,
        target_timeout_s=options.pop("target_timeout"),
        draft_timeout_s=options.pop("draft_timeout"),
        **options,
    )


def _write(pair: Path, output: Path, options: RepositoryOptions, as_json: bool) -> None:
    from trtspec.engines.pair import open_pair
    from trtspec.triton_repo.repository import plan_repository, write_repository

    opened = open_pair(pair)
    image = plan_repository(opened, options).image
    write_repository(opened, output, options)
    click.echo(json.dumps(_result(output, image)) if as_json else _how_to_serve(output, image))


def _take_over(source: Path, output: Path, options: RepositoryOptions, as_json: bool) -> None:
    from trtspec.triton_repo.from_nvidia import take_over

    taken = take_over(source, output, options)
    if as_json:
        findings = {"found": list(map(asdict, taken.found)), "left": list(map(asdict, taken.left))}
        click.echo(json.dumps(_result(output, taken.image) | findings, ensure_ascii=False))
        return
    click.echo(f"{source}: {len(taken.found)} findings")
    _show(taken.found)
    click.echo(f"{output}: {len(taken.left)} findings")
    _show(taken.left)
    click.echo(_how_to_serve(output, taken.image))


def _show(findings: Iterable[Finding]) -> None:
    for finding in findings:
        click.echo(str(finding))


def _result(output: Path, image: str | None) -> dict[str, Any]:
    from trtspec.triton_repo.launch import container_command

    result = {"repository": str(output)}
    return result if image is None else result | {"command": container_command(output, image)}


def _how_to_serve(output: Path, image: str | None) -> str:
    from trtspec.triton_repo.launch import container_command

    if image is None:
        return f"{output}: ready for `trtspec serve`"
    return f"{output}: ready; serve it with\n  {container_command(output, image)}"
