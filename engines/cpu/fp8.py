"""FP8 weights and activations, emulated: the numbers an FP8 kernel computes with, on any machine.

A value is its code times a scale. Weights have one scale, or one for each output row; inputs one that
was calibrated, or one for each token, found as it comes. Those are per token here even where a GPU takes
one for a whole batch, so that an answer does not depend on what runs beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .errors import EngineLoadError

LARGEST = 448.0

# What dynamic scales of rows without content are raised to, as in 1 / (448 * 512).
_SMALLEST_DYNAMIC = 1.0 / (LARGEST * 512.0)


def dequantise(codes: Tensor, scale: Tensor) -> Tensor:
    """Return float32 values of codes [out, in]; `scale` has no dimensions, one element, or [out]."""
    wide = scale.float().reshape(-1, 1) if scale.numel() > 1 else scale.float().reshape(())
    return codes.float() * wide


def quantise(x: Tensor, scale: Tensor) -> Tensor:
    """Return x / scale rounded to the values that codes have, in float32; beyond 448 becomes 448."""
    return (x.float() / scale).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn).float()


def token_scales(x: Tensor) -> Tensor:
    """Return the scale of each row of x, [..., 1]."""
    return (x.float().abs().amax(-1, keepdim=True) / LARGEST).clamp_min(_SMALLEST_DYNAMIC)


def fake_quantise(x: Tensor, scale: float | None) -> Tensor:
    """Return x as an FP8 kernel sees it, in its own dtype; None takes the scale of each row."""
    by = token_scales(x) if scale is None else torch.tensor(scale, device=x.device)
    return (quantise(x, by) * by).to(x.dtype)


@dataclass(frozen=True, slots=True)
class Fp8:
    """The scales of one matrix.

    Attributes:
        rows: the weight's scale for each output row.
        input: the input's scale; None: that of each token.
    """

    rows: Tensor
    input: float | None


def read_scales(tensors: Mapping[str, Tensor], folder: object) -> dict[str, Fp8]:
    """Return the scales of each matrix of FP8 codes, by its module's name.

    Raises:
        EngineLoadError: a scale is missing, not finite or not above zero, or of another shape.
    """
    found = {}
    for name, codes in tensors.items():
        if codes.dtype != torch.float8_e4m3fn:
            continue
        module = name.removesuffix(".weight")
        weight, given = tensors.get(f"{module}.weight_scale"), tensors.get(f"{module}.input_scale")
        if weight is None:
            raise EngineLoadError(
                f"{folder}: {name!r} holds FP8 codes, but there is no {module}.weight_scale"
            )
        for scale in (weight, given):
            if scale is not None and not bool(((scale > 0) & scale.isfinite()).all()):
                raise EngineLoadError(f"{folder}: a scale of {module!r} is not a finite value above 0")
        if weight.numel() not in (1, len(codes)) or (given is not None and given.numel() != 1):
            raise EngineLoadError(
                f"{folder}: the scales of {module!r} have {weight.numel()} values, expected 1 or {len(codes)}"
            )
        rows = (
            weight.float().reshape(-1).expand(len(codes))
            if weight.numel() == 1
            else weight.float().reshape(-1)
        )
        found[module] = Fp8(rows, None if given is None else float(given))
    return found


def scale_names(module: str) -> tuple[str, ...]:
    """Return the names of the tensors that `read_scales` reads for a module, and of its cache's scales."""
    attention = module.rpartition(".")[0]
    return (
        f"{module}.weight_scale",
        f"{module}.input_scale",
        f"{attention}.k_proj.k_scale",
        f"{attention}.v_proj.v_scale",
    )


def round_inputs(model: Any, scales: Mapping[str, Fp8]) -> None:
    """Let the modules of a torch model see their inputs as FP8 kernels do."""

    def rounding(scale: float | None) -> Callable[[Any, tuple[Tensor, ...]], Tensor]:
        return lambda module, inputs: fake_quantise(inputs[0], scale)

    for name, fp8 in scales.items():
        model.get_submodule(name).register_forward_pre_hook(rounding(fp8.input))
