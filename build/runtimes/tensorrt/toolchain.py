"""Where `trtllm-build` runs: on this machine, or in a container on it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel, ConfigDict

from trtspec.build.runtimes.tensorrt.commands import PROGRAM, BuildCommand
from trtspec.build.runtimes.tensorrt.options import TensorrtOptions
from trtspec.build.runtimes.tensorrt.process import run_logged
from trtspec.engines.versions import ENGINE_RELEASE, container_of, is_engine_release, newest_container
from trtspec.errors import BuildError

CONTAINER_TOOLS = ("docker", "podman")

# Asks for versions without importing what takes seconds and a GPU.
PROBE = """
import json
from importlib.metadata import PackageNotFoundError, version
found = {}
for name in ("tensorrt_llm", "tensorrt"):
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        pass
print(json.dumps(found))
"""
PROBE_TIMEOUT_S = 60.0
PULL_TIMEOUT_S = 3600.0  # the image has tens of gigabytes


class Versions(BaseModel):
    """What compiles engines; they load only where TensorRT is the same."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tensorrt_llm: str
    tensorrt: str | None = None
    cuda: str | None = None
    container: str | None = None


@dataclass(frozen=True)
class Run:
    """One engine to compile."""

    command: BuildCommand
    checkpoint: Path
    output: Path
    log: Path
    scratch: Path  # where trtllm-build leaves its timing cache
    gpus: tuple[str, ...] | None  # as CUDA_VISIBLE_DEVICES names them; None: all
    go_on: Callable[[], None]


class Toolchain(Protocol):
    """A `trtllm-build` that can be run."""

    def versions(self) -> Versions:
        """Return what it is made of; BuildError where it is not what the engines need."""
        ...

    def compile(self, run: Run) -> int:
        """Compile one engine and return the exit code."""
        ...


def find_toolchain(options: TensorrtOptions) -> Toolchain:
    """Return where engines are compiled.

    Raises:
        BuildError: there is no such place on this machine.
    """
    if options.compile == "container":
        image = options.image or newest_container().image
        tool = next((path for name in CONTAINER_TOOLS if (path := shutil.which(name))), None)
        if tool is None:
            raise BuildError(
                f"--container: neither {' nor '.join(CONTAINER_TOOLS)} is on PATH; install one, or write a "
                "script for a machine that has it with --script FILE"
            )
        return Container(Path(tool), image)
    program = shutil.which(PROGRAM)
    if program is None:
        raise BuildError(
            f"{PROGRAM} is not on PATH. There are three ways: --container runs it in "
            f"{newest_container().image}; --script FILE writes the commands for a GPU host, and converts the "
            f"checkpoints here; or install tensorrt-llm=={ENGINE_RELEASE} on this machine"
        )
    return Installed(Path(program))


@dataclass(frozen=True)
class Installed:
    """The `trtllm-build` of this machine."""

    program: Path

    def versions(self) -> Versions:
        """Ask the Python that the program runs in."""
        return _checked(_ask([str(self._python()), "-c", PROBE], PROBE_TIMEOUT_S), str(self.program))

    def compile(self, run: Run) -> int:
        """Compile one engine and return the exit code."""
        environment = dict(os.environ)
        if run.gpus is not None:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(run.gpus)
        argv = run.command.argv(run.checkpoint.absolute(), run.output.absolute())
        return run_logged(
            [str(self.program), *argv[1:]],
            run.log,
            folder=run.scratch,
            environment=environment,
            go_on=run.go_on,
        )

    def _python(self) -> Path:
        """Return the interpreter that the program's first line names, else the one beside it, else ours."""
        with self.program.open("rb") as file:
            words = file.readline(4096).decode("utf-8", "replace").removeprefix("#!").split()
        if words and Path(words[0]).name == "env":
            words = [found for word in words[1:] if (found := shutil.which(word))]
        if words and "python" in Path(words[0]).name and Path(words[0]).is_file():
            return Path(words[0])
        beside = self.program.parent / "python3"
        return beside if beside.is_file() else Path(sys.executable)


