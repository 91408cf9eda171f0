"""RoPE in config.json, spelt for every transformers that a TensorRT-LLM may bring along.

transformers 5 writes `rope_parameters`. Version 4, which TensorRT-LLM 1.2.1 reads checkpoints with, looks for
`rope_theta` and `rope_scaling`, and takes its default base and no scaling where they are missing. Version 5
reads those as well, so both are written.
"""

from __future__ import annotations

import json
from typing import Any

from trtspec.build.convert.plan import document

# Which stand beside `rope_scaling` in the older spelling, not in it.
BESIDE = ("rope_theta", "partial_rotary_factor")


def spelt_for_both(config_json: bytes) -> bytes:
    """Return config.json with the older spelling of RoPE too; the same bytes where nothing is missing."""
    config: dict[str, Any] = json.loads(config_json)
    added = _older_spelling(config)
    missing = {key: value for key, value in added.items() if config.get(key) is None}
    return document({**config, **missing}) if missing else config_json


def _older_spelling(config: dict[str, Any]) -> dict[str, Any]:
    parameters = config.get("rope_parameters")
    # rope_scaling counts alone where both are given.
    if not isinstance(parameters, dict) or config.get("rope_scaling"):
        return {}
    kinds = ("full_attention", "sliding_attention")
    if all(isinstance(parameters.get(kind), dict) for kind in kinds):  # Gemma-3
        full, sliding = (parameters[kind] for kind in kinds)
        local = {"rope_local_base_freq": sliding["rope_theta"]} if "rope_theta" in sliding else {}
        return _flat(full) | local
    return _flat(parameters)


def _flat(parameters: dict[str, Any]) -> dict[str, Any]:
    spelt = {key: parameters[key] for key in BESIDE if key in parameters}
    if parameters.get("rope_type") not in (None, "default"):
        spelt["rope_scaling"] = {key: value for key, value in parameters.items() if key not in BESIDE}
    return spelt
