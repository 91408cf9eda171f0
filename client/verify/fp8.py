"""An FP8 folder as transformers can run it: dequantised here, and proven to be.

transformers loads such a folder without an error and takes the codes for weights, so it is never asked
to. The arithmetic is written out again, not shared with the engine: it is what the engine is held to.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trtspec.errors import CheckpointError

E4M3_LARGEST = 448.0
# Set on each module that was shown to hold codes times scales.
DEQUANTISED = "trtspec_dequantised"


def is_fp8(folder: Path) -> bool:
    """Whether a folder says that its weights are quantised."""
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return False  # transformers says what is wrong with it
    return "quantization_config" in config or (folder / "hf_quant_config.json").is_file()


def load_fp8(folder: Path) -> Any:
    """Return a float32 causal language model whose matrices round their inputs to FP8.

    Raises:
        CheckpointError: a matrix of codes has no scale, or the model does not hold codes times scales.
    """
    import torch
    from safetensors.torch import load_file
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

    auto_config: Any = AutoConfig
    stored = {name: t for file in sorted(folder.glob("*.safetensors")) for name, t in load_file(file).items()}
    codes = {name.removesuffix(".weight"): t for name, t in stored.items() if t.dtype == torch.float8_e4m3fn}
    lacking = sorted(module for module in codes if f"{module}.weight_scale" not in stored)
    if lacking or not codes:
        raise CheckpointError(
            f"{folder}: quantised, with {len(codes)} FP8 matrices, {len(lacking)} of them without a "
            "weight_scale; expected FP8 codes with scales, as trtspec build and ModelOpt write them"
        )
    weights = {
        module: code.float() * stored[f"{module}.weight_scale"].float().reshape(-1, 1)
        for module, code in codes.items()
    }
    kept = {name: t for name, t in stored.items() if not name.endswith("_scale") and t.element_size() > 1}
    config = auto_config.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    model = model_class.from_pretrained(
        None,
        config=config,
        state_dict=kept | {f"{module}.weight": weight for module, weight in weights.items()},
        dtype=torch.float32,
    )
    _prove(folder, model, codes, weights)
    for module in codes:
        setattr(model.get_submodule(module), DEQUANTISED, True)
        given = stored.get(f"{module}.input_scale")
        model.get_submodule(module).register_forward_pre_hook(_rounding(given))
    return model


def _prove(folder: Path, model: Any, codes: dict[str, Any], weights: dict[str, Any]) -> None:
    """Raise unless every quantised matrix of the model is its codes times its scale, and not the codes."""
    import torch

    wrong = [
        module
        for module, weight in weights.items()
        if not torch.equal(model.get_submodule(module).weight, weight)
        or (torch.equal(weight, codes[module].float()) and bool(weight.any()))
    ]
    if wrong:
        raise CheckpointError(
            f"{folder}: {len(wrong)} of {len(weights)} FP8 matrices are not dequantised in the reference, "
            f"first {wrong[0]!r}; it cannot judge this engine"
        )


def _rounding(scale: Any) -> Any:
    """Return a hook that rounds a module's input to FP8; without a scale, each token to its own."""
    import torch

    def round_input(module: Any, inputs: tuple[Any, ...]) -> Any:
        x = inputs[0]
        by = scale.float().reshape(()) if scale is not None else None
        if by is None:
            by = (x.abs().amax(-1, keepdim=True) / E4M3_LARGEST).clamp(min=1 / (E4M3_LARGEST * 512))
        limited = torch.clamp(x / by, -E4M3_LARGEST, E4M3_LARGEST)
        return limited.to(torch.float8_e4m3fn).to(x.dtype) * by

    return round_input
