"""trtspec serve: a repository in, a server that has answered."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtspec.cli import Terminated
from trtspec.cli.parts.fields import Number
from trtspec.errors import ServerError

if TYPE_CHECKING:
    from trtspec.triton_repo.server import Server

PORT = click.IntRange(0, 65535)
SECONDS = Number(0, min_open=True)


@click.command("serve")
@click.argument("repository", type=click.Path(path_type=Path))
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 is every one."
)
@click.option("--http-port", type=PORT, default=8000, show_default=True, help="0 picks a free one.")
@click.option("--grpc-port", type=PORT, default=8001, show_default=True, help="0 picks a free one.")
@click.option("--metrics-port", type=PORT, default=8002, show_default=True, help="0 picks a free one.")
@click.option(
    "--start-timeout", type=SECONDS, default=600.0, show_default=True, help="Seconds to load and answer in."
)
@click.option(
    "--stop-timeout", type=SECONDS, default=30.0, show_default=True, help="Seconds for requests to finish in."
)
@click.option(
    "--log",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Append the server's log here; default: a temporary file, kept only if something went wrong.",
)
@click.option(
    "--keep-awake",
    is_flag=True,
    help="Keep this machine's cores from sleeping: shorter rounds, more power; as a rule needs root.",
)
@click.option("--json", "as_json", is_flag=True, help="When ready, print one JSON object with the endpoints.")
def command(
    repository: Path,
    host: str,
    http_port: int,
    grpc_port: int,
    metrics_port: int,
    start_timeout: float,
    stop_timeout: float,
    log: Path | None,
    keep_awake: bool,
    as_json: bool,
) -> None:
    """Serve REPOSITORY with Triton until Ctrl-C or SIGTERM; ready means it has answered.

    The server is the tritonserver on PATH, else the one of the package nvidia-pytriton.

    \b
    Example:
      trtspec serve work/repo
      trtspec serve work/repo --host 0.0.0.0 --log work/server.log
      trtspec serve work/repo --http-port 0 --grpc-port 0 --metrics-port 0 --json
    """
    from trtspec.client import CallFailed, InvalidArgument
    from trtspec.triton_repo.server import ServeOptions, serve

    options = ServeOptions(
        host=host,
        http_port=http_port,
        grpc_port=grpc_port,
        metrics_port=metrics_port,
        start_timeout_s=start_timeout,
        stop_timeout_s=stop_timeout,
        log=log,
        keep_awake=keep_awake,
    )
    server: Server | None = None
    try:
        with serve(repository, options, on_launch=_say_launched) as server:
            _say_ready(server, as_json)
            # Where no answer comes, Server.wait says what has become of it.
            with suppress(CallFailed, InvalidArgument):
                _say_undrafted(server)
            with suppress(CallFailed):
                _say_changed(server)
            server.wait()
    except (Terminated, KeyboardInterrupt) as signalled:
        if server is not None and not server.stopped_cleanly:
            click.echo(f"the server did not stop in order and was killed; its log: {server.log}", err=True)
        if isinstance(signalled, KeyboardInterrupt):
            raise
        if server is None:
            raise ServerError(
                f"{repository}: stopped by {signalled.signal.name} before it was ready"
            ) from None


def _say_launched(server: Server) -> None:
    click.echo(f"loading {', '.join(server.models)}; log: {server.log}", err=True)


def _say_ready(server: Server, as_json: bool) -> None:
    if as_json:
        result = {
            "grpc_url": server.grpc_url,
            "http_url": server.http_url,
            "metrics_url": server.metrics_url,
            "log": str(server.log),
            "models": server.models,
            "pid": server.pid,
        }
        click.echo(json.dumps(result))
    else:
        click.echo(
            f"ready: gRPC {server.grpc_url}, {server.http_url}, {server.metrics_url}; Ctrl-C stops", err=True
        )


def _say_undrafted(server: Server) -> None:
    """Warn where answers come without a draft although one was asked for: nothing else would show it."""
    from trtspec.client import Client

    with Client(server.grpc_url) as client:
        speculation = client.generate("Hello", max_tokens=3, num_draft_tokens=1).speculation
    if speculation and speculation.off_reason:
        click.echo(
            f"warning: {server.repository}: answers come without a draft: {speculation.off_reason}", err=True
        )


def changed_behaviour(server: Server) -> list[str]:
    """Return what the engines continue otherwise than the fingerprint of their pair says, a line each.

    It is empty where nothing is known: a repository of another maker, a pair without a fingerprint.

    Raises:
        CallFailed: when an answer did not come.
    """
    from trtspec.client import Client
    from trtspec.client.verify.fingerprint import compare_fingerprint
    from trtspec.engines.manifest import MANIFEST
    from trtspec.engines.pair import read_manifest

    file = server.repository / MANIFEST
    fingerprint = read_manifest(file).fingerprint if file.is_file() else None
    if fingerprint is None:
        return []
    with Client(server.grpc_url) as client:
        found = list(compare_fingerprint(client, fingerprint))
    return [f"{finding.name}: {finding.detail}" for finding in found if finding.verdict == "defect"]


def _say_changed(server: Server) -> None:
    """Warn where the engines do not behave as they did where they were built: once, the server is ready."""
    changes = changed_behaviour(server)
    for change in changes:
        click.echo(f"warning: {change}", err=True)
    if changes:
        click.echo(
            f"warning: {server.repository}: the engines do not behave as where they were built; "
            f"run: trtspec verify {server.grpc_url} --manifest {server.repository} --reference HF_DIR",
            err=True,
        )
