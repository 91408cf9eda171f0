"""A build that dies goes on to the same bytes, whenever it dies; of two of the same, one works."""

from __future__ import annotations

import os
import random
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fp8_checkpoints import with_tokenizer, write_texts
from store_builds import PATIENCE_S, Build, run, start, wait_for_line

from trtspec.build.options import BuildOptions
from trtspec.build.quantize.pair_quantizer import PairQuantization
from trtspec.build.store.upkeep import collect_garbage, list_store, verify_store

KILLED = -9
# How many of the steps of a build it is killed at. TRTSPEC_KILLS=1000 takes all of them.
KILLS = int(os.environ.get("TRTSPEC_KILLS", "24"))


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    with_tokenizer(folder / "target")
    with_tokenizer(folder / "draft", num_hidden_layers=2)
    # So many that what a calibration goes on from is larger than the tokenizer.
    write_texts(folder / "calibrate.jsonl", [f"def add_{n}(a, b):\n    return a + {n}\n" for n in range(40)])
    write_texts(folder / "evaluate.jsonl", ["class Queue:\n    pass\n"])
    return folder


@pytest.fixture(scope="module")
def whole(checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """A build that nothing has disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    build = Build(checkpoints, folder / "pair", folder / "store")
    assert run(build) == 0
    return build


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def in_folder(whole: Build, folder: Path) -> Build:
    folder.mkdir()
    return replace(whole, output=folder / "pair", cache=folder / "store")


def age(folder: Path) -> None:
    """Make what a killed build has left beside its output look old enough to be removed."""
    for left in folder.glob(".pair.*.partial"):
        os.utime(left, (0, 0))


def points(steps: int, count: int) -> list[int]:
    """Return steps spread evenly over a build, the first and the last among them."""
    count = min(count, steps)
    return sorted({1 + round(i * (steps - 1) / (count - 1)) for i in range(count)})


def test_a_build_killed_at_any_step_goes_on_to_the_same_bytes(whole: Build, tmp_path: Path) -> None:
    steps = int(whole.lines()[-1].removeprefix("steps "))
    expected = tree(whole.output)
    for step in points(steps, KILLS):
        build = in_folder(whole, tmp_path / str(step))
        assert run(replace(build, kill_at_step=step)) == KILLED, step
        assert not build.output.exists() or tree(build.output) == expected, step
        age(build.output.parent)
        assert run(build) == 0, build.lines()
        assert tree(build.output) == expected, step
        assert not list(build.output.parent.glob(".pair.*")), step
        assert list_store(build.cache).unfinished == (), step


def test_a_build_killed_again_and_again_goes_on_to_the_same_bytes(whole: Build, tmp_path: Path) -> None:
    build, chance = in_folder(whole, tmp_path / "one"), random.Random(5)
    started = time.monotonic()
    assert run(in_folder(whole, tmp_path / "timed")) == 0
    duration_s = time.monotonic() - started
    for _ in range(12):
        process = start(build)
        process.join(duration_s * chance.random())
        process.kill()
        process.join()
    assert run(build) == 0, build.lines()
    assert tree(build.output) == tree(whole.output)
    assert verify_store(build.cache).damaged == ()


def test_stages_that_were_done_are_not_done_again(whole: Build, tmp_path: Path) -> None:
    build = in_folder(whole, tmp_path / "one")
    assert run(build) == 0
    shutil.rmtree(build.output)
    assert run(build) == 0
    again = build.lines()[build.lines().index("tokenizer: found in the store") :]
    assert [line for line in again if "Llama" in line] == []
    assert tree(build.output) == tree(whole.output)


def quantised(whole: Build) -> Build:
    wanted = PairQuantization(
        target="fp8",
        calibrate=whole.folder / "calibrate.jsonl",
        evaluate=whole.folder / "evaluate.jsonl",
    )
    return replace(whole, options=BuildOptions(fingerprint=False, quantization=wanted))


def test_a_calibration_that_was_killed_goes_on_at_its_next_layer(whole: Build, tmp_path: Path) -> None:
    build = in_folder(quantised(whole), tmp_path / "killed")
    assert run(replace(build, kill_at_line="target: calibrated 2 of 4")) == KILLED
    (unfinished,) = list_store(build.cache).unfinished
    assert not unfinished.in_use
    assert unfinished.size_bytes > 0
    assert run(build) == 0, build.lines()
    layers = [line for line in build.lines() if "calibrated" in line]
    assert layers == [f"target: calibrated {n} of 4 layers" for n in (1, 2, 3, 4)]
    undisturbed = in_folder(quantised(whole), tmp_path / "undisturbed")
    assert run(undisturbed) == 0
    assert tree(build.output) == tree(undisturbed.output)


def test_of_two_builds_of_the_same_one_works_and_one_waits(whole: Build, tmp_path: Path) -> None:
    go = tmp_path / "go"
    first = replace(in_folder(whole, tmp_path / "a"), pause_at_line="target: Llama", until=go)
    second = replace(first, output=tmp_path / "second" / "pair", pause_at_line=None)
    second.output.parent.mkdir()
    working = start(first)
    wait_for_line(first, "target: Llama", working)
    waiting = start(second)
    wait_for_line(second, "target: waiting for another build that makes it", waiting)
    # What the two use stays, whatever is to be removed.
    assert collect_garbage(first.cache, max_size_bytes=0).removed == ()
    go.touch()
    working.join(PATIENCE_S)
    waiting.join(PATIENCE_S)
    assert (working.exitcode, waiting.exitcode) == (0, 0)
    assert [line for line in second.lines() if "Llama" in line] == []
    assert tree(first.output) == tree(second.output) == tree(whole.output)


def test_two_builds_of_one_folder_give_one_pair(whole: Build, tmp_path: Path) -> None:
    go = tmp_path / "go"
    first = replace(in_folder(whole, tmp_path / "a"), pause_at_line="target: Llama", until=go)
    working = start(first)
    wait_for_line(first, "target: Llama", working)
    second = start(replace(first, pause_at_line=None))
    wait_for_line(first, "target: waiting", second)
    go.touch()
    working.join(PATIENCE_S)
    second.join(PATIENCE_S)
    assert (working.exitcode, second.exitcode) == (0, 0), first.lines()
    assert f"{first.output}: another build of the same has made it" in first.lines()
    assert tree(first.output) == tree(whole.output)


def test_the_death_of_the_one_that_works_lets_the_other_go_on(whole: Build, tmp_path: Path) -> None:
    first = replace(in_folder(whole, tmp_path / "a"), pause_at_line="target: Llama", until=tmp_path / "never")
    second = replace(first, output=tmp_path / "second" / "pair", pause_at_line=None)
    second.output.parent.mkdir()
    working = start(first)
    wait_for_line(first, "target: Llama", working)
    waiting = start(second)
    wait_for_line(second, "target: waiting", waiting)
    working.kill()
    working.join()
    waiting.join(PATIENCE_S)
    assert waiting.exitcode == 0
    assert tree(second.output) == tree(whole.output)


@pytest.mark.parametrize("limit_bytes", [3_000, 60_000, 150_000])
@pytest.mark.parametrize("fp8", [False, True])
def test_a_full_disk_is_a_clear_line_and_the_store_stays_whole(
    whole: Build, tmp_path: Path, limit_bytes: int, fp8: bool
) -> None:
    """Files larger than the limit of the process cannot be written, as on a full disk."""
    build = in_folder(quantised(whole) if fp8 else whole, tmp_path / "full")
    assert run(replace(build, largest_file_bytes=limit_bytes)) == 1
    error = build.lines()[-1]
    assert error.startswith(f"OutputError: {build.cache}"), error
    assert "File too large" in error
    assert "free some space or choose another --cache; finished stages are kept there" in error
    assert verify_store(build.cache).damaged == ()
    assert run(build) == 0, build.lines()
    if not fp8:
        assert tree(build.output) == tree(whole.output)
