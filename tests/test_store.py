"""What is made once is found again by what it was made from; what has changed is made anew."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fp8_checkpoints import with_tokenizer
from hypothesis import given
from hypothesis import strategies as st

from trtspec.build.checkpoint import open_checkpoint
from trtspec.build.options import BuildOptions
from trtspec.build.pair import build
from trtspec.build.stages import NoFacts, Stage
from trtspec.build.store.hashes import SETTLED_NS, Hashes
from trtspec.build.store.keys import as_json, build_keys, digest, stage_keys, versions
from trtspec.build.store.sources import read_source, revision_of
from trtspec.build.store.store import default_cache
from trtspec.build.store.upkeep import list_store
from trtspec.digest import sha256
from trtspec.engines.fingerprint import fingerprint_of
from trtspec.engines.pair import EnginePair, open_pair
from trtspec.engines.publish import publish, temporary_sibling
from trtspec.errors import BuildError, CheckpointError, EngineError, OutputError

QUICK = BuildOptions(fingerprint=False)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    with_tokenizer(folder / "target")
    with_tokenizer(folder / "draft", num_hidden_layers=2)
    return folder


@pytest.fixture
def checkpoints(tiny: Path, tmp_path: Path) -> Path:
    """A target and a draft, to be changed."""
    shutil.copytree(tiny, tmp_path / "checkpoints")
    return tmp_path / "checkpoints"


def build_in(folder: Path, output: Path, options: BuildOptions = QUICK, **how: Any) -> list[str]:
    """Build and return what was reported."""
    said: list[str] = []
    build(folder / "target", folder / "draft", output, options, report=said.append, **how)
    return said


def made(said: list[str]) -> set[str]:
    """Return the models that were written."""
    return {line.partition(":")[0] for line in said if "LlamaForCausalLM from" in line}


# Keys

SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


def stage(name: str, needs: tuple[str, ...] = (), **inputs: Any) -> Stage:
    return Stage(name, lambda folder, done: NoFacts(), needs=needs, sources=("target",), inputs=inputs)


SOURCES = {"target": {"a": "1", "b": "2"}, "draft": {"a": "3"}}


@given(st.dictionaries(st.text(max_size=3), VALUES, max_size=4), st.randoms())
def test_the_order_of_keys_does_not_change_a_digest(value: dict[str, Any], chance: Any) -> None:
    items = list(value.items())
    chance.shuffle(items)
    assert digest(dict(items)) == digest(value)


@given(VALUES, VALUES)
def test_values_that_json_tells_apart_have_digests_of_their_own(one: Any, other: Any) -> None:
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (digest(one) == digest(other)) is same


@given(VALUES, VALUES)
def test_an_input_changes_the_key_of_its_stage_and_of_those_that_need_it(one: Any, other: Any) -> None:
    def keys(value: Any) -> dict[str, str]:
        return stage_keys([stage("a", x=value), stage("b"), stage("c", ("a",)), stage("d", ("c",))], SOURCES)

    before, after = keys(one), keys(other)
    changed = {name for name in before if before[name] != after[name]}
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert changed == (set() if same else {"a", "c", "d"})


def test_only_the_checkpoints_a_stage_reads_are_in_its_key() -> None:
    before = stage_keys([stage("a")], SOURCES)
    assert stage_keys([stage("a")], {**SOURCES, "draft": {"a": "4"}}) == before
    for target in ({"a": "1", "b": "3"}, {"a": "1", "c": "2"}, {"a": "1"}, {"a": "2", "b": "1"}):
        assert stage_keys([stage("a")], {**SOURCES, "target": target}) != before


@pytest.mark.parametrize(
    "changes",
    [{"max_seq_len": 64}, {"max_batch_size": 3}, {"max_draft_len": 2}, {"dtype": "bfloat16"}, {"tp": 2}],
)
def test_every_option_is_in_the_key_of_the_build(changes: dict[str, Any]) -> None:
    stages = [stage("a")]
    assert build_keys(stages, SOURCES, replace(QUICK, **changes)) != build_keys(stages, SOURCES, QUICK)


def test_a_file_counts_by_its_content(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("text")
    other.write_text("text")
    assert digest({"file": one}) == digest({"file": other})
    other.write_text("texts")
    assert digest({"file": one}) != digest({"file": other})
    assert as_json(one) == f"sha256:{sha256(one)}"
    with pytest.raises(BuildError, match="gone: cannot be read"):
        digest(tmp_path / "gone")


# Hashes


def settle(file: Path, mtime_ns: int = 10**18) -> None:
    os.utime(file, ns=(mtime_ns, mtime_ns))


def test_a_file_that_is_known_is_not_read_again(tmp_path: Path) -> None:
    file, hashes = tmp_path / "weights", Hashes(tmp_path / "hashes")
    file.write_bytes(b"one")
    settle(file)
    assert hashes.unread_bytes([file]) == 3
    (first,) = hashes.of([file])
    assert first.sha256 == sha256(file)
    assert hashes.unread_bytes([file]) == 0
    # The same size, time and inode: whoever does this is not seen.
    file.write_bytes(b"two")
    settle(file)
    assert Hashes(tmp_path / "hashes").of([file]) == [first]


@pytest.mark.parametrize("change", ["time", "size", "inode", "damaged notes"])
def test_a_file_that_may_have_changed_is_read_again(tmp_path: Path, change: str) -> None:
    file, hashes = tmp_path / "weights", Hashes(tmp_path / "hashes")
    file.write_bytes(b"one")
    settle(file)
    hashes.of([file])
    if change == "inode":
        new = tmp_path / "new"
        new.write_bytes(b"two")
        new.replace(file)
    elif change == "damaged notes":
        (notes,) = (tmp_path / "hashes").iterdir()
        notes.write_bytes(b"{")
        file.write_bytes(b"two")
    else:
        file.write_bytes(b"two and more" if change == "size" else b"two")
    settle(file, 10**18 + (change == "time"))
    assert hashes.of([file])[0].sha256 == sha256(file)


@pytest.mark.parametrize(
    "note", ["[]", '{"files": []}', '{"files": {"weights": 3}}', '{"files": 1', "[" * 100_000]
)
def test_notes_that_say_nothing_are_no_error(tmp_path: Path, note: str) -> None:
    file, hashes = tmp_path / "weights", Hashes(tmp_path / "hashes")
    file.write_bytes(b"one")
    settle(file)
    (first,) = hashes.of([file])
    (notes,) = (tmp_path / "hashes").iterdir()
    notes.write_text(note)
    assert hashes.of([file]) == [first]


def test_a_file_written_this_moment_is_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, hashes = tmp_path / "weights", Hashes(tmp_path / "hashes")
    file.write_bytes(b"one")
    for age_ns, unread in ((0, 3), (SETTLED_NS, 3), (SETTLED_NS + 1, 0)):
        settle(file)
        monkeypatch.setattr("time.time_ns", lambda age_ns=age_ns: 10**18 + age_ns)
        hashes.of([file])
        assert hashes.unread_bytes([file]) == unread


def test_what_cannot_matter_is_no_source(checkpoints: Path) -> None:
    folder = checkpoints / "target"
    (folder / "README.md").write_text("words")
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tools.jinja").write_text("{{ messages }}")
    source = read_source(open_checkpoint(folder), Hashes(checkpoints / "hashes"))
    assert source.hashes.keys() == {
        "additional_chat_templates/tools.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert all(digest == sha256(folder / name) for name, digest in source.hashes.items())


def test_the_revision_is_the_one_the_folder_was_fetched_at(tmp_path: Path) -> None:
    commit = "0e9e39f249a16976918f6564b8830bc894c89659"
    snapshot = tmp_path / "models--org--name" / "snapshots" / commit
    snapshot.mkdir(parents=True)
    assert revision_of(snapshot) == commit
    notes = tmp_path / "plain" / ".cache" / "huggingface" / "download"
    notes.mkdir(parents=True)
    (notes / "config.json.metadata").write_text(f"{commit}\netag\n1700000000.0\n")
    assert revision_of(tmp_path / "plain") == commit
    (notes / "config.json.metadata").write_text("not a commit\n")
    assert revision_of(tmp_path / "plain") is None
    assert revision_of(tmp_path) is None


# Builds


def test_a_second_build_of_the_same_does_nothing_and_says_so(checkpoints: Path, tmp_path: Path) -> None:
    pair = tmp_path / "pair"
    build_in(checkpoints, pair)
    before = {file: file.stat().st_mtime_ns for file in pair.rglob("*")}
    assert build_in(checkpoints, pair)[-1] == f"{pair}: is this build already; nothing to do"
    assert {file: file.stat().st_mtime_ns for file in pair.rglob("*")} == before


def test_another_output_is_linked_from_the_store(checkpoints: Path, tmp_path: Path) -> None:
    build_in(checkpoints, tmp_path / "one")
    said = build_in(checkpoints, tmp_path / "two")
    assert made(said) == set()
    assert [line for line in said if "found in the store" in line]
    weights = [tmp_path / name / "target" / "model.safetensors" for name in ("one", "two")]
    assert os.path.samefile(*weights)
    assert {file.stat().st_mode & 0o777 for file in weights} == {0o444}
    manifests = [(tmp_path / name / "trtspec.json").read_bytes() for name in ("one", "two")]
    assert manifests[0] == manifests[1]


def test_only_what_has_changed_is_made_again(checkpoints: Path, tmp_path: Path) -> None:
    build_in(checkpoints, tmp_path / "one")
    config = json.loads((checkpoints / "draft" / "config.json").read_text())
    (checkpoints / "draft" / "config.json").write_text(json.dumps(config | {"note": 1}))
    assert made(build_in(checkpoints, tmp_path / "two")) == {"draft"}
    assert made(build_in(checkpoints, tmp_path / "three", replace(QUICK, dtype="bfloat16"))) == {
        "target",
        "draft",
    }


def test_moved_checkpoints_are_the_same_build(checkpoints: Path, tmp_path: Path) -> None:
    build_in(checkpoints, tmp_path / "pair")
    moved = checkpoints.rename(tmp_path / "moved")
    assert "nothing to do" in build_in(moved, tmp_path / "pair")[-1]


def test_another_build_in_the_output_is_refused(checkpoints: Path, tmp_path: Path) -> None:
    build_in(checkpoints, tmp_path / "pair")
    with pytest.raises(OutputError, match="pair: exists already and is another build; remove it or choose"):
        build_in(checkpoints, tmp_path / "pair", replace(QUICK, max_draft_len=3))


def test_an_output_that_somebody_has_changed_is_named(checkpoints: Path, tmp_path: Path) -> None:
    build_in(checkpoints, tmp_path / "pair")
    file = tmp_path / "pair" / "tokenizer" / "tokenizer_config.json"
    file.unlink()
    file.write_text("{}")
    with pytest.raises(OutputError, match=r"tokenizer_config\.json: is not as it was built; remove .*pair"):
        build_in(checkpoints, tmp_path / "pair")


def store_file(store: Path, name: str) -> Path:
    return max(store.glob(f"stages/*/files/{name}"), key=lambda file: file.stat().st_size)


def write_over(file: Path) -> None:
    file.chmod(0o644)
    file.write_bytes(b"\0" + file.read_bytes()[1:])
    settle(file)


@pytest.mark.parametrize("damage", [write_over, Path.unlink, lambda file: os.truncate(file, 10)])
def test_what_somebody_has_written_to_in_the_store_is_made_again(
    checkpoints: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    store = tmp_path / "store"
    build_in(checkpoints, tmp_path / "one", cache=store)
    whole = {f: f.read_bytes() for f in (tmp_path / "one").rglob("*.safetensors")}
    damage(store_file(store, "model.safetensors"))
    said = build_in(checkpoints, tmp_path / "two", cache=store)
    assert made(said) == {"target"}
    assert [line for line in said if "is not as it was made; it is made again" in line]
    for file, content in whole.items():
        assert (tmp_path / "two" / file.relative_to(tmp_path / "one")).read_bytes() == content


def test_a_checkpoint_that_changes_while_it_is_read_is_refused_and_not_kept(
    checkpoints: Path, tmp_path: Path
) -> None:
    def change(line: str) -> None:
        if line.startswith("target: Llama"):
            (checkpoints / "target" / "config.json").touch()

    with pytest.raises(CheckpointError, match=r"target/config\.json: changed while the pair was built"):
        build(checkpoints / "target", checkpoints / "draft", tmp_path / "pair", QUICK, report=change)
    assert "target" not in {kept.stage for kept in list_store().stages}
    assert not (tmp_path / "pair").exists()


def test_without_a_store_nothing_is_kept(checkpoints: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("TRTSPEC_CACHE", str(tmp_path / "store"))
    build_in(checkpoints, tmp_path / "pair", cache="none")
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoints", "pair"}
    assert made(build_in(checkpoints, tmp_path / "two", cache="none")) == {"target", "draft"}
    assert (tmp_path / "pair" / "trtspec.json").read_bytes() == (
        tmp_path / "two" / "trtspec.json"
    ).read_bytes()


@pytest.mark.parametrize("place", ["a file", "inside trtspec"])
def test_a_store_where_none_can_be_is_refused(checkpoints: Path, tmp_path: Path, place: str) -> None:
    import trtspec.build

    (tmp_path / "file").write_text("")
    store = tmp_path / "file" if place == "a file" else Path(trtspec.build.__path__[0]) / "store"
    with pytest.raises(OutputError, match=r"choose another --cache"):
        build_in(checkpoints, tmp_path / "pair", cache=store)


def test_the_store_lies_where_the_user_says(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRTSPEC_CACHE", "/one")
    assert default_cache() == Path("/one")
    monkeypatch.delenv("TRTSPEC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/two")
    assert default_cache() == Path("/two/trtspec")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert default_cache() == Path("/home/me/.cache/trtspec")


def test_paths_may_be_strings(checkpoints: Path, tmp_path: Path) -> None:
    target, draft, output = (str(checkpoints / "target"), str(checkpoints / "draft"), str(tmp_path / "pair"))
    pair = build(target, draft, output, QUICK, cache=str(tmp_path / "store"), report=lambda line: None)
    assert open_pair(output) == pair


# What a pair says of itself


def test_the_manifest_says_what_made_the_pair(built_pair: EnginePair, demo_pair: Path) -> None:
    manifest = built_pair.manifest
    for role, engine in (("target", manifest.target), ("draft", manifest.draft)):
        assert engine is not None
        assert engine.source is not None
        assert engine.source.files["model.safetensors"] == sha256(demo_pair / role / "model.safetensors")
        assert engine.source.files["config.json"] == sha256(demo_pair / role / "config.json")
    assert manifest.versions == versions()
    assert {"trtspec", "torch", "transformers", "tokenizers", "safetensors"} <= manifest.versions.keys()
    assert manifest.options["max_draft_len"] == 8
    assert manifest.options["quantization"]["target"] == "none"
    assert len(manifest.key) == 64


def test_the_fingerprint_is_what_the_engines_say(built_pair: EnginePair, demo_pair: Path) -> None:
    found = built_pair.manifest.fingerprint
    dtypes: Any = {"target": "float32", "draft": "float32"}
    assert found == fingerprint_of(built_pair.target, built_pair.draft, built_pair.tokenizer, dtypes)
    assert found.target != found.draft
    for probe in found.target:
        ids, log_probs = hugging_face(demo_pair / "target", list(probe.prompt_ids), len(probe.ids))
        assert list(probe.ids) == ids
        assert probe.log_probs == pytest.approx(log_probs, abs=1e-3)


def hugging_face(folder: Path, ids: list[int], count: int) -> tuple[list[int], list[float]]:
    """Return what transformers goes on with, and the log-probs of that."""
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    found = []
    for _ in range(count):
        with torch.inference_mode():
            scores = model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
        found.append(float(scores.max()))
        ids = [*ids, int(scores.argmax())]
    return ids[-count:], found


def test_a_pair_too_short_for_the_probes_has_a_fingerprint_of_what_fits(
    checkpoints: Path, tmp_path: Path
) -> None:
    options = BuildOptions(max_seq_len=3, max_draft_len=2)
    build_in(checkpoints, tmp_path / "pair", options)
    found = open_pair(tmp_path / "pair").manifest.fingerprint
    assert found is not None
    assert {len(probe.prompt_ids) + len(probe.ids) for probe in found.target} == {3}


# Disks that fail


@pytest.mark.parametrize(
    ("number", "where"), [(errno.ENOSPC, "work"), (errno.EDQUOT, "work"), (errno.EIO, "store/weights")]
)
def test_a_full_disk_is_that_of_the_output_whatever_was_copied_there(
    number: int, where: str, tmp_path: Path
) -> None:
    """shutil names what it was reading."""
    error = OSError(number, os.strerror(number), "store/weights", None, "work/.pair.partial/weights")
    pair = tmp_path / "work" / "pair"
    message = rf"^.*{where}: {os.strerror(number)} while {pair} was written"
    with pytest.raises(OutputError, match=message), publish(pair):
        raise error
    assert list((tmp_path / "work").iterdir()) == []


# What killed processes leave beside an output


def test_a_temporary_folder_whose_process_was_killed_is_removed(tmp_path: Path) -> None:
    left = tmp_path / ".pair.abc.partial"
    (left / "target").mkdir(parents=True)
    settle(left)
    other = tmp_path / ".pair-two.abc.partial"
    other.mkdir()
    settle(other)
    with publish(tmp_path / "pair"):
        assert not left.exists()
    assert other.exists()


def test_a_temporary_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    with temporary_sibling(tmp_path / "pair") as first:
        settle(first)
        with temporary_sibling(tmp_path / "pair"):
            assert first.is_dir()
    assert list(tmp_path.iterdir()) == []


def test_a_pair_of_another_format_is_refused_as_output(checkpoints: Path, tmp_path: Path) -> None:
    (tmp_path / "pair").mkdir()
    (tmp_path / "pair" / "trtspec.json").write_text("{}")
    with pytest.raises(EngineError, match="entries are not as expected"):
        build_in(checkpoints, tmp_path / "pair")
