"""`trtspec cache`: what builds have kept."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from trtspec.cli import EXIT_MISMATCH

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
SPANS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


class StoreFolder(click.Path):
    """A folder; "" would be the one we are in, which nobody means by an empty variable."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("is empty, expected a folder; leave it out for the user's own store", param, ctx)
        return super().convert(value, param, ctx)


cache_option = click.option(
    "--cache",
    type=StoreFolder(path_type=Path, file_okay=False),
    help="Folder of the store.  [default: $TRTSPEC_CACHE or ~/.cache/trtspec]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")


@click.group("cache")
def command() -> None:
    """See, check and shrink the store, in which builds keep what they have made.

    \b
    Example:
      trtspec cache ls
      trtspec cache verify
      trtspec cache gc --older-than 30d --max-size 200G --dry-run
    """


@command.command("ls")
@cache_option
@json_option
def ls(cache: Path | None, as_json: bool) -> None:
    """List what is kept, by the time it was last used.

    \b
    Example:
      trtspec cache ls
    """
    from trtspec.build.store.upkeep import list_store

    listing = list_store(cache)
    if as_json:
        click.echo(json.dumps(asdict(listing), default=str))
        return
    from rich.filesize import decimal

    for kept in listing.stages:
        used, size = f"{kept.used:%Y-%m-%d %H:%M}", decimal(kept.size_bytes)
        click.echo(f"{used}  {size:>10}  {kept.key[:12]}  {kept.stage:<18} {kept.output}")
    for left in listing.unfinished:
        state = "being made" if left.in_use else "killed; a build of the same goes on from it"
        click.echo(f"{'unfinished':<16}  {decimal(left.size_bytes):>10}  {left.key[:12]}  {state}")
    for broken in listing.damaged:
        state = "its stage.json cannot be read; `trtspec cache verify` or `gc` removes it"
        click.echo(f"{'damaged':<16}  {decimal(broken.size_bytes):>10}  {broken.key[:12]}  {state}")
    click.echo(f"{listing.folder}: {_stages(len(listing.stages))}, {decimal(listing.size_bytes)}")


@command.command("verify")
@cache_option
@json_option
@click.pass_context
def verify(ctx: click.Context, cache: Path | None, as_json: bool) -> None:
    """Read everything that is kept again; exit 3 where it is not what was made.

    What is damaged is removed, so that the build it names makes it anew. Pairs whose files are links into
    the store are damaged with it.

    \b
    Example:
      trtspec cache verify
    """
    from trtspec.build.store.upkeep import verify_store

    found = verify_store(cache)
    if as_json:
        click.echo(json.dumps(asdict(found), default=str))
    else:
        for damage in found.damaged:
            state = "removed" if damage.removed else "in use, not removed"
            again = damage.command or "the builds that you need"
            click.echo(f"{damage.path}: not what was made; {state}. Run again: {again}", err=True)
        click.echo(f"{found.folder}: {_stages(found.checked)} read, {len(found.damaged)} damaged")
    if found.damaged:
        ctx.exit(EXIT_MISMATCH)


def _stages(count: int) -> str:
    return f"{count} stage{'' if count == 1 else 's'}"


def _read_size(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?", value.strip(), re.IGNORECASE)
    if not found:
        raise click.BadParameter(f"{value!r}, expected a size such as 500M or 200G")
    return int(float(found[1]) * UNITS[found[2].upper()])


def _read_span(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", value.strip())
    if not found:
        raise click.BadParameter(f"{value!r}, expected a time such as 12h, 30d or 4w")
    return float(found[1]) * SPANS_S[found[2]]


@command.command("gc")
@cache_option
@click.option(
    "--max-size", metavar="SIZE", callback=_read_size, help="Remove the longest unused until this is left."
)
@click.option(
    "--older-than", metavar="TIME", callback=_read_span, help="Remove what was not used for so long."
)
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and remove nothing.")
@json_option
def gc(
    cache: Path | None, max_size: int | None, older_than: float | None, dry_run: bool, as_json: bool
) -> None:
    """Remove what killed builds have left, and what is asked for; never what a running build uses.

    Pairs stay whole: a file that a pair links to is there as long as the pair is, and frees no space here.

    \b
    Example:
      trtspec cache gc --older-than 30d
      trtspec cache gc --max-size 200G --dry-run
    """
    from trtspec.build.store.upkeep import collect_garbage

    found = collect_garbage(cache, max_size_bytes=max_size, unused_for_s=older_than, dry_run=dry_run)
    if as_json:
        click.echo(json.dumps(asdict(found), default=str))
        return
    from rich.filesize import decimal

    verb = "would remove" if dry_run else "removed"
    for removed in found.removed:
        click.echo(f"{verb} {removed.stage} {removed.key[:12]}, {decimal(removed.size_bytes)}")
    click.echo(
        f"{found.folder}: {verb} {len(found.removed)}, {decimal(found.freed_bytes)} freed, "
        f"{decimal(found.kept_bytes)} kept"
    )
