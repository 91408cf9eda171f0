"""Opening a Hugging Face folder: what it tells, and every way in which it can be broken."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open

from trtspec.build.checkpoint import Checkpoint, open_checkpoint
from trtspec.build.tensor_file import DTYPE_BITS, TensorInfo, read_header
from trtspec.errors import CheckpointError

CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "eos_token_id": 2, "vocab_size": 9}
ENTRY = {"dtype": "BF16", "shape": [3, 2], "data_offsets": [0, 12]}


def write_tensors(file: Path, entries: Any, data: bytes, text: bytes | None = None) -> Path:
    """Write a safetensors file by hand, right or wrong."""
    header = json.dumps(entries).encode() if text is None else text
    file.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small sound checkpoint."""
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    write_tensors(path / "model.safetensors", {"model.embed_tokens.weight": ENTRY}, bytes(12))
    return path


@pytest.fixture
def sharded(folder: Path) -> Path:
    """The same in two shards with an index."""
    (folder / "model.safetensors").unlink()
    write_tensors(folder / "one.safetensors", {"model.embed_tokens.weight": ENTRY}, bytes(12))
    write_tensors(
        folder / "two.safetensors", {"b": ENTRY, "a": {**ENTRY, "data_offsets": [12, 24]}}, bytes(24)
    )
    write_index(
        folder, {"model.embed_tokens.weight": "one.safetensors", **dict.fromkeys("ab", "two.safetensors")}
    )
    return folder


def write_index(folder: Path, shards: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))


def test_a_folder_tells_its_files_tensors_and_settings(demo_pair: Path) -> None:
    checkpoint = open_checkpoint(demo_pair / "target")
    assert checkpoint.architecture == "LlamaForCausalLM"
    assert checkpoint.files == (demo_pair / "target" / "model.safetensors",)
    assert checkpoint.config["num_hidden_layers"] == 16
    assert checkpoint.vocab_size == 4096
    with safe_open(checkpoint.files[0], "np") as reference:
        assert list(checkpoint.tensors) == sorted(reference.keys())
        for name in ("model.norm.weight", "model.layers.3.mlp.up_proj.weight"):
            tensor = checkpoint.tensors[name]
            piece = reference.get_slice(name)
            assert (tensor.dtype, list(tensor.shape)) == (piece.get_dtype(), piece.get_shape())


def test_offsets_are_those_of_the_bytes_themselves(sharded: Path) -> None:
    (sharded / "two.safetensors").unlink()
    entries = {"b": ENTRY, "a": {**ENTRY, "data_offsets": [12, 24]}}
    write_tensors(sharded / "two.safetensors", entries, b"b" * 12 + b"a" * 12)
    for name, tensor in open_checkpoint(sharded).tensors.items():
        with tensor.file.open("rb") as stream:
            stream.seek(tensor.offset)
            content = stream.read(tensor.size_bytes)
        assert content == (name.encode() * 12 if name in "ab" else bytes(12))


def test_opening_imports_neither_torch_nor_numpy(folder: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from trtspec.build.checkpoint import open_checkpoint; "
        f"open_checkpoint(Path({str(folder)!r})); assert not {{'torch', 'numpy'}} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_shards_and_links_of_a_hub_snapshot_open(sharded: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    for file in sharded.iterdir():
        (snapshot / file.name).symlink_to(os.path.relpath(file, snapshot))
    checkpoint = open_checkpoint(snapshot)
    assert list(checkpoint.tensors) == ["a", "b", "model.embed_tokens.weight"]
    assert [file.name for file in checkpoint.files] == ["one.safetensors", "two.safetensors"]


def test_a_whole_file_wins_over_an_index(sharded: Path) -> None:
    write_tensors(sharded / "model.safetensors", {"wte.weight": ENTRY}, bytes(12))
    assert list(open_checkpoint(sharded).tensors) == ["wte.weight"]


def test_remote_code_is_not_looked_at(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({**CONFIG, "auto_map": {"AutoConfig": "evil.Config"}}))
    (folder / "evil.py").write_text("raise SystemExit('ran')")
    assert open_checkpoint(folder).architecture == "LlamaForCausalLM"


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"model.embed_tokens.weight": (3, 2), "x.wte.weight": (4, 2)}, "found: .*; expected one matrix"),
        ({"norm.weight": (3,)}, "found: none"),
        ({"wte.weight": (3,)}, "expected one matrix"),
    ],
)
def test_the_vocabulary_needs_one_embedding_matrix(tensors: dict[str, Any], message: str) -> None:
    found = {name: TensorInfo(name, "F32", shape, Path("x"), 0, 0) for name, shape in tensors.items()}
    with pytest.raises(CheckpointError, match=message):
        _ = Checkpoint(Path("x"), {}, {}, found, ()).vocab_size


