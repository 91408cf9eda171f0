"""Any other decoder-only architecture, through transformers' own modules.

Code that a checkpoint brings along is never run.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .errors import EngineLoadError
from .fp8 import Fp8, dequantise, read_scales, round_inputs, scale_names
from .model import Segment
from .weights import read_tensors

# RoPE types whose frequencies change with the length: keys cached before the change do not fit later ones.
_LENGTH_DEPENDENT = ("longrope", "dynamic", "su")


def cache_argument(model: Any) -> str:
    """Return what a model of transformers calls its cache, which was renamed within version 5."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


class TransformersModel:
    """A causal language model of transformers with one full-length cache a slot.

    Sliding-window layers keep all their keys too, and the mask does the windowing: a cache that has
    dropped keys could not be cropped after a refused draft token.
    """

    def __init__(
        self, folder: Path, config: dict[str, Any], dtype: torch.dtype, *, slots: int, max_seq_len: int
    ) -> None:
        from huggingface_hub.errors import StrictDataclassError
        from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM, DynamicCache

        loader: Any = AutoModelForCausalLM
        _refuse_length_dependent(folder, config, max_seq_len)
        scales: dict[str, Fp8] = {}
        options: dict[str, Any] = {
            "dtype": dtype,
            "local_files_only": True,
            "output_loading_info": True,
        }
        try:
            if "quantization_config" in config:
                settings, tensors, scales = _dequantised(folder)
                loader = MODEL_FOR_CAUSAL_LM_MAPPING[type(settings)]
                model, report = loader.from_pretrained(None, config=settings, state_dict=tensors, **options)
            else:
                model, report = loader.from_pretrained(folder, trust_remote_code=False, **options)
        except (OSError, ValueError, KeyError, StrictDataclassError) as error:
            raise EngineLoadError(f"{folder}: transformers cannot load it ({error})") from error
        faults = sorted({*report["missing_keys"], *report["unexpected_keys"]})
        if faults:
            raise EngineLoadError(f"{folder}: {len(faults)} tensors missing or unknown, first {faults[0]!r}")
        round_inputs(model, scales)
        self._model: Any = model.eval()
        self.vocab_size: int = self._model.get_output_embeddings().weight.shape[0]
        self._cache_argument = cache_argument(self._model)
        self._caches: list[Any] = [DynamicCache() for _ in range(slots)]

    def copy_prefix(self, source: int, destination: int, length: int) -> None:
        """Copy the first `length` cached positions of one slot to another."""
        from transformers import DynamicCache

        cache: Any = DynamicCache()
        for index, layer in enumerate(self._caches[source].layers):
            if layer.is_initialized:
                cache.update(layer.keys[:, :, :length], layer.values[:, :, :length], index)
        self._caches[destination] = cache

    @torch.inference_mode()
    def forward(self, segments: Sequence[Segment]) -> Tensor:
        """Run a pass for each segment and return float32 logits [Σ logit_rows, V]."""
        return torch.cat([self._rows(segment) for segment in segments])

    def _rows(self, segment: Segment) -> Tensor:
        cache = self._caches[segment.slot]
        for layer in cache.layers:
            if layer.is_initialized:
                layer.keys = layer.keys[:, :, : segment.start]
                layer.values = layer.values[:, :, : segment.start]
        positions = torch.arange(segment.start, segment.start + len(segment.ids))[None]
        output = self._model(
            input_ids=torch.tensor([list(segment.ids)]),
            position_ids=positions,
            use_cache=True,
            logits_to_keep=max(segment.logit_rows, 1),
            **{self._cache_argument: cache},
        )
        rows: Tensor = output.logits[0].float()
        return rows[len(rows) - segment.logit_rows :]


def _dequantised(folder: Path) -> tuple[Any, dict[str, Tensor], dict[str, Fp8]]:
    """Return the values of an FP8 folder as from_pretrained takes them, and the scales of its inputs.

    Given the folder itself it would load the codes as weights, without an error.
    """
    from transformers import AutoConfig

    tensors = read_tensors(folder)
    scales = read_scales(tensors, folder)
    if not scales:
        raise EngineLoadError(f"{folder}: config.json says that it is quantised, but no weight is FP8")
    auto_config: Any = AutoConfig
    settings = auto_config.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    del settings.quantization_config
    for module, fp8 in scales.items():
        tensors[f"{module}.weight"] = dequantise(tensors[f"{module}.weight"], fp8.rows)
        for name in scale_names(module):
            tensors.pop(name, None)
    return settings, tensors, scales


def _refuse_length_dependent(folder: Path, config: dict[str, Any], max_seq_len: int) -> None:
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    original = rope.get("original_max_position_embeddings", config.get("original_max_position_embeddings"))
    limit = original or config.get("max_position_embeddings") or 0
    if kind in _LENGTH_DEPENDENT and max_seq_len > limit:
        raise EngineLoadError(
            f"{folder}: rope_type {kind!r} changes its frequencies beyond {limit} positions, which a cache "
            f"cannot follow; max_seq_len is {max_seq_len}, make it at most {limit}"
        )
