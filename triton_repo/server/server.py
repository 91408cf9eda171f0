"""Start a Triton server, wait until it has answered, stop it, and leave nothing behind."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trtspec.errors import ServerError, TrtspecError
from trtspec.triton_repo.repository_files import configurations
from trtspec.triton_repo.server import leftovers
from trtspec.triton_repo.server.canary import Canary, ask_for_tokens, ask_in_background, models_are_loaded
from trtspec.triton_repo.server.command_line import server_arguments
from trtspec.triton_repo.server.cores_awake import cores_awake
from trtspec.triton_repo.server.endpoints import Endpoints, choose_endpoints
from trtspec.triton_repo.server.environment import server_environment
from trtspec.triton_repo.server.installation import Installation, find_installation
from trtspec.triton_repo.server.preflight import require_host_of, require_shared_memory
from trtspec.triton_repo.server.server_log import (
    ServerLog,
    complaints,
    load_failures,
    says_why,
    still_loading,
    termination,
)

POLL_S = 0.05
WATCH_S = 1.0
# More than the calls of a canary take, each of which has a limit of its own.
CHECK_TIMEOUT_S = 480.0
# How long a connection's end can be known before the end of the process is.
DEATH_NOTICE_S = 1.0
# How long the first line about an exception can come before the last: an exception may have no words.
LAST_WORDS_S = 5.0
# A server whose start failed has nothing to finish.
ABORT_TIMEOUT_S = 2.0
# Triton counts its exit timeout in steps of a second, then has to unload.
STOP_GRACE_S = 3.0
# Where private files go if the path of the temporary folder is not plain.
PLAIN_TEMPORARY_FOLDER = "/tmp"


@dataclass(frozen=True)
class ServeOptions:
    """How to serve. A port of 0 is replaced by a free one; no `log` means a temporary file."""

    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    start_timeout_s: float = 600.0
    stop_timeout_s: float = 30.0
    log: Path | None = None
    # Of this machine's cores; see `cores_awake`.
    keep_awake: bool = False


DEFAULTS = ServeOptions()
FREE_PORTS = ServeOptions(http_port=0, grpc_port=0, metrics_port=0)


@contextmanager
def serve(
    repository: str | os.PathLike[str],
    options: ServeOptions = DEFAULTS,
    *,
    canary: Canary = ask_for_tokens,
    installation: Installation | None = None,
    on_launch: Callable[[Server], None] | None = None,
) -> Iterator[Server]:
    """Serve a repository while the block runs; on entry the server has answered the canary.

    `on_launch` is called when the server runs and before its models are loaded. On the way out,
    however that happens, processes, shared memory and private files are gone; a temporary log
    stays only if an error names it or the server had to be killed.

    Raises:
        RepositoryError: the repository has no models.
        EngineError: its engines were built for another host.
        ServerError: the server could not be started, did not answer in time, or died; or cores cannot be
            kept awake.
    """
    folder = Path(repository).absolute()
    models = sorted(file.parent.name for file in configurations(folder))
    require_host_of(folder)
    require_shared_memory(len(models))
    installation = installation or find_installation()
    endpoints = choose_endpoints(
        options.host,
        http_port=options.http_port,
        grpc_port=options.grpc_port,
        metrics_port=options.metrics_port,
    )
    with cores_awake() if options.keep_awake else contextlib.nullcontext():
        server = Server(folder, models, endpoints, options, canary)
        try:
            server.launch(installation)
            if on_launch:
                on_launch(server)
            server.wait_until_ready()
            yield server
        finally:
            server.stop()


class Server:
    """One running server. `serve` makes it; there is no need to construct one."""

    def __init__(
        self, repository: Path, models: list[str], endpoints: Endpoints, options: ServeOptions, canary: Canary
    ) -> None:
        self.repository = repository
        self.models = models
        self.endpoints = endpoints
        self.options = options
        self.marker = leftovers.new_marker()
        self.ready = False
        self.stopped_cleanly: bool | None = None
        self._log_is_evidence = False
        self._processes_when_good: list[int] = []
        self._canary = canary
        self._log = ServerLog(options.log or Path(tempfile.gettempdir(), f"{self.marker}server.log"))
        self._run_directory = _make_run_directory(self.marker)
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def grpc_url(self) -> str:
        """host:port, as gRPC clients take it."""
        return self.endpoints.grpc_url

    @property
    def http_url(self) -> str:
        return self.endpoints.http_url

    @property
    def metrics_url(self) -> str:
        return self.endpoints.metrics_url

    @property
    def log(self) -> Path:
        return self._log.path

    @property
    def pid(self) -> int:
        return self._running().pid

    def launch(self, installation: Installation) -> None:
        """Start the processes: first the guard, so that there is no moment without one."""
        self._guard = leftovers.start_guard(self.marker, self._run_directory)
        backends = installation.link_backends(self._run_directory / "backends")
        arguments = server_arguments(
            self._plain_repository(),
            self.endpoints,
            marker=self.marker,
            exit_timeout_s=math.ceil(self.options.stop_timeout_s),
            backend_directory=backends,
        )
        try:
            self._process = subprocess.Popen(
                [str(installation.binary), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=self._log.file,
                stderr=subprocess.STDOUT,
                # Engines of TensorRT-LLM are named from the repository.
                cwd=self.repository,
                env=server_environment(installation, self.marker),
                start_new_session=True,
            )
        except OSError as error:
            raise ServerError(f"{installation.binary}: cannot be started: {error.strerror}") from error

    def wait_until_ready(self) -> None:
        """Wait until all models are loaded and the canary has come back.

        Raises:
            ServerError: a model did not load, the server ended, or the time is over.
        """
        deadline = time.monotonic() + self.options.start_timeout_s
        self._await(lambda: models_are_loaded(self.endpoints, self.marker), deadline, self._not_ready)
        self._ask(deadline, self._not_ready)
        self.ready = True
        self._processes_when_good = leftovers.processes(self.marker)

    def check(self, *, timeout_s: float = CHECK_TIMEOUT_S) -> None:
        """Ask the canary again.

        Raises:
            ServerError: the server has ended or does not answer in that time.
        """
        late = f"the canary has not come back within {timeout_s:g} s"
        self._ask(time.monotonic() + timeout_s, lambda: late)
        self._processes_when_good = leftovers.processes(self.marker)

    def wait(self) -> None:
        """Block as long as the server serves; never returns normally.

        Triton's health stays good when a model's process has died, so when one has, the canary
        decides whether the server goes on.

        Raises:
            ServerError: the server has ended or does not answer any more.
        """
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._running().wait(WATCH_S)
            self._raise_if_failed()
            if not all(leftovers.carries(pid, self.marker) for pid in self._processes_when_good):
                self.check()

    def stop(self) -> None:
        """End the server within the stop timeout and remove what it leaves; a second call does nothing.

        The server is asked (SIGTERM), then killed with everything it started. An interrupt while
        it is being asked goes straight to the kill.
        """
        if self.stopped_cleanly is not None:
            return
        self.stopped_cleanly = False
        try:
            if self._process is not None:
                self.stopped_cleanly = self._ask_to_end(self._process)
        finally:
            if self._process is not None:
                self._process.kill()
                self._process.wait()
            leftovers.remove(self.marker, self._run_directory)
            if self._guard is not None:
                self._guard.kill()
                self._guard.wait()
            self._log.file.close()
        if self.ready and not self.stopped_cleanly:
            self._log_is_evidence = True
        if self.options.log is None and not self._log_is_evidence:
            self.log.unlink(missing_ok=True)

    def _plain_repository(self) -> Path:
        """Return the repository by a path that Triton hands on to its model processes in one piece."""
        if _is_plain(str(self.repository)):
            return self.repository
        link = self._run_directory / "repository"
        link.symlink_to(self.repository)
        return link

    def _ask_to_end(self, process: subprocess.Popen[bytes]) -> bool:
        """Whether the server had not ended before, and now did so in time and without complaint."""
        timeout_s = self.options.stop_timeout_s + STOP_GRACE_S if self.ready else ABORT_TIMEOUT_S
        if process.poll() is not None:
            return False
        process.terminate()
        try:
            return process.wait(timeout_s) == 0
        except subprocess.TimeoutExpired:
            return False

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "not launched"
        return self._process

    def _await(self, done: Callable[[], bool], deadline: float, late: Callable[[], str]) -> None:
        while not done():
            self._raise_if_failed()
            if time.monotonic() > deadline:
                raise self._error(late(), "")
            time.sleep(POLL_S)

    def _not_ready(self) -> str:
        after = f"not ready after {self.options.start_timeout_s:g} s"
        if pending := still_loading(self._log.text()):
            loading = ", ".join(pending)
            return f"{after}, still loading {loading}; pass a longer --start-timeout if that is expected"
        return f"{after}, the canary has not come back"

    def _ask(self, deadline: float, late: Callable[[], str]) -> None:
        answer = ask_in_background(self._canary, self.endpoints)
        self._await(answer.done, deadline, late)
        try:
            answer.result()
        except TrtspecError as error:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._running().wait(DEATH_NOTICE_S)
            self._raise_if_failed()
            raise self._error(str(error), "") from error

    def _raise_if_failed(self) -> None:
        ended = self._running().poll()
        if not self.ready and (failures := load_failures(self._log.text())):
            names = ", ".join(failure.model for failure in failures)
            reasons = "\n".join(f"{failure.model}: {failure.reason}" for failure in failures)
            raise self._error(f"did not load: {names}", reasons)
        if not self.ready and termination(self._log.text()):
            words = self._last_words()
            loading = ", ".join(still_loading(self._log.text())) or "a process of the server ended"
            raise self._error(f"did not load: {loading}", words)
        if ended is not None:
            how = f"signal {-ended}" if ended < 0 else f"exit code {ended}"
            raise self._error(f"the server ended with {how}", complaints(self._log.text()))

    def _last_words(self) -> str:
        """Return what the C++ runtime writes about an exception, in several writes."""
        deadline = time.monotonic() + LAST_WORDS_S
        while not says_why(self._log.text()) and time.monotonic() < deadline:
            if self._running().poll() is not None:
                break  # it writes nothing more
            time.sleep(POLL_S)
        return termination(self._log.text())

    def _error(self, summary: str, details: str) -> ServerError:
        self.ready = False
        self._log_is_evidence = True
        indented = "".join(f"\n  {line}" for line in details.splitlines())
        return ServerError(f"{self.repository}: {summary}{indented}\nwhole log: {self.log}")


def _make_run_directory(marker: str) -> Path:
    temporary = tempfile.gettempdir()
    return Path(
        tempfile.mkdtemp(prefix=marker, dir=temporary if _is_plain(temporary) else PLAIN_TEMPORARY_FOLDER)
    )


def _is_plain(path: str) -> bool:
    """Whether a shell reads the path as one word: the command line of a model process is not quoted."""
    return shlex.quote(path) == path
