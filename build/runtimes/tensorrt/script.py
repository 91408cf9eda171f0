"""A shell script that compiles a converted pair on another machine, and looks at what came out of it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtspec.build.json_file import read_object
from trtspec.build.runtimes.tensorrt.commands import BuildCommand
from trtspec.build.runtimes.tensorrt.expectations import as_json, expectations
from trtspec.build.runtimes.tensorrt.planning import ROLES
from trtspec.engines.pair import EnginePair
from trtspec.engines.versions import ENGINE_RELEASE, newest_container
from trtspec.errors import BuildError

# What the script leaves beside the engines: what they were compiled with.
VERSIONS = "versions.json"
# And the manifest of the pair they are of, by which it goes on where it was stopped.
OF_PAIR = "pair.json"

HEAD = """\
#!/usr/bin/env bash
# Compiles the engines of a pair that `trtspec build` has converted.
#
#   {name} PAIR ENGINES
#
# PAIR is the folder that trtspec has made, ENGINES one that this script makes. Stopped, it goes on there
# with the engine that is missing. It needs a GPU of the kind
# that will serve, and TensorRT-LLM {release}, as in
#   {image}
# Afterwards, where trtspec is installed:
#
#   trtspec adopt PAIR ENGINES --output FINISHED
set -euo pipefail

if [[ $# -ne 2 ]]; then
  echo "usage: $0 PAIR ENGINES" >&2
  exit 2
fi
[[ -f $1/trtspec.json ]] || {{ echo "$1: no engine pair; it has no trtspec.json" >&2; exit 1; }}
[[ ! -e $2 ]] || cmp -s -- "$1/trtspec.json" "$2/{of_pair}" || {{
  echo "$2: exists already, and not with engines of this pair; name another folder" >&2
  exit 1
}}
pair=$(cd -- "$1" && pwd)
mkdir -p -- "$2"
engines=$(cd -- "$2" && pwd)
cp -- "$pair/trtspec.json" "$engines/{of_pair}"
scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT
cd -- "$scratch"

python3 - "$engines/{versions}" <<'PYTHON'
import json, os, re, subprocess, sys
from importlib.metadata import PackageNotFoundError, version

def find(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return None

found = {{name: find(name) for name in ("tensorrt_llm", "tensorrt")}}
if not re.fullmatch(r"1\\.2\\.\\d+(\\.post\\d+)?", found["tensorrt_llm"] or ""):
    sys.exit(f"TensorRT-LLM is {{found['tensorrt_llm']}}, expected {release}; run this in {image}")
query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
answer = subprocess.run(query, capture_output=True, text=True)
capability = re.match(r"(\\d+)\\.(\\d)", answer.stdout)
found["sm"] = int(capability[1] + capability[2]) if capability else None
if os.path.exists(sys.argv[1]) and (before := json.load(open(sys.argv[1]))) != found:
    sys.exit(f"begun with {{before}}, this machine has {{found}}; name another folder")
json.dump(found, open(sys.argv[1], "w"))
PYTHON

check() {{
  python3 - "$@" <<'PYTHON'
import json, os, sys

folder, ranks, expected = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
with open(f"{{folder}}/config.json") as file:
    config = json.load(file)
faults = []
for entry, how, wanted in expected:
    found = config
    for name in entry.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    if how == "at least":
        met = isinstance(found, int) and found >= wanted
    elif wanted is False:
        met = not found
    else:
        met = str(found).lower() == str(wanted).lower()
    if not met:
        faults.append(f"{{entry}} is {{found}}, expected {{'at least ' * (how != 'is')}}{{wanted}}")
for rank in range(ranks):
    if not os.path.isfile(f"{{folder}}/rank{{rank}}.engine"):
        faults.append(f"rank{{rank}}.engine is missing")
if faults:
    sys.exit(f"{{folder}}: not the engine that was asked for: " + "; ".join(faults))
PYTHON
}}
"""


def compile_script(pair: EnginePair, name: str = "compile.sh") -> str:
    """Return the script that compiles the engines of a converted pair.

    It takes both folders as arguments, so it says nothing of this machine.

    Raises:
        BuildError: the pair is not one that trtllm-build compiles.
    """
    head = HEAD.format(
        name=shlex.quote(name),
        release=ENGINE_RELEASE,
        image=newest_container().image,
        versions=VERSIONS,
        of_pair=OF_PAIR,
    )
    parts = [_part(pair.path / role, role, command) for role, command in commands_of(pair).items()]
    return "\n".join([head, *parts, 'echo "compiled: $engines"', ""])


def commands_of(pair: EnginePair) -> Mapping[str, BuildCommand]:
    """Return the commands that compile a converted pair, by role."""
    manifest = pair.manifest
    if manifest.runtime != "tensorrt" or manifest.compiled or len(manifest.commands) != len(ROLES):
        state = "compiled already" if manifest.compiled else "not to be compiled"
        raise BuildError(
            f"{pair.path}: made for --runtime {manifest.runtime} and {state}; expected a pair that "
            "`trtspec build --runtime tensorrt --script FILE` has converted"
        )
    return dict(zip(ROLES, map(BuildCommand.parse, manifest.commands), strict=True))


def _part(checkpoint: Path, role: str, command: BuildCommand) -> str:
    config: Mapping[str, Any] = read_object(checkpoint / "config.json")
    places = ("$PAIR", "$ENGINES")
    words = [shlex.quote(word) for word in command.argv(*places)]
    line = (
        " ".join(words)
        .replace("'$PAIR'", f'"$pair"/{role}')
        .replace("'$ENGINES'", f'"$engines"/{role}.partial')
    )
    line = "  " + line.replace(" --", " \\\n    --")
    expected = shlex.quote(as_json(expectations(command, config)))
    ranks = config["mapping"]["world_size"]
    return (
        f'if [[ -d "$engines"/{role} ]]; then\n'
        f'  echo "the {role} is compiled already"\n'
        "else\n"
        f'  echo "compiling the {role}"\n'
        f'  rm -rf -- "$engines"/{role}.partial\n'
        f'{line} 2>&1 | tee "$engines"/{role}.log\n'
        f'  check "$engines"/{role}.partial {ranks} {expected}\n'
        f'  mv -- "$engines"/{role}.partial "$engines"/{role}\n'
        "fi\n"
    )
