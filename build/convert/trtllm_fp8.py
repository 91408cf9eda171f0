"""FP8 tensors of a TensorRT-LLM checkpoint.

Of each fused matrix `weight` (codes), and `weights_scaling_factor` and `activation_scaling_factor` of
shape [1]; or, where every output row has a scale of its own, `per_channel_scale`. Scales are never split
over ranks, except those of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from trtspec.build.convert.e4m3 import Encode, Rescale
from trtspec.build.convert.elements import Array
from trtspec.build.convert.fp8 import CACHE_SCALE_FLOOR, PER_CHANNEL, Fp8Scales, scale_tensor
from trtspec.build.convert.linears import module_of
from trtspec.build.convert.plan import PlannedTensor
from trtspec.build.convert.splitting import Cut
from trtspec.build.convert.tables import Part, Table
from trtspec.build.tensor_file import TensorInfo
from trtspec.errors import BuildError

# Two matrices that one product may compute together: they share a scale, as in ModelOpt 0.47.
PARTNERS = {"mlp.fc.weight": "mlp.gate.weight", "mlp.gate.weight": "mlp.fc.weight"}


def check_fp8(fp8: Fp8Scales, linears: Sequence[str], path: object) -> None:
    """Refuse scales that a TensorRT-LLM checkpoint cannot hold.

    Raises:
        BuildError: an input has no scale, or some matrices are not quantised.
    """
    left_out = [name for name in linears if name not in fp8.linears]
    if left_out:
        raise BuildError(
            f"{path}: {len(left_out)} of {len(linears)} matrices are not FP8, first {left_out[0]!r}; a "
            "TensorRT-LLM checkpoint quantises all of them, take --format hf"
        )
    if fp8.algorithm != PER_CHANNEL and not fp8.static:
        raise BuildError(
            f"{path}: no activation scales; a TensorRT engine quantises activations with scales fixed when "
            "it is built, so calibrate with --calibrate PROMPTS, or take --format hf, whose runtime can "
            "find them while it runs"
        )


@dataclass(frozen=True)
class FusedScales:
    """What the matrices that one tensor is made of share."""

    weight: np.float32
    input: np.float32

    @staticmethod
    def of(name: str, table: Table, fp8: Fp8Scales) -> FusedScales:
        """Return the scales of the tensor `name` of a table."""
        names = [name]
        for this, partner in PARTNERS.items():
            if name.endswith(f".{this}") and not fp8.stored:
                names.append(name.removesuffix(this) + partner)
        modules = {module_of(part.source) for found in names if found in table for part in table[found].parts}
        scales = [fp8.linears[module] for module in modules]
        return FusedScales(
            weight=max(found.largest for found in scales),
            input=max(found.input for found in scales if found.input is not None),
        )


def recoding(
    part: Part, source: TensorInfo, fp8: Fp8Scales, fused: FusedScales | None
) -> Callable[[Array], Array] | None:
    """Return how raw elements of a part become codes of the fused scale; None: they are."""
    if fused is None:
        return None
    if not fp8.stored:
        return Encode(fused.weight, source.dtype, twice=False)
    own = fp8.linears[module_of(part.source)].largest
    return None if own == fused.weight else Rescale(own, fused.weight)


def scale_tensors(
    name: str, parts: Sequence[tuple[Part, Cut]], fp8: Fp8Scales, fused: FusedScales | None
) -> Iterator[PlannedTensor]:
    """Yield the scales beside the fused weight `name` that one rank holds."""
    place = name.removesuffix("weight")
    if fused is not None:
        yield scale_tensor(f"{place}weights_scaling_factor", [fused.weight])
        yield scale_tensor(f"{place}activation_scaling_factor", [fused.input])
    else:
        rows = [fp8.linears[module_of(part.source)].weight[slice(*held.rows)] for part, held in parts]
        yield scale_tensor(f"{place}per_channel_scale", np.concatenate(rows))


def cache_tensors(place: str, key: np.float32, value: np.float32) -> Iterator[PlannedTensor]:
    """Yield the scales of a layer's key-value cache; `place` is its attention module with a dot."""
    key, value = max(key, CACHE_SCALE_FLOOR), max(value, CACHE_SCALE_FLOOR)
    yield scale_tensor(f"{place}k_cache_scaling_factor", [key])
    yield scale_tensor(f"{place}v_cache_scaling_factor", [value])
    yield scale_tensor(f"{place}kv_cache_scaling_factor", [max(key, value)])
