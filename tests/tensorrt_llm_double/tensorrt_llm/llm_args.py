"""What each release's LLM API takes, as its own pages and sources list it, and refuses the rest.

Releases: 1.2.1 (`from_dict` of llm_args.py), 1.3.0rc17 (the discriminated union of early 2026), 1.3.0rc27,
1.4.0rc1 and 1.4.0rc4 (pages llm-api/reference/*.html).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, create_model


class Strict(BaseModel):
    """As TensorRT-LLM's StrictBaseModel."""

    model_config = ConfigDict(extra="forbid", strict=True)


BASE: dict[str, dict[str, Any]] = {
    "1.2.1": {
        "max_draft_len": int | None,
        "max_total_draft_tokens": int | None,
        "speculative_model_dir": str | None,
        "max_concurrency": int | None,
        "draft_len_schedule": dict[int, int] | None,
        "load_format": str | None,
        "acceptance_window": int | None,
        "acceptance_length_threshold": float | None,
    },
    "1.3.0rc17": {
        "max_draft_len": int | None,
        "max_total_draft_tokens": int | None,
        "speculative_model": str | None,
        "max_concurrency": int | None,
        "draft_len_schedule": dict[int, int] | None,
        "load_format": str | None,
        "allow_advanced_sampling": bool,
    },
    "1.3.0rc27": {
        "max_draft_len": int | None,
        "max_total_draft_tokens": int | None,
        "speculative_model": str | None,
        "max_concurrency": int | None,
        "draft_len_schedule": dict[int, int] | None,
        "load_format": str | None,
        "acceptance_rate_window_size": int | None,
        "acceptance_rate_threshold": float | None,
        "use_rejection_sampling": bool,
        "allow_advanced_sampling": bool,
        "advanced_sampling_mode": str,
        "enable_penalty": bool,
    },
}
BASE["1.4.0rc1"] = BASE["1.3.0rc27"] | {"moe_backend": str | None, "spec_dec_variant": int}
BASE["1.4.0rc4"] = BASE["1.4.0rc1"] | {"moe_tactic": str | None}

NGRAM = {"max_matching_ngram_size": int, "is_keep_all": bool, "is_use_oldest": bool, "is_public_pool": bool}
MASK = {"mask_token_id": int | None}
DFLASH = MASK | {"target_layer_ids": list[int] | None, "attention_backend": str}
HEAD = Literal["vanilla", "gated", "rnn"] | None
DSPARK = DFLASH | {"block_size": int | None, "markov_rank": int | None, "markov_head_type": HEAD}
EAGLE = {"use_dynamic_tree": bool | None, "num_eagle_layers": int | None}
EAGLE |= {"eagle3_layers_to_capture": set[int] | None, "eagle3_model_arch": str}
# By the tag that YAML chooses the class with.
CLASSES: dict[str, dict[str, dict[str, Any]]] = {
    "1.2.1": {
        "DraftTarget": {},
        "Eagle": EAGLE | {"eagle3_one_model": bool | None, "greedy_sampling": bool | None},
        "MTP": {"num_nextn_predict_layers": int, "use_mtp_vanilla": bool, "mtp_eagle_one_model": bool},
        "NGram": NGRAM,
    },
    "1.3.0rc17": {
        "Draft_Target": {},
        "Eagle3": EAGLE,
        "MTP": {"num_nextn_predict_layers": int, "use_mtp_vanilla": bool},
        "NGram": NGRAM,
        "PARD": MASK,
    },
}
CLASSES["1.3.0rc27"] = CLASSES["1.3.0rc17"] | {"DFlash": DFLASH, "DSpark": DSPARK}
CLASSES["1.4.0rc1"] = CLASSES["1.4.0rc4"] = CLASSES["1.3.0rc27"]
NEEDS_MODEL = {"DraftTarget", "Draft_Target", "Eagle", "Eagle3"}

KV_CACHE = {
    "enable_block_reuse": bool,
    "free_gpu_memory_fraction": float,
    "max_tokens": int | None,
    "dtype": str,
}
LLM_ARGS = {
    "tensor_parallel_size": int,
    "pipeline_parallel_size": int,
    "max_batch_size": int,
    "max_seq_len": int,
    "max_num_tokens": int,
    "disable_overlap_scheduler": bool,
    "skip_tokenizer_init": bool,
    "trust_remote_code": bool,
}


def check_arguments(version: str, arguments: Mapping[str, Any]) -> None:
    """Raise ValueError for what the constructor of that release's LLM would not take."""
    rest = dict(arguments)
    speculative = dict(rest.pop("speculative_config"))
    _validate("KvCacheConfig", KV_CACHE, rest.pop("kv_cache_config"))
    _validate("TorchLlmArgs", LLM_ARGS, rest)
    tag = speculative.pop("decoding_type", None)
    classes = CLASSES[version]
    if tag not in classes:
        raise ValueError(f"Invalid decoding type: {tag}")
    _validate(tag, BASE[version] | classes[tag], speculative)
    if tag in NEEDS_MODEL and not {"speculative_model", "speculative_model_dir"} & speculative.keys():
        raise ValueError("Draft model must be provided")
    lengths = (speculative.get("max_draft_len"), speculative.get("num_nextn_predict_layers"))
    if not any(lengths):
        raise ValueError("max_draft_len must be > 0")


def _validate(name: str, fields: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    optional: dict[str, Any] = {key: (kind, None) for key, kind in fields.items()}
    create_model(name, __base__=Strict, **optional).model_validate(dict(values))