@pytest.mark.parametrize(
    ("changes", "read", "message"),
    [
        ({"architectures": []}, "architecture", r"architectures is \[\]"),
        ({"architectures": "Llama"}, "architecture", "architectures is 'Llama'"),
    ],
)
def test_settings_of_the_wrong_kind_are_named(folder: Path, changes: Any, read: str, message: str) -> None:
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    with pytest.raises(CheckpointError, match=rf"config\.json: {message}"):
        getattr(open_checkpoint(folder), read)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere: not a folder"):
        open_checkpoint(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "missing"),
        (b"{", "not valid JSON"),
        (b"[1]", "holds a JSON list"),
        (b"\xff{}", "not valid JSON"),
    ],
)
def test_a_bad_config_is_named(folder: Path, content: bytes | None, message: str) -> None:
    (folder / "config.json").unlink()
    if content is not None:
        (folder / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"config\.json: {message}"):
        open_checkpoint(folder)


def test_json_nested_without_end_is_an_error_of_ours(folder: Path) -> None:
    (folder / "config.json").write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match="not valid JSON"):
        open_checkpoint(folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_pickled_weights_are_refused(folder: Path, name: str) -> None:
    (folder / "model.safetensors").rename(folder / name)
    with pytest.raises(CheckpointError, match="pickled or foreign weights only"):
        open_checkpoint(folder)


def test_a_folder_without_weights_is_named(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no weights; expected model\.safetensors"):
        open_checkpoint(folder)


def test_shards_without_their_index_are_refused(sharded: Path) -> None:
    (sharded / "model.safetensors.index.json").unlink()
    with pytest.raises(CheckpointError, match="fetch the index too"):
        open_checkpoint(sharded)


def test_a_file_without_tensors_is_refused(folder: Path) -> None:
    write_tensors(folder / "model.safetensors", {}, b"")
    with pytest.raises(CheckpointError, match="no tensors"):
        open_checkpoint(folder)


def test_missing_shards_are_counted(sharded: Path) -> None:
    (sharded / "two.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"1 shard, first 'two\.safetensors' of 2 missing"):
        open_checkpoint(sharded)


def test_a_link_to_a_blob_that_is_gone_is_a_missing_file(sharded: Path) -> None:
    (sharded / "two.safetensors").unlink()
    (sharded / "two.safetensors").symlink_to("../blobs/gone")
    with pytest.raises(CheckpointError, match=r"1 shard, first 'two\.safetensors'"):
        open_checkpoint(sharded)
    for file in sharded.glob("model*"):
        file.unlink()
    (sharded / "model.safetensors").symlink_to("../blobs/gone")
    with pytest.raises(CheckpointError, match="a link to a file that is gone"):
        open_checkpoint(sharded)


@pytest.mark.parametrize("shard", ["../one.safetensors", "/etc/passwd", "a/b", "..", "", "a\\b", 3, "a\0b"])
def test_an_index_that_leaves_the_folder_is_refused(sharded: Path, shard: Any) -> None:
    shutil.copy(sharded / "one.safetensors", sharded.parent / "one.safetensors")
    write_index(sharded, {"model.embed_tokens.weight": shard})
    with pytest.raises(CheckpointError, match="leaves the folder"):
        open_checkpoint(sharded)


@pytest.mark.parametrize("weight_map", [None, [], {}, "x"])
def test_an_index_without_a_map_is_refused(sharded: Path, weight_map: Any) -> None:
    write_index(sharded, weight_map)
    with pytest.raises(CheckpointError, match="weight_map is"):
        open_checkpoint(sharded)


@pytest.mark.parametrize(
    ("shards", "message"),
    [
        (
            {"a": "two.safetensors", "b": "two.safetensors", "c": "two.safetensors"},
            "1 tensor, first 'c', in the index",
        ),
        ({"a": "two.safetensors"}, "1 tensor, first 'b', in a shard that the index does not give"),
        ({"a": "two.safetensors", "b": "one.safetensors"}, "2 tensors, first 'b'"),
    ],
)
def test_index_and_shards_must_agree(sharded: Path, shards: dict[str, str], message: str) -> None:
    write_index(sharded, shards)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(sharded)


def test_a_tensor_in_two_shards_is_refused(sharded: Path) -> None:
    write_tensors(sharded / "one.safetensors", {"a": ENTRY}, bytes(12))
    write_index(sharded, {"a": "two.safetensors", "b": "two.safetensors", "c": "one.safetensors"})
    with pytest.raises(CheckpointError, match="first 'a', in a shard that the index does not give"):
        open_checkpoint(sharded)


HUGE = 2**62
BROKEN: list[tuple[Any, int, str]] = [
    ({"a": ENTRY}, 11, "ends at byte .* truncated"),
    ({"a": ENTRY}, 0, "truncated"),
    ({"a": ENTRY}, 13, "1 bytes after 'a'"),
    ({"a": ENTRY, "b": ENTRY}, 12, "'b' overlaps 'a'"),
    ({"a": ENTRY, "b": {**ENTRY, "data_offsets": [6, 18]}}, 18, "'b' overlaps 'a'"),
    ({"a": ENTRY, "b": {**ENTRY, "data_offsets": [14, 26]}}, 26, "2 unclaimed bytes between 'a'"),
    ({"a": {**ENTRY, "data_offsets": [4, 16]}}, 16, "4 unclaimed bytes between the header"),
    ({"a": {**ENTRY, "data_offsets": [HUGE, HUGE + 12]}}, 12, "unclaimed"),
    ({"a": {**ENTRY, "data_offsets": [12, 0]}}, 12, "takes -12 bytes"),
    ({"a": {**ENTRY, "data_offsets": [-12, 0]}}, 12, "data_offsets"),
    ({"a": {**ENTRY, "data_offsets": [0]}}, 12, "data_offsets"),
    ({"a": {**ENTRY, "data_offsets": [0, 12.0]}}, 12, "data_offsets"),
    ({"a": {**ENTRY, "dtype": "F32"}}, 12, r"takes 12 bytes, F32 of shape \[3, 2\] takes 24"),
    ({"a": {**ENTRY, "dtype": "F4", "shape": [3]}}, 12, "takes 12 bits"),
    ({"a": {**ENTRY, "dtype": "BF17"}}, 12, "dtype 'BF17'"),
    ({"a": {**ENTRY, "dtype": ["BF16"]}}, 12, "dtype"),
    ({"a": {**ENTRY, "shape": [3, -2]}}, 12, "expected a list of sizes"),
    ({"a": {**ENTRY, "shape": [True, 6]}}, 12, "expected a list of sizes"),
    ({"a": {**ENTRY, "shape": "3x2"}}, 12, "expected a list of sizes"),
    ({"a": {**ENTRY, "shape": [HUGE, HUGE]}}, 12, "takes 12 bytes"),
    ({"a": {**ENTRY, "shape": [10**400]}}, 12, f"takes more than {2**63 - 1}; the header is damaged"),
    ({"a": {**ENTRY, "shape": [10**4000, 10**4000]}}, 12, "the header is damaged"),
    ({"a": {"dtype": "BF16", "shape": [6]}}, 12, "no dtype, shape and data_offsets"),
    ({"a": 3}, 12, "no dtype, shape and data_offsets"),
    ([1], 0, "header is a JSON list"),
]


@pytest.mark.parametrize(("entries", "size", "message"), BROKEN)
def test_a_header_that_lies_is_refused_and_safetensors_agrees(
    tmp_path: Path, entries: Any, size: int, message: str
) -> None:
    file = write_tensors(tmp_path / "x.safetensors", entries, bytes(size))
    with pytest.raises(CheckpointError, match=message):
        read_header(file)
    with pytest.raises(SafetensorError), safe_open(file, "np"):
        pass


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "truncated"),
        (b"\x02\x00", "truncated"),
        ((1000).to_bytes(8, "little") + b"{}", "its header alone needs 1008; truncated"),
        ((100_000_001).to_bytes(8, "little") + b"{}", "header of 100000001 bytes"),
        (b"\xff" * 16, "header of .* bytes"),
        ((2).to_bytes(8, "little") + b"{'", "not JSON"),
        ((2).to_bytes(8, "little") + b"\xff\xff", "not JSON"),
        ((50_000).to_bytes(8, "little") + b"[" * 50_000, "not JSON"),
    ],
)
def test_what_is_no_safetensors_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "x.safetensors"
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        read_header(file)


