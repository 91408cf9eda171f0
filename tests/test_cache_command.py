"""The store is listed, checked and shrunk; what a build uses stays, and what is damaged is named."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fp8_checkpoints import with_tokenizer

from trtspec.build.options import BuildOptions
from trtspec.build.pair import build
from trtspec.build.store.store import Store
from trtspec.build.store.upkeep import collect_garbage, list_store, verify_store

SETTLED_NS = 10**18

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with target/, draft/, a pair and its store."""
    folder = tmp_path_factory.mktemp("filled")
    with_tokenizer(folder / "target")
    with_tokenizer(folder / "draft", num_hidden_layers=2)
    build_again(folder)
    return folder


def build_again(folder: Path) -> list[str]:
    said: list[str] = []
    options = BuildOptions(fingerprint=False)
    build(
        folder / "target",
        folder / "draft",
        folder / "pair",
        options,
        cache=folder / "store",
        report=said.append,
    )
    return said


@pytest.fixture
def folder(filled: Path, tmp_path: Path) -> Path:
    """A copy of it, with the times of its files; the pair's are no links."""
    return shutil.copytree(filled, tmp_path / "folder")


@pytest.fixture
def run(typed: Run) -> Run:
    """Run `trtspec cache` in this process; exit code, stdout, stderr."""
    return partial(typed, "cache")


def weights(folder: Path, stage: str) -> Path:
    (kept,) = [kept for kept in list_store(folder / "store").stages if kept.stage == stage]
    return folder / "store" / "stages" / kept.key / "files" / "model.safetensors"


def damage(file: Path) -> None:
    """Change a byte as a bad disk would: nothing else of the file shows it."""
    before = file.stat()
    file.chmod(0o644)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_ls_lists_the_stages_with_the_pair_they_were_made_for(filled: Path, run: Run) -> None:
    code, out, _ = run("ls", "--cache", filled / "store")
    assert code == 0
    assert all(stage in out for stage in ("tokenizer", "target", "draft", str(filled / "pair")))
    code, out, _ = run("ls", "--cache", filled / "store", "--json")
    found = json.loads(out)
    assert {kept["stage"] for kept in found["stages"]} == {"tokenizer", "target", "draft", "quality"}
    assert found["unfinished"] == []


