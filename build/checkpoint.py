"""A Hugging Face folder as a value: its JSON files and the headers of its weights, never the weights.

Only safetensors are read. Nothing of the folder is executed: `auto_map` and code files are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtspec.build.json_file import read_object
from trtspec.build.tensor_file import TensorInfo, read_header
from trtspec.errors import CheckpointError

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

# Last parts of the token embedding's name, over the decoder families.
EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight")


@dataclass(frozen=True)
class Checkpoint:
    """An opened Hugging Face folder."""

    path: Path
    config: Mapping[str, Any]  # config.json as it is
    generation_config: Mapping[str, Any]  # {} when the file is absent
    tensors: Mapping[str, TensorInfo]  # of all shards
    files: tuple[Path, ...]  # the weight files

    @property
    def architecture(self) -> str:
        """The class name the checkpoint was saved from, e.g. LlamaForCausalLM."""
        names = self.config.get("architectures")
        if not isinstance(names, list) or not names or not isinstance(names[0], str):
            raise CheckpointError(
                f"{self.path / 'config.json'}: architectures is {names!r}, expected a list with a class name"
            )
        return names[0]

    @property
    def vocab_size(self) -> int:
        """The rows of the token embedding itself, which may differ from config.json's vocab_size."""
        found = [
            tensor
            for name, tensor in self.tensors.items()
            if any(name == tail or name.endswith(f".{tail}") for tail in EMBEDDINGS)
        ]
        if len(found) != 1 or len(found[0].shape) != 2:
            named = ", ".join(f"{tensor.name} {list(tensor.shape)}" for tensor in found) or "none"
            raise CheckpointError(f"{self.path}: token embeddings found: {named}; expected one matrix")
        return found[0].shape[0]


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a Hugging Face folder by its JSON files and weight headers.

    Raises:
        CheckpointError: the folder is not a checkpoint, holds pickled weights only, misses a shard, or a
            file is truncated or contradicts itself. One line that says which.
    """
    if not path.is_dir():
        raise CheckpointError(f"{path}: not a folder; expected a Hugging Face checkpoint")
    config = read_object(path / "config.json")
    tensors = _read_tensors(path)
    return Checkpoint(
        path=path,
        config=config,
        generation_config=read_object(path / "generation_config.json", required=False),
        tensors=tensors,
        files=tuple(sorted({tensor.file for tensor in tensors.values()})),
    )


def shown_count(names: Iterable[str], noun: str) -> str:
    """Return `12 tensors, first 'a.weight'` for a list of faults of one kind."""
    ordered = sorted(names)
    return f"{len(ordered)} {noun}{'s' if len(ordered) != 1 else ''}, first {ordered[0]!r}"


def _read_tensors(path: Path) -> dict[str, TensorInfo]:
    # The order of transformers: a whole file wins over an index.
    if (path / WEIGHTS).exists():
        tensors = read_header(path / WEIGHTS)
    elif (path / INDEX).exists():
        tensors = _read_shards(path)
    else:
        raise CheckpointError(f"{path}: {_why_no_weights(path)}")
    if not tensors:
        raise CheckpointError(f"{path}: no tensors in {WEIGHTS}; expected a model's weights")
    return dict(sorted(tensors.items()))


def _why_no_weights(path: Path) -> str:
    if (path / WEIGHTS).is_symlink():
        return f"{WEIGHTS} is a link to a file that is gone; fetch the checkpoint again"
    if any(path.glob("*.safetensors")):
        return f"safetensors files but neither {WEIGHTS} nor {INDEX}; fetch the index too"
    if any(file.suffix in {".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack"} for file in path.iterdir()):
        return (
            "pickled or foreign weights only, which can run code when loaded; save it as safetensors first "
            "(save_pretrained does)"
        )
    return f"no weights; expected {WEIGHTS} or {INDEX}"


def _read_shards(path: Path) -> dict[str, TensorInfo]:
    """Read every shard the index names; index and shards must tell the same story."""
    index = path / INDEX
    shard_of = _weight_map(index)
    shards = sorted(set(shard_of.values()))
    # Through the link of a hub snapshot: exists() follows it, so a dangling one is missing.
    missing = [shard for shard in shards if not (path / shard).exists()]
    if missing:
        raise CheckpointError(
            f"{index}: {shown_count(missing, 'shard')} of {len(shards)} missing; fetch the checkpoint again"
        )
    tensors: dict[str, TensorInfo] = {}
    stray = []
    for shard in shards:
        for name, tensor in read_header(path / shard).items():
            if shard_of.get(name) != shard:
                stray.append(name)
            tensors[name] = tensor
    if stray:
        raise CheckpointError(
            f"{index}: {shown_count(stray, 'tensor')}, in a shard that the index does not give; "
            "index and shards are of different checkpoints, fetch both again"
        )
    absent = shard_of.keys() - tensors.keys()
    if absent:
        raise CheckpointError(
            f"{index}: {shown_count(absent, 'tensor')}, in the index and in no shard; "
            "index and shards are of different checkpoints, fetch both again"
        )
    return tensors


def _weight_map(index: Path) -> dict[str, str]:
    """Return the shard of each tensor; a shard is a plain name in the index's own folder."""
    shard_of = read_object(index).get("weight_map")
    if not isinstance(shard_of, dict) or not shard_of:
        raise CheckpointError(f"{index}: weight_map is {shard_of!r}, expected tensor names and their shards")
    for shard in shard_of.values():
        if (
            not isinstance(shard, str)
            or shard in {"", ".", ".."}
            or any(sign in shard for sign in ("/", "\\", "\0"))
        ):
            raise CheckpointError(f"{index}: shard {shard!r} leaves the folder; expected a plain file name")
    return shard_of
