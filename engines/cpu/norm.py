"""RMSNorm, in as few operations as plain torch allows: on small models their number is the cost."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Norm = Callable[[Tensor], Tensor]


def rms_norm(weight: Tensor, eps: float) -> Norm:
    """Return x ↦ x / sqrt(mean(x²) + eps) · weight over the last dimension.

    In float32 four small operations, less than half the time of torch's composite one; lower
    precisions are left to torch, which accumulates in float32.
    """
    size = weight.shape[-1]
    if weight.dtype != torch.float32:
        return lambda x: F.rms_norm(x, (size,), None, eps).mul_(weight)
    floor, scaled = torch.tensor(size * eps), weight * math.sqrt(size)

    def norm(x: Tensor) -> Tensor:
        length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return (x * torch.addcmul(floor, length, length).rsqrt_()).mul_(scaled)

    return norm
