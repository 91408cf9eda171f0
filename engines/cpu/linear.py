"""Matrix products whose rows do not depend on how many rows are computed together.

A token must get the same logits whether it is decoded alone, verified among draft tokens, or
batched with other requests. The usual kernels choose another summation order for another number
of rows. Weights packed once keep one order for every number of rows, and skip the packing that
the usual call does each time.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Linear = Callable[[Tensor], Tensor]

# What the weights are packed for. Packing for one row keeps the special one-row kernel, whose order differs.
_PACKED_ROWS = 16

# Below this size MKL computes one row on another path; it is given two. (Seen up to 6,144 elements.)
_SMALL = 2**15


def linear(weight_NK: Tensor, bias_N: Tensor | None = None) -> Linear:
    """Return x ↦ x Wᵀ + b with the weights packed for this machine.

    float32 goes to MKL's packed sgemm, bfloat16 to oneDNN; where torch was built without them,
    the plain product is used, and near-ties may then depend on the number of rows.
    """
    if weight_NK.dtype == torch.float32 and hasattr(torch.ops.mkl, "_mkl_linear"):
        return _mkl(weight_NK, bias_N)
    if weight_NK.dtype == torch.bfloat16 and hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return _onednn(weight_NK, bias_N)
    return lambda x: F.linear(x, weight_NK, bias_N)


def _mkl(weight_NK: Tensor, bias_N: Tensor | None) -> Linear:
    product: Callable[..., Tensor] = torch.ops.mkl._mkl_linear.default
    packed = torch.ops.mkl._mkl_reorder_linear_weight(weight_NK, _PACKED_ROWS)
    weight_size = weight_NK.numel()
    shape = weight_NK.new_empty(1, 1).expand(weight_NK.shape)  # the operator reads only its size

    def rows(x: Tensor) -> Tensor:
        if x.shape[0] == 1 and weight_size < _SMALL:
            return product(x.repeat(2, 1), packed, shape, bias_N, 2)[:1]
        return product(x, packed, shape, bias_N, x.shape[0])

    return rows


def _onednn(weight_NK: Tensor, bias_N: Tensor | None) -> Linear:
    product: Callable[..., Tensor] = torch.ops.mkldnn._linear_pointwise.default
    packed = torch.ops.mkldnn._reorder_linear_weight(weight_NK, _PACKED_ROWS)
    return lambda x: product(x, packed, bias_N, "none", [], "")
