"""What a served model takes and gives, and a request cut to fit it.

Three kinds of models are understood by what they say of themselves: trtspec's and NVIDIA's
`tensorrt_llm_bls` and `ensemble` (tensors of the same names), and NVIDIA's `llmapi` model
(`sampling_param_*`). TensorRT-LLM 1.2, `triton_backend/all_models/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtspec.client._errors import InvalidArgument

Array = NDArray[Any]

# Where no model is named, the first of these that the server has.
MODELS = ("tensorrt_llm_bls", "ensemble", "tensorrt_llm")

# How the llmapi model spells our options.
_LLMAPI = {
    **{
        name: f"sampling_param_{name}"
        for name in (
            *("max_tokens", "temperature", "top_k", "top_p", "seed", "return_perf_metrics"),
            *("frequency_penalty", "presence_penalty"),
        )
    },
    "stop_words": "sampling_param_stop",
    "exclude_input_in_output": "sampling_param_exclude_input_from_output",
    "stream": "streaming",
}
# Sent where there is a tensor for them, and no loss where there is none: a server that does not stream
# sends the answer whole.
_IMPLIED = {"stream", "exclude_input_in_output"}
# What our model says without being asked, and others when they are.
_REPORTS = (
    *("return_num_input_tokens", "return_num_output_tokens"),
    *("return_finish_reason", "return_stop_reason"),
)


@dataclass(frozen=True)
class TensorSpec:
    """Type and shape of an input or output; the batch dimension counts, -1 is any length."""

    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Metadata:
    """What a server says of itself and of one of its models."""

    server_version: str
    model: str
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    # Whether the model may answer with more than one response, that is, stream.
    decoupled: bool = True
    parameters: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_trtspec(self) -> bool:
        """Whether the model is ours: it reports speculation by rounds, which NVIDIA's do not."""
        return "num_rounds" in self.outputs

    @property
    def accumulates(self) -> bool:
        """Whether each response repeats the text of those before it, as the llmapi model's do."""
        return (
            _LLMAPI["stream"] in self.inputs or self.parameters.get("accumulate_tokens", "").lower() == "true"
        )


def fit(values: Mapping[str, Array], metadata: Metadata) -> dict[str, Array]:
    """Return the tensors that say the same to this model, in its names, ranks and types.

    Args:
        values: our tensors by name, each with one dimension.

    Raises:
        InvalidArgument: names every value that the model has no input for.
    """
    wanted = dict(values)
    if metadata.is_trtspec:
        wanted.pop("return_perf_metrics", None)
    else:
        wanted |= {name: np.array([True]) for name in _REPORTS if name in metadata.inputs}
    if not metadata.decoupled:
        wanted["stream"] = np.array([False])
    names = {name: _spelling(name, metadata) for name in wanted}
    if missing := sorted(name for name in wanted if names[name] is None and name not in _IMPLIED):
        raise InvalidArgument(
            f"{metadata.model}: found no input for {', '.join(missing)}; this server's model cannot do "
            "that, leave it out"
        )
    return {
        spelled: _shaped(array, metadata.inputs[spelled])
        for name, array in wanted.items()
        if (spelled := names[name]) is not None
    }


def _spelling(name: str, metadata: Metadata) -> str | None:
    return next((n for n in (name, _LLMAPI.get(name)) if n in metadata.inputs), None)


def _shaped(array: Array, spec: TensorSpec) -> Array:
    return array.reshape((1,) * (len(spec.shape) - 1) + array.shape) if spec.shape else array.reshape(())
