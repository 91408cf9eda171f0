"""The tensors of a Hugging Face checkpoint, from all its safetensors shards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .errors import EngineLoadError
from .fp8 import Fp8, read_scales, scale_names


class Weights:
    """The tensors of a folder, each handed out once; what was not asked for is an error at the end."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        self.folder = folder
        self._dtype = dtype
        self._tensors = read_tensors(folder)
        self._fp8 = read_scales(self._tensors, folder)
        # Whether bfloat16 holds every matrix exactly, in the engine's dtype.
        self.narrow = dtype == torch.bfloat16 or all(
            tensor.dtype in (torch.bfloat16, torch.float8_e4m3fn)
            for tensor in self._tensors.values()
            if tensor.dim() == 2
        )

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def take(self, name: str, *shape: int) -> Tensor:
        """Return the tensor in the engine's dtype; refuses a missing one and another shape."""
        self.expect(name, *shape)
        return self._tensors.pop(name).to(self._dtype)

    def expect(self, name: str, *shape: int) -> None:
        """Raise unless the tensor is there, in this shape."""
        tensor = self._tensors.get(name)
        if tensor is None:
            raise EngineLoadError(f"{self.folder}: no tensor {name!r}, which config.json implies")
        if tuple(tensor.shape) != shape:
            raise EngineLoadError(
                f"{self.folder}: {name!r} is {list(tensor.shape)}, config.json implies {list(shape)}"
            )

    def take_matrix(self, module: str, rows: int, columns: int) -> tuple[Tensor, Fp8 | None]:
        """Return a module's weight, and its scales where it holds FP8 codes."""
        fp8 = self._fp8.pop(module, None)
        if fp8 is not None:
            self.drop(*scale_names(module))
        return self.take(f"{module}.weight", rows, columns), fp8

    def drop(self, *names: str) -> None:
        """Forget tensors that carry nothing the config does not."""
        for name in names:
            self._tensors.pop(name, None)

    def finish(self) -> None:
        """Raise unless every tensor was taken."""
        if self._tensors:
            raise EngineLoadError(
                f"{self.folder}: {len(self._tensors)} tensors the architecture has no place for, "
                f"first {min(self._tensors)!r}"
            )


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of all shards as they are stored."""
    return dict(_tensors(folder))


def _tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    shards = sorted(folder.glob("*.safetensors"))
    if not shards:
        raise EngineLoadError(f"{folder}: no *.safetensors file, expected the weights there")
    seen: dict[str, Path] = {}
    for shard in shards:
        try:
            with safe_open(shard, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118  (not a mapping)
                    if name in seen:
                        raise EngineLoadError(f"{shard}: {name!r} is also in {seen[name].name}")
                    seen[name] = shard
                    yield name, file.get_tensor(name)
        except SafetensorError as error:
            raise EngineLoadError(f"{shard}: not a readable safetensors file ({error})") from error
