"""The parts of a decoder, found by the names of its tensors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trtspec.build.checkpoint import EMBEDDINGS, Checkpoint
from trtspec.build.tensor_file import TensorInfo

LAYER = re.compile(r"^(?:(?:base_)?model\.|transformer\.|gpt_neox\.|model\.decoder\.)?(?:layers|h)\.(\d+)\.")
HEAD = re.compile(r"(?:^|\.)(?:lm_head|embed_out|output)\.weight$")

# Modules that hang inside a model which is whole without them.
MODULES = {
    "an MTP module": re.compile(r"(?:^|\.)mtp(?:_layers|_block)?\.|\.(?:eh_proj|enorm|hnorm)\."),
    "Medusa heads": re.compile(r"(?:^|\.)medusa_heads?\."),
}


def is_embedding(name: str) -> bool:
    """Whether a tensor is the token embedding."""
    return any(name == tail or name.endswith(f".{tail}") for tail in EMBEDDINGS)


def is_head(name: str) -> bool:
    """Whether a tensor is an output head of its own, not one tied to the embedding."""
    return HEAD.search(name) is not None


@dataclass(frozen=True)
class Body:
    """The tensors of a checkpoint, sorted into the decoder itself and modules inside a whole model."""

    expected: int | None  # layers that config.json counts
    layers: frozenset[int]  # of those, layers that are there
    uncounted: frozenset[int]  # decoder layers like the others, after the last that it counts
    has_embedding: bool
    has_head: bool
    outside: Mapping[str, TensorInfo]  # all but the modules inside
    inside: Mapping[str, TensorInfo]

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Body:
        """Sort the tensors. A single layer proves no whole model: many heads have one."""
        tensors, config = checkpoint.tensors, checkpoint.config
        counted = config.get("num_hidden_layers", config.get("n_layer"))
        expected = counted if isinstance(counted, int) else None
        found = {layer_of(name) for name in tensors} - {None}
        has_embedding = any(map(is_embedding, tensors))
        plain = _like_the_first(tensors)
        inside: dict[str, TensorInfo] = {}
        if has_embedding and expected and 1 < expected <= len(found) and set(range(expected)) <= found:
            inside = {name: tensor for name, tensor in tensors.items() if _is_extra(name, expected, plain)}
        return cls(
            expected=expected,
            layers=frozenset(n for n in found if n is not None and (expected is None or n < expected)),
            uncounted=frozenset(n for n in plain if expected is not None and n >= expected),
            has_embedding=has_embedding,
            has_head=any(map(is_head, tensors)),
            outside={name: tensor for name, tensor in tensors.items() if name not in inside},
            inside=inside,
        )

    @property
    def whole(self) -> bool:
        """Whether there are an embedding and several layers, as many as config.json counts."""
        return self.has_embedding and 1 < len(self.layers) == self.expected

    def missing(self, config: Mapping[str, Any]) -> str:
        """Return the part that a causal LM would have, "" when nothing is missing."""
        if not self.has_embedding:
            return f"token embedding ({', '.join(EMBEDDINGS)})"
        if not self.layers or (self.expected is not None and len(self.layers) < self.expected):
            return f"decoder layers ({len(self.layers)} of {self.expected} are there)"
        if not self.has_head and config.get("tie_word_embeddings") is False:
            return "output head (config.json says that it is not tied to the embedding)"
        return ""

    def carries(self) -> str:
        """Return the name of the module inside, "" for a plain model."""
        return next((name for name, sign in MODULES.items() if any(map(sign.search, self.inside))), "")

    def named(self, *patterns: str) -> Iterator[str]:
        """Yield a sign for each pattern that the name of some tensor outside matches."""
        for pattern in patterns:
            found = next((name for name in self.outside if re.search(pattern, name)), None)
            if found is not None:
                yield f"tensor {found}"


def layer_of(name: str) -> int | None:
    """Return the layer that a tensor is of, by its name."""
    found = LAYER.match(name)
    return int(found[1]) if found else None


def _like_the_first(names: Iterable[str]) -> frozenset[int]:
    """Return the layers that are made of the same tensors as layer 0."""
    parts: dict[int, set[str]] = {}
    for name in names:
        if (layer := layer_of(name)) is not None:
            parts.setdefault(layer, set()).add(name.split(f".{layer}.", 1)[1])
    return frozenset(layer for layer, found in parts.items() if found == parts.get(0))


def _is_extra(name: str, expected: int, plain: frozenset[int]) -> bool:
    """Whether a tensor is of a module, or of a layer after the last that config.json counts (MTP)."""
    layer = layer_of(name)
    if any(sign.search(name) for sign in MODULES.values()):
        return True
    return layer is not None and layer >= expected and layer not in plain