@dataclass(frozen=True)
class Container:
    """An image with TensorRT-LLM, run by docker or podman; it sees the two folders and no network."""

    tool: Path
    image: str

    def versions(self) -> Versions:
        """Ask the Python in the image, which is fetched where it is not there."""
        command = [str(self.tool), "run", "--rm", "--network", "none", self.image, "python3", "-c", PROBE]
        found = _checked(_ask(command, PULL_TIMEOUT_S), self.image)
        known = container_of(self.image)
        return found.model_copy(
            update={
                "tensorrt": found.tensorrt or (known and known.tensorrt),
                "cuda": known and known.cuda,
                "container": self.image,
            }
        )

    def argv(self, run: Run, name: str) -> tuple[str, ...]:
        """Return the command that compiles an engine in a container called `name`.

        Memory and stack limits, and the shared memory of the host, are what NVIDIA's images ask for.
        """
        podman = self.tool.name == "podman"
        gpus = ("--device", "nvidia.com/gpu=all") if podman else ("--gpus", "all")
        user = ("--userns", "keep-id") if podman else ("--user", f"{os.getuid()}:{os.getgid()}")
        limits = ("--ipc", "host", "--ulimit", "memlock=-1", "--ulimit", "stack=67108864")
        seen = () if run.gpus is None else ("--env", "CUDA_VISIBLE_DEVICES=" + ",".join(run.gpus))
        return (
            *(str(self.tool), "run", "--rm", "--init", "--name", name),
            *("--network", "none", *gpus, *user, *limits),
            *("--env", "HOME=/tmp", *seen, "--workdir", "/tmp"),
            *("--mount", _mount(run.checkpoint, "/checkpoint", read_only=True)),
            *("--mount", _mount(run.output, "/engine", read_only=False)),
            self.image,
            *run.command.argv("/checkpoint", "/engine"),
        )

    def compile(self, run: Run) -> int:
        """Compile one engine and return the exit code; a container that is left is removed."""
        name = f"trtspec-{uuid.uuid4().hex[:12]}"
        return run_logged(
            self.argv(run, name),
            run.log,
            folder=run.scratch,
            environment=os.environ,
            go_on=run.go_on,
            # Ending the client does not always end what it has started.
            afterwards=(str(self.tool), "rm", "--force", name),
        )


def _mount(source: Path, target: str, *, read_only: bool) -> str:
    path = str(source.absolute())
    if "," in path or '"' in path:
        raise BuildError(
            f"{path}: a container cannot be given a path with a comma or a quote; choose another"
        )
    return f"type=bind,source={path},target={target}" + (",readonly" if read_only else "")


def _ask(command: Sequence[str], timeout_s: float) -> Mapping[str, str] | str:
    """Return what PROBE prints, in its last line: images greet first; or why there is no such line."""
    try:
        asked = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        found = json.loads(asked.stdout.splitlines()[-1]) if asked.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired, IndexError, ValueError) as error:
        return str(error)
    if not isinstance(found, dict):
        return (asked.stderr.strip().splitlines() or [f"exit code {asked.returncode}"])[-1]
    return found


def _checked(found: Mapping[str, str] | str, where: str) -> Versions:
    """Return versions, once they are of the line whose flags and files are known."""
    if isinstance(found, str):
        raise BuildError(f"{where}: which TensorRT-LLM it is could not be found out ({found})")
    release = found.get("tensorrt_llm", "none")
    if not is_engine_release(release):
        raise BuildError(
            f"{where}: TensorRT-LLM is {release}, engines are built with {ENGINE_RELEASE}; run it in "
            f"{newest_container().image}, as --container does"
        )
    return Versions(tensorrt_llm=release, tensorrt=found.get("tensorrt"))
