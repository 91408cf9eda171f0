"""What a second build of the same costs: nothing is read again, whatever the checkpoint weighs.

    python benchmarks/store.py --gigabytes 8 --shards 30

Two parts: a checkpoint of this size is known by its content, first and again (its shards are holes, so
that the first reading is all hashing and no disk); and the demo pair is built, built again, and built
into another folder, each by the command in a process of its own.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

from trtspec.build.store.hashes import Hashes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gigabytes", type=int, default=8)
    parser.add_argument("--shards", type=int, default=30)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        time_hashes(Path(folder), options.gigabytes, options.shards)
        time_builds(Path(folder))


def time_hashes(folder: Path, gigabytes: int, shards: int) -> None:
    paths = [folder / f"model-{number:05}.safetensors" for number in range(shards)]
    for path in paths:
        path.touch()
        os.truncate(path, gigabytes * 10**9 // shards)
        os.utime(path, (10**9, 10**9))
    hashes = Hashes(folder / "hashes")
    first, again = timed(lambda: hashes.of(paths)), timed(lambda: hashes.of(paths))
    print(f"{gigabytes} GB in {shards} shards: read in {first:.2f} s, known again in {again * 1e3:.1f} ms")


def time_builds(folder: Path) -> None:
    demo = Path(str(files("trtspec") / "demo_pair"))
    command = [sys.executable, "-m", "trtspec", "build", str(demo / "target"), str(demo / "draft")]
    for what, output in (("built", "one"), ("there already", "one"), ("from the store", "two")):
        arguments = [*command, "--output", str(folder / output), "--cache", str(folder / "store")]
        took = timed(lambda arguments=arguments: subprocess.run(arguments, check=True, capture_output=True))
        print(f"demo pair, {what}: {took:.2f} s")


def timed(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
