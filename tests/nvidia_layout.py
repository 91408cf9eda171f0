"""A double of NVIDIA's recipe: its six models, written from the contract and filled in as it says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from tensorrt_engines import MAX_BATCH_SIZE

from trtspec.triton_repo import contract, nvidia_models
from trtspec.triton_repo.contract import Tensor

LOGITS = ("draft_logits", "generation_logits", "context_logits")
# What an ensemble hands from model to model: (model, inputs, outputs), by the model's own names.
STEPS = (
    (
        "preprocessing",
        {"QUERY": "text_input", "REQUEST_OUTPUT_LEN": "max_tokens", "STOP_WORDS_DICT": "stop_words"},
        {"INPUT_ID": "_INPUT_ID", "REQUEST_INPUT_LEN": "_REQUEST_INPUT_LEN"},
    ),
    (
        "tensorrt_llm",
        {"input_ids": "_INPUT_ID", "input_lengths": "_REQUEST_INPUT_LEN", "request_output_len": "max_tokens"},
        {"output_ids": "_TOKENS_BATCH", "sequence_length": "_SEQUENCE_LENGTH"},
    ),
    (
        "postprocessing",
        {"TOKENS_BATCH": "_TOKENS_BATCH", "SEQUENCE_LENGTH": "_SEQUENCE_LENGTH"},
        {"OUTPUT": "text_output"},
    ),
)


def write_layout(folder: Path, engines: Path, tokenizer: Path, *, logits: str = "FP32") -> Path:
    """Write a filled repository over the engines `engines`/target and /draft, as right as it can be."""
    for name, role in (("tensorrt_llm", "target"), ("tensorrt_llm_draft", "draft")):
        _write(
            folder / name,
            _head(name, "tensorrtllm", MAX_BATCH_SIZE, decoupled=False)
            + _tensors("input", contract.LEAF_INPUTS, logits)
            + _tensors("output", contract.LEAF_OUTPUTS, logits)
            + _instances(1)
            + _parameters(_leaf_parameters(engines / role)),
        )
    _write(
        folder / "tensorrt_llm_bls",
        _head("tensorrt_llm_bls", "python", MAX_BATCH_SIZE, decoupled=False)
        + _tensors("input", contract.BLS_INPUTS, logits)
        + _tensors("output", contract.BLS_OUTPUTS, logits)
        + _instances(MAX_BATCH_SIZE)
        + _parameters(
            {
                "accumulate_tokens": "False",
                "tensorrt_llm_model_name": "tensorrt_llm",
                "tensorrt_llm_draft_model_name": "tensorrt_llm_draft",
            }
        ),
        python=True,
    )
    for name, inputs, outputs, extra in (
        (
            "preprocessing",
            nvidia_models.PREPROCESSING_INPUTS,
            nvidia_models.PREPROCESSING_OUTPUTS,
            {"add_special_tokens": "True", "multimodal_model_path": ""},
        ),
        (
            "postprocessing",
            nvidia_models.POSTPROCESSING_INPUTS,
            nvidia_models.POSTPROCESSING_OUTPUTS,
            {"skip_special_tokens": "True"},
        ),
    ):
        _write(
            folder / name,
            _head(name, "python", MAX_BATCH_SIZE, decoupled=False)
            + _tensors("input", inputs, logits)
            + _tensors("output", outputs, logits)
            + _parameters({"tokenizer_dir": str(tokenizer), **extra})
            + _instances(1),
            python=True,
        )
    _write(folder / "ensemble", _ensemble())
    return folder


def _leaf_parameters(engine: Path) -> dict[str, str]:
    return {
        "max_beam_width": "1",
        "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
        "gpt_model_type": "inflight_fused_batching",
        "gpt_model_path": str(engine),
        "max_tokens_in_paged_kv_cache": "2560",
        "batch_scheduler_policy": "guaranteed_no_evict",
        "kv_cache_free_gpu_mem_fraction": "0.5",
        "exclude_input_in_output": "false",
        "enable_kv_cache_reuse": "True",
        "gpu_device_ids": "0",
        "executor_worker_path": "/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker",
        "tokenizer_dir": "",
        "guided_decoding_backend": "",
        "xgrammar_tokenizer_info_path": "",
    }


def _write(folder: Path, text: str, *, python: bool = False) -> None:
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(text, "utf-8")
    if python:
        (folder / "1" / "model.py").write_text("# A double: nothing runs it.\n", "utf-8")


def _head(name: str, backend: str, max_batch_size: int, *, decoupled: bool) -> str:
    return (
        f'name: "{name}"\nbackend: "{backend}"\nmax_batch_size: {max_batch_size}\n\n'
        f"model_transaction_policy {{\n  decoupled: {str(decoupled).lower()}\n}}\n\n"
    )


def _tensors(side: str, tensors: Iterable[Tensor], logits: str) -> str:
    entries = []
    for tensor in tensors:
        if tensor.name in LOGITS:
            tensor = replace(tensor, dtype=logits)
        lines = [
            f'    name: "{tensor.name}"',
            f"    data_type: TYPE_{tensor.dtype}",
            f"    dims: [ {', '.join(map(str, tensor.dims))} ]",
        ]
        if side == "input":
            lines += ["    reshape: { shape: [ ] }"] if tensor.scalar else []
            lines += ["    optional: true"] if tensor.optional else []
            lines += ["    allow_ragged_batch: true"] if tensor.ragged else []
        entries.append("  {\n" + "\n".join(lines) + "\n  }")
    return f"{side} [\n" + ",\n".join(entries) + "\n]\n"


def _instances(count: int) -> str:
    return f"instance_group [\n  {{\n    count: {count}\n    kind : KIND_CPU\n  }}\n]\n"


def _parameters(values: Mapping[str, str]) -> str:
    return "".join(
        f'parameters: {{\n  key: "{key}"\n  value: {{\n    string_value: "{value}"\n  }}\n}}\n'
        for key, value in values.items()
    )


def _ensemble() -> str:
    inputs = [
        tensor for tensor in contract.BLS_INPUTS if tensor.name in ("text_input", "max_tokens", "stop_words")
    ]
    outputs = [tensor for tensor in contract.BLS_OUTPUTS if tensor.name == "text_output"]
    steps = []
    for model, taken, given in STEPS:
        maps = "".join(
            f'      {kind} {{\n        key: "{key}"\n        value: "{value}"\n      }}\n'
            for kind, mapped in (("input_map", taken), ("output_map", given))
            for key, value in mapped.items()
        )
        steps.append(f'    {{\n      model_name: "{model}"\n      model_version: -1\n{maps}    }}')
    return (
        f'name: "ensemble"\nplatform: "ensemble"\nmax_batch_size: {MAX_BATCH_SIZE}\n'
        + _tensors("input", inputs, "FP32")
        + _tensors("output", outputs, "FP32")
        + "ensemble_scheduling {\n  step [\n"
        + ",\n".join(steps)
        + "\n  ]\n}\n"
    )
