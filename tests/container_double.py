"""A double of `docker run` and `podman run`: knows the flags in their help, one image, and runs the command.

What is mounted is found by replacing the paths inside with those outside; the program is looked for in the
folder that stands for the image. Each run is written down, as JSON, in a file `runs` beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def install(folder: Path, name: str, *, image: str, inside: Path, environment: pytest.MonkeyPatch) -> None:
    """Put an engine called `name` on PATH that has one image, whose programs lie in `inside`.

    The engine of the other name, where the machine has one, is out of sight.
    """
    program = folder / name
    folder.mkdir(parents=True)
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        f"from container_double import main\n"
        f"sys.exit(main({name!r}, {image!r}, {str(inside)!r}, {str(folder)!r}))\n"
    )
    program.chmod(0o755)
    tools = os.environ["PATH"].split(":")[0]
    environment.setenv("PATH", f"{folder}:{tools}:/usr/bin:/bin")


def main(name: str, image: str, inside: str, folder: str) -> int:
    """Be the engine."""
    with open(f"{folder}/runs", "a") as file:
        file.write(json.dumps(sys.argv) + "\n")
    if sys.argv[1:3] == ["rm", "--force"]:
        return 0
    args = _parser(name).parse_args(sys.argv[1:])
    if args.image != image:
        sys.stderr.write(f"{name}: {args.image}: no such image\n")
        return 125
    places = {}
    for mount in args.mount:
        fields = dict(field.partition("=")[::2] for field in mount.split(","))
        assert fields["type"] == "bind"
        assert Path(fields["source"]).is_dir(), f"bind source path does not exist: {fields['source']}"
        assert fields.keys() <= {"type", "source", "target", "readonly"}
        places[fields["target"]] = fields["source"]
    words = [places.get(word, word) for word in args.command]
    if words[0] == "python3":
        words[0] = sys.executable
        sys.stdout.write("== the greeting of the image ==\n")
        sys.stdout.flush()
    environment = {**os.environ, "PATH": f"{inside}:{os.environ['PATH']}"}
    environment.update(dict(value.partition("=")[::2] for value in args.env))
    return subprocess.run(words, env=environment, cwd=folder, check=False).returncode


def _parser(name: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"{name} run", allow_abbrev=False)
    parser.add_argument("verb", choices=["run"])
    for switch in ("--rm", "--init"):
        parser.add_argument(switch, action="store_true")
    for flag in ("--name", "--network", "--ipc", "--workdir", "--user"):
        parser.add_argument(flag)
    for flag in ("--ulimit", "--env", "--mount"):
        parser.add_argument(flag, action="append", default=[])
    if name == "docker":
        parser.add_argument("--gpus")
    else:
        parser.add_argument("--device")
        parser.add_argument("--userns", choices=["keep-id", "host", "private"])
    parser.add_argument("image")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    return parser