@pytest.mark.parametrize("asked", ["ls", "verify", "gc"])
def test_looking_at_the_users_store_makes_none(
    asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setenv("TRTSPEC_CACHE", str(tmp_path / "none"))
    code, out, _ = run(asked)
    assert (code, out.startswith(f"{tmp_path / 'none'}: ")) == (0, True)
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_was_copied_without_its_locks_is_one(folder: Path, run: Run) -> None:
    shutil.rmtree(folder / "store" / "locks")
    assert run("verify", "--cache", folder / "store")[0] == 0


def test_one_stage_is_no_stages(folder: Path, run: Run) -> None:
    for kept in list_store(folder / "store").stages[1:]:
        shutil.rmtree(folder / "store" / "stages" / kept.key)
    assert ": 1 stage, " in run("ls", "--cache", folder / "store")[1]
    assert ": 1 stage read, 0 damaged" in run("verify", "--cache", folder / "store")[1]


def test_verify_of_a_whole_store_exits_0(filled: Path, run: Run) -> None:
    code, out, err = run("verify", "--cache", filled / "store")
    assert (code, err) == (0, "")
    assert "4 stages read, 0 damaged" in out


def test_verify_exits_3_on_damage_and_names_the_build_to_run_again(folder: Path, run: Run) -> None:
    damage(weights(folder, "draft"))
    code, out, err = run("verify", "--cache", folder / "store")
    assert code == 3
    assert "4 stages read, 1 damaged" in out
    # The copied store still says where it was made.
    assert "files/model.safetensors: not what was made; removed. Run again: trtspec build" in err
    assert "--runtime cpu --output" in err
    # Which works: what was damaged is gone.
    shutil.rmtree(folder / "pair")
    assert [line for line in build_again(folder) if "Llama" in line] == [
        f"draft: LlamaForCausalLM from {folder / 'draft'}"
    ]
    assert verify_store(folder / "store").damaged == ()


def test_verify_as_json_is_one_object(folder: Path, run: Run) -> None:
    damage(weights(folder, "target"))
    code, out, err = run("verify", "--cache", folder / "store", "--json")
    assert (code, err) == (3, "")
    (found,) = json.loads(out)["damaged"]
    assert (found["stage"], found["removed"]) == ("target", True)


def cut(record: Path) -> None:
    os.truncate(record, 100)


def change_a_fact(record: Path) -> None:
    said = json.loads(record.read_text())
    said["facts"]["parameters"] = 1
    record.write_text(json.dumps(said))


@pytest.mark.parametrize("damage_record", [cut, change_a_fact, Path.unlink])
def test_a_damaged_record_is_found_and_its_stage_made_again(
    folder: Path, run: Run, damage_record: Callable[[Path], None]
) -> None:
    record = weights(folder, "target").parents[1] / "stage.json"
    key = record.parent.name
    damage_record(record)
    assert [found.key for found in list_store(folder / "store").damaged] == [key]
    assert collect_garbage(folder / "store", dry_run=True).removed[0].key == key
    code, out, err = run("verify", "--cache", folder / "store")
    assert code == 3
    assert "4 stages read, 1 damaged" in out
    assert f"{record}: not what was made; removed. Run again" in err
    shutil.rmtree(folder / "pair")
    said = build_again(folder)
    assert [line for line in said if "Llama" in line] == [
        f"target: LlamaForCausalLM from {folder / 'target'}"
    ]


def test_a_damaged_record_stops_no_build(folder: Path) -> None:
    change_a_fact(weights(folder, "target").parents[1] / "stage.json")
    shutil.rmtree(folder / "pair")
    assert f"target: LlamaForCausalLM from {folder / 'target'}" in build_again(folder)


def test_a_record_of_another_version_is_left_alone(folder: Path) -> None:
    record = weights(folder, "target").parents[1] / "stage.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"new": 1}))
    assert verify_store(folder / "store").damaged == ()
    assert collect_garbage(folder / "store").removed == ()
    assert record.exists()


def use_up_to(store: Path, *, age_s: dict[str, float], now_ns: int) -> None:
    for kept in list_store(store).stages:
        then = now_ns - int(age_s.get(kept.stage, 0) * 1e9)
        os.utime(store / "stages" / kept.key / "stage.json", ns=(then, then))


def test_gc_removes_what_was_not_used_for_long(folder: Path, monkeypatch) -> None:
    monkeypatch.setattr("time.time_ns", lambda: SETTLED_NS)
    use_up_to(folder / "store", age_s={"target": 100, "draft": 10}, now_ns=SETTLED_NS)
    found = collect_garbage(folder / "store", unused_for_s=50)
    assert [removed.stage for removed in found.removed] == ["target"]
    assert found.freed_bytes > found.removed[0].size_bytes  # its record too
    assert not [kept for kept in list_store(folder / "store").stages if kept.stage == "target"]


def test_gc_removes_the_longest_unused_until_the_rest_fits(folder: Path) -> None:
    use_up_to(folder / "store", age_s={"draft": 30, "tokenizer": 20, "target": 10}, now_ns=SETTLED_NS)
    sizes = {kept.stage: kept.size_bytes for kept in list_store(folder / "store").stages}
    limit = sizes["target"] + sizes["tokenizer"]
    found = collect_garbage(folder / "store", max_size_bytes=limit)
    assert [removed.stage for removed in found.removed] == ["draft"]
    assert found.kept_bytes == limit


def test_a_dry_run_says_the_same_and_removes_nothing(folder: Path) -> None:
    before = list_store(folder / "store")
    dry = collect_garbage(folder / "store", max_size_bytes=0, dry_run=True)
    assert list_store(folder / "store") == before
    assert collect_garbage(folder / "store", max_size_bytes=0) == dry


def test_what_a_pair_links_to_frees_nothing(folder: Path) -> None:
    os.link(weights(folder, "target"), folder / "linked")
    found = collect_garbage(folder / "store", max_size_bytes=0)
    assert found.freed_bytes < sum(removed.size_bytes for removed in found.removed)
    assert (folder / "linked").stat().st_size > 0


def test_what_a_killed_build_has_left_goes_and_what_is_in_use_stays(folder: Path) -> None:
    for key in ("dead", "alive"):
        left = folder / "store" / "stages" / f"{key}.partial" / "files"
        left.mkdir(parents=True)
        (left / "weights").write_bytes(b"half")
    with Store(folder / "store") as store:
        lock = store.lock("alive")
        assert lock.try_to_take()
        listed = list_store(folder / "store").unfinished
        assert [(left.key, left.in_use) for left in listed] == [("alive", True), ("dead", False)]
        found = collect_garbage(folder / "store")
        lock.close()
    assert [(removed.key, removed.size_bytes) for removed in found.removed] == [("dead", 4)]
    assert [left.key for left in list_store(folder / "store").unfinished] == ["alive"]


@pytest.mark.parametrize("when", ["before its folder is read", "before it is looked at", "afterwards"])
def test_what_a_build_renames_in_the_meantime_is_passed_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    made = folder / "store" / "stages" / "made.partial" / "files"
    made.mkdir(parents=True)
    (made / "weights").write_bytes(b"half")
    scandir, stat = os.scandir, os.stat

    def read(place: Any) -> Any:
        if when == "before its folder is read" and not isinstance(place, int) and Path(place) == made:
            shutil.rmtree(made)
        return scandir(place)

    def look(path: Any, **options: Any) -> os.stat_result:
        here = not isinstance(path, int) and Path(path) == made / "weights"
        if here and when == "before it is looked at":
            made.joinpath("weights").unlink(missing_ok=True)
        found = stat(path, **options)
        if here:
            made.joinpath("weights").unlink()
        return found

    with monkeypatch.context() as patch:
        patch.setattr("os.scandir", read)
        patch.setattr("os.stat", look)
        listed = list_store(folder / "store")
    (unfinished,) = listed.unfinished
    assert unfinished.size_bytes == (4 if when == "afterwards" else 0)
    assert not (made / "weights").exists()


def test_when_a_stage_was_used_is_known_even_after_another_gc_has_removed_it(folder: Path) -> None:
    with Store(folder / "store") as store:
        entry = store.entries()[0]
        before = (entry.folder / "stage.json").stat().st_mtime_ns
        store.drop(entry.folder)
        assert entry.used_ns == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gc", "--max-size", "many"], "expected a size such as 500M or 200G"),
        (["gc", "--older-than", "30"], "expected a time such as 12h, 30d or 4w"),
        (["prune"], "No such command 'prune'"),
    ],
)
def test_wrong_usage_exits_2(run: Run, arguments: list[str], message: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.parametrize("name", ["ls", "verify", "gc"])
def test_a_folder_that_is_no_store_is_an_error_and_stays_as_it_is(
    tmp_path: Path, run: Run, name: str
) -> None:
    code, out, err = run(name, "--cache", tmp_path)
    assert (code, out) == (1, "")
    assert err == f"trtspec: {tmp_path}: no store; expected a folder that `trtspec build --cache` has made\n"
    assert list(tmp_path.iterdir()) == []


def test_the_gc_command_says_what_it_removes(folder: Path, run: Run) -> None:
    code, out, _ = run("gc", "--cache", folder / "store", "--max-size", "1K", "--dry-run")
    assert code == 0
    assert "would remove target" in out
    code, out, _ = run("gc", "--cache", folder / "store", "--max-size", "1K", "--older-than", "1000w")
    assert "removed target" in out
    assert list_store(folder / "store").size_bytes <= 1000
