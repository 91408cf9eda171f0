"""Which matrices of a decoder FP8 quantises, and which of them share a scale.

All matrices of attention and MLP; embeddings, norms, biases and the head stay as they are. Names are
those of Hugging Face's modules: a tensor's name without ".weight".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from trtspec.build.checkpoint import Checkpoint
from trtspec.build.convert.families import family_of
from trtspec.build.convert.settings import settings_of
from trtspec.build.convert.tables import Dimensions, Family
from trtspec.errors import BuildError, CheckpointError

# What becomes FP8 in a TensorRT-LLM layer; those of one group read the same input.
GROUPS = (
    ("attention.qkv.weight",),
    ("attention.dense.weight",),
    ("mlp.fc.weight", "mlp.gate.weight"),
    ("mlp.proj.weight",),
)


@dataclass(frozen=True)
class LayerLinears:
    """The quantised matrices of one layer."""

    place: str  # of the layer, with a dot at its end
    groups: tuple[tuple[str, ...], ...]  # module names; those of one group read the same input
    transposed: bool  # stored [in, out]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for group in self.groups for name in group)

    @property
    def attention(self) -> str:
        """The name of the attention module."""
        return self.groups[1][0].rpartition(".")[0]


def find_linears(checkpoint: Checkpoint) -> tuple[LayerLinears, ...]:
    """Return the quantised matrices of each layer.

    Raises:
        CheckpointError: the architecture has no table, or config.json is wrong about the sizes.
        BuildError: it is a mixture of experts, whose FP8 layout is another.
    """
    family, d = measured_family(checkpoint)
    if d.experts:
        raise BuildError(
            f"{checkpoint.path}: {checkpoint.architecture} has experts, which are not quantised to FP8 "
            "here; take --quantization none, or another model"
        )
    prefix = model_prefix(checkpoint, family)
    with settings_of(checkpoint.path):
        return tuple(
            _layer(family, d, checkpoint.config, prefix + family.layers.format(layer))
            for layer in range(d.layers)
        )


def measured_family(checkpoint: Checkpoint) -> tuple[Family, Dimensions]:
    """Return a checkpoint's family, and its sizes with as many layers as its tensors show.

    Raises:
        CheckpointError: the architecture has no table, or config.json is wrong about the sizes.
    """
    try:
        family = family_of(checkpoint.architecture)
    except CheckpointError as error:
        raise CheckpointError(f"{checkpoint.path / 'config.json'}: {error}") from None
    with settings_of(checkpoint.path):
        d = family.dimensions(checkpoint.config, checkpoint.vocab_size)
    # Before any table is built: its size is config.json's word.
    place = re.escape(model_prefix(checkpoint, family) + family.layers).replace(re.escape("{}"), r"(\d+)")
    shown = {match[1] for name in checkpoint.tensors if (match := re.match(place, name))}
    if len(shown) != d.layers:
        raise CheckpointError(
            f"{checkpoint.path / 'config.json'}: {d.layers} layers, the weights hold {len(shown)}; "
            "fetch the checkpoint again"
        )
    return family, d


def _layer(family: Family, d: Dimensions, config: Mapping[str, object], place: str) -> LayerLinears:
    table = family.layer(d, config)
    groups = []
    for group in GROUPS:
        parts = [part for name in group if name in table for part in table[name].parts]
        groups.append(tuple(dict.fromkeys(place + module_of(part.source) for part in parts)))
    return LayerLinears(place, tuple(groups), table[GROUPS[0][0]].parts[0].transposed)


def module_of(tensor: str) -> str:
    """Return the module that a weight belongs to."""
    return tensor.removesuffix(".weight")


def model_prefix(checkpoint: Checkpoint, family: Family) -> str:
    """Return the spelling of the model's prefix that this checkpoint uses."""
    for prefix in family.prefixes:
        if any(name.startswith(f"{prefix}{family.layers.partition('{}')[0]}") for name in checkpoint.tensors):
            return prefix
    return family.prefixes[0]
