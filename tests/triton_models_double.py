"""Doubles of the models that the client meets: their tensors as data, refused as Triton refuses.

NVIDIA's are those of TensorRT-LLM 1.2's `triton_backend/all_models/`; ours is NVIDIA's
`tensorrt_llm_bls` with our tensors added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from trtspec.triton_repo.contract import (
    BLS_INPUTS,
    BLS_OUTPUTS,
    OUR_BLS_INPUTS,
    OUR_BLS_OUTPUTS,
    Tensor,
)


@dataclass(frozen=True)
class Model:
    """A served model. Tensors by name: datatype on the wire and shape, the batch dimension included."""

    name: str
    inputs: Mapping[str, tuple[str, tuple[int, ...]]]
    outputs: Mapping[str, tuple[str, tuple[int, ...]]]
    required: frozenset[str] = frozenset({"text_input", "max_tokens"})
    decoupled: bool = True
    parameters: Mapping[str, str] = field(default_factory=dict)

    def refusal(self, tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> str:
        """Return what Triton says to these inputs before the model sees them, "" when it takes them."""
        for name, (datatype, shape) in tensors.items():
            if name not in self.inputs:
                return f"unexpected inference input '{name}' for model '{self.name}'"
            expected_type, expected = self.inputs[name]
            if datatype != expected_type:
                return (
                    f"inference input '{name}' data-type is '{datatype}', but model expects '{expected_type}'"
                )
            fits = len(shape) == len(expected) and all(
                wanted in (-1, found) for wanted, found in zip(expected, shape, strict=True)
            )
            if not fits:
                return f"unexpected shape for input '{name}'. Expected {list(expected)}, got {list(shape)}"
        if missing := self.required - tensors.keys():
            return f"expected {len(self.required)} inputs but got fewer: {sorted(missing)} missing"
        return ""


def _batched(*tables: tuple[Tensor, ...]) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {
        t.name: ("BYTES" if t.dtype == "STRING" else t.dtype, (-1, *t.dims))
        for table in tables
        for t in table
    }


def _plain(
    datatype: str, *names: str, dims: tuple[int, ...] = (1,)
) -> dict[str, tuple[str, tuple[int, ...]]]:
    return dict.fromkeys(names, (datatype, dims))


TRTSPEC = Model(
    "tensorrt_llm_bls",
    _batched(BLS_INPUTS, OUR_BLS_INPUTS),
    _batched(BLS_OUTPUTS, OUR_BLS_OUTPUTS),
    required=frozenset({"max_tokens"}),
)
NVIDIA_BLS = Model("tensorrt_llm_bls", _batched(BLS_INPUTS), _batched(BLS_OUTPUTS))
ENSEMBLE = replace(
    NVIDIA_BLS,
    name="ensemble",
    inputs={
        name: tensor
        for name, tensor in NVIDIA_BLS.inputs.items()
        if name not in ("num_draft_tokens", "use_draft_logits")
    },
)
# The engine behind both: no text goes in, and nobody should ask it directly.
LEAF = Model("tensorrt_llm", _plain("INT32", "input_ids", dims=(-1, -1)), {}, required=frozenset())
LLMAPI = Model(
    "tensorrt_llm",
    {
        **_plain("BYTES", "text_input", "sampling_param_stop", dims=(-1,)),
        **_plain("BYTES", "image_url", "lora_id", "lora_name", "lora_path", "lora_ckpt_source"),
        **_plain("INT32", *(f"sampling_param_{name}" for name in ("best_of", "top_k", "max_tokens"))),
        **_plain(
            "FP32",
            *(
                f"sampling_param_{name}"
                for name in ("temperature", "top_p", "frequency_penalty", "presence_penalty")
            ),
        ),
        **_plain("UINT64", "sampling_param_seed"),
        **_plain(
            "BOOL",
            *("streaming", "stop", "return_finish_reason", "return_stop_reason"),
            *("return_cumulative_logprob", "sampling_param_return_perf_metrics"),
            "sampling_param_exclude_input_from_output",
        ),
    },
    {
        **_plain("BYTES", "text_output", "finish_reason", "stop_reason", dims=(-1,)),
        **_plain("FP32", "cumulative_logprob", "acceptance_rate"),
        **_plain("INT32", "total_accepted_draft_tokens", "total_draft_tokens"),
    },
    required=frozenset({"text_input"}),
    decoupled=False,
)
