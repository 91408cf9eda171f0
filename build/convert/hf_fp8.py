"""FP8 tensors under their Hugging Face names: the unified layout of TensorRT-LLM's PyTorch backend.

Of each matrix `weight` (codes), `weight_scale` and `input_scale`; of an FP8 cache `k_proj.k_scale` and
`v_proj.v_scale`. Scales are float32.
"""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.build.checkpoint import Checkpoint
from trtspec.build.convert.e4m3 import E4M3, Encode
from trtspec.build.convert.fp8 import Fp8Scales, scale_tensor
from trtspec.build.convert.linears import module_of
from trtspec.build.convert.plan import Piece, PlannedTensor
from trtspec.build.tensor_file import TensorInfo


def hf_fp8_tensors(tensor: TensorInfo, fp8: Fp8Scales) -> Iterator[PlannedTensor]:
    """Yield what one tensor of the source becomes; nothing for a scale that is written anew."""
    if tensor.name in fp8.replaced:
        return
    rows, columns = tensor.grid
    module = module_of(tensor.name)
    scales = fp8.linears.get(module) if tensor.name.endswith(".weight") else None
    if scales is None:
        piece = Piece(tensor, (0, rows), (0, columns), 0)
        yield PlannedTensor(tensor.name, tensor.dtype, tensor.shape, (piece,))
        return
    recode = None if fp8.stored else Encode(scales.largest, tensor.dtype, twice=True)
    piece = Piece(tensor, (0, rows), (0, columns), 0, recode=recode)
    yield PlannedTensor(tensor.name, E4M3, tensor.shape, (piece,))
    yield scale_tensor(f"{module}.weight_scale", scales.weight)
    if scales.input is not None:
        yield scale_tensor(f"{module}.input_scale", scales.input)
    attention = module.rpartition(".")[0]
    # Written once a layer, beside the projection that closes its attention.
    if attention in fp8.cache and module == f"{attention}.o_proj":
        key, value = fp8.cache[attention]
        yield scale_tensor(f"{attention}.k_proj.k_scale", key)
        yield scale_tensor(f"{attention}.v_proj.v_scale", value)


def excluded_modules(checkpoint: Checkpoint, fp8: Fp8Scales) -> list[str]:
    """Return the Linear modules that stay as they are: the head, and what somebody else left out."""
    matrices = {
        module_of(tensor.name)
        for tensor in checkpoint.tensors.values()
        if tensor.name.endswith("_proj.weight") and len(tensor.shape) == 2
    }
    return sorted({"lm_head", *(matrices - fp8.linears.keys())})
