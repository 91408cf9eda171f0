"""The plan of a Hugging Face checkpoint, checked and perhaps cast: same files, same names."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from typing import Any

from trtspec.build.check.body import Body
from trtspec.build.check.drafters import identify
from trtspec.build.checkpoint import INDEX, Checkpoint
from trtspec.build.convert.elements import FLOAT_NAMES, is_float
from trtspec.build.convert.formats import FLOATS
from trtspec.build.convert.fp8 import Fp8Scales, quantization_documents
from trtspec.build.convert.hf_fp8 import excluded_modules, hf_fp8_tensors
from trtspec.build.convert.plan import Piece, Plan, PlannedFile, PlannedTensor, document
from trtspec.build.tensor_file import TensorInfo, main_dtype
from trtspec.errors import BuildError

# What a tokenizer and a generation need beside the weights.
COMPANIONS = (
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
)


def plan_hf(checkpoint: Checkpoint, *, dtype: str | None = None, fp8: Fp8Scales | None = None) -> Plan:
    """Plan a Hugging Face checkpoint of any architecture.

    Args:
        dtype: float16, bfloat16 or float32; None leaves every tensor as it is.
        fp8: quantise with these scales, or write what is quantised already in the unified layout.

    Raises:
        BuildError: a cast is asked of weights that are quantised already.
    """
    if dtype and (fp8 or checkpoint.config.get("quantization_config") is not None):
        raise BuildError(
            f"{checkpoint.path}: the weights are quantised, a cast to {dtype} would break their scales; "
            "leave --dtype out"
        )
    shards: dict[str, list[PlannedTensor]] = defaultdict(list)
    for tensor in checkpoint.tensors.values():
        target = FLOATS[dtype] if dtype and is_float(tensor.dtype) else tensor.dtype
        made = hf_fp8_tensors(tensor, fp8) if fp8 else [_whole_tensor(tensor, target)]
        shards[tensor.file.name].extend(made)
    files = tuple(PlannedFile.of(name, tensors) for name, tensors in sorted(shards.items()))
    documents = {
        name: (checkpoint.path / name).read_bytes()
        for name in COMPANIONS
        if (checkpoint.path / name).is_file()
    }
    documents["config.json"] = _config(checkpoint, dtype)
    if fp8:
        documents |= _fp8_documents(checkpoint, fp8)
    if len(files) > 1:
        documents[INDEX] = document(
            {
                "metadata": {"total_size": sum(t.size_bytes for file in files for t in file.tensors)},
                "weight_map": {tensor.name: file.name for file in files for tensor in file.tensors},
            }
        )
    main = main_dtype(checkpoint.tensors.values())
    return Plan(files, documents, dtype or FLOAT_NAMES.get(main, main), notes=fp8.notes if fp8 else ())


def _whole_tensor(tensor: TensorInfo, dtype: str) -> PlannedTensor:
    rows, columns = tensor.grid
    return PlannedTensor(tensor.name, dtype, tensor.shape, (Piece(tensor, (0, rows), (0, columns), 0),))


def _config(checkpoint: Checkpoint, dtype: str | None) -> bytes:
    """Return the source's own bytes, or the same keys with another dtype or the rows that there are.

    Never written anew by transformers: version 5 spells RoPE in a way that version 4 reads as unscaled.
    """
    settings = _settings(checkpoint)
    if dtype is None:
        own = settings == checkpoint.config
        return (checkpoint.path / "config.json").read_bytes() if own else document(settings)
    spellings = [key for key in ("dtype", "torch_dtype") if key in settings] or ["torch_dtype"]
    return document({**settings, **dict.fromkeys(spellings, dtype)})


def _settings(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return config.json, with as many ids as the embedding of a language model has rows."""
    settings: dict[str, Any] = json.loads(json.dumps(checkpoint.config))
    if isinstance(settings.get("vocab_size"), int) and identify(checkpoint).stand_alone:
        settings["vocab_size"] = replace(checkpoint, tensors=Body.of(checkpoint).outside).vocab_size
    return settings


def _fp8_documents(checkpoint: Checkpoint, fp8: Fp8Scales) -> dict[str, bytes]:
    beside, inline = quantization_documents(fp8, excluded_modules(checkpoint, fp8))
    config = {**_settings(checkpoint), "quantization_config": inline}
    return {"hf_quant_config.json": document(beside), "config.json": document(config)}
