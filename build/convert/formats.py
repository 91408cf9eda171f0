"""The choices of a conversion, light enough for the command to import."""

from __future__ import annotations

from collections.abc import Mapping

FORMATS = ("trtllm", "hf")

# Types to compute in: torch's and TensorRT-LLM's name -> the safetensors spelling.
FLOATS: Mapping[str, str] = {"float16": "F16", "bfloat16": "BF16", "float32": "F32"}