def test_a_name_given_twice_is_refused(tmp_path: Path) -> None:
    entry = json.dumps(ENTRY)
    file = write_tensors(
        tmp_path / "x.safetensors", None, bytes(12), f'{{"a": {entry}, "a": {entry}}}'.encode()
    )
    with pytest.raises(CheckpointError, match="'a' twice"):
        read_header(file)


def test_a_pipe_is_refused_without_waiting_for_it(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="not a regular file"):
        open_checkpoint(folder)


def test_empty_tensors_and_scalars_are_tensors(tmp_path: Path) -> None:
    entries = {
        "scalar": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]},
        "empty": {"dtype": "F32", "shape": [0, 7], "data_offsets": [4, 4]},
        "last": {"dtype": "U8", "shape": [1], "data_offsets": [4, 5]},
    }
    found = read_header(write_tensors(tmp_path / "x.safetensors", entries, bytes(5)))
    assert {name: tensor.size_bytes for name, tensor in found.items()} == {"scalar": 4, "empty": 0, "last": 1}


@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(DTYPE_BITS)), st.lists(st.integers(0, 5), max_size=3)), max_size=6
    )
)
def test_any_sound_header_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, tensors: list[tuple[str, list[int]]]
) -> None:
    entries: dict[str, Any] = {}
    position = 0
    for number, (dtype, shape) in enumerate(tensors):
        bits = DTYPE_BITS[dtype]
        for size in shape:
            bits *= size
        if bits % 8:
            continue
        entries[f"t{number}"] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [position, position + bits // 8],
        }
        position += bits // 8
    file = write_tensors(tmp_path_factory.mktemp("any") / "x.safetensors", entries, bytes(position))
    header_size = 8 + int.from_bytes(file.read_bytes()[:8], "little")
    found = read_header(file)
    assert found.keys() == entries.keys()
    for name, entry in entries.items():
        begin, end = entry["data_offsets"]
        assert found[name] == TensorInfo(
            name, entry["dtype"], tuple(entry["shape"]), file, header_size + begin, end - begin
        )
