"""`config.pbtxt` through Triton's own protobuf, so that no field can be misspelt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig, ModelInstanceGroup

from trtspec.errors import RepositoryError
from trtspec.triton_repo.contract import (
    BLS_INPUTS,
    BLS_OUTPUTS,
    DRAFT_MODEL,
    LEAF_INPUTS,
    LEAF_OUTPUTS,
    OUR_BLS_INPUTS,
    OUR_BLS_OUTPUTS,
    OUR_LEAF_INPUTS,
    PUBLIC_MODEL,
    TARGET_MODEL,
    Tensor,
)
from trtspec.triton_repo.options import RepositoryOptions


@dataclass(frozen=True)
class EngineFacts:
    """What our loop is told about the engines behind it. Lengths in tokens."""

    runtime: str  # which options they carry from round to round
    max_draft_len: int
    max_seq_len: int
    draft_max_seq_len: int
    vocab_size: int
    # Calls of different answers that reach an engine as one request.
    max_rows_per_call: int
    eos_token_ids: tuple[int, ...]


def loop_config(engines: EngineFacts, options: RepositoryOptions) -> ModelConfig:
    """Return the configuration of the public model."""
    return public_config(
        engines,
        options,
        {
            "tensorrt_llm_model_name": TARGET_MODEL,
            "tensorrt_llm_draft_model_name": DRAFT_MODEL,
            "num_draft_tokens": options.draft_tokens(engines.max_draft_len),
            "draft_max_seq_len": engines.draft_max_seq_len,
            "max_rows_per_call": engines.max_rows_per_call,
            "draft_timeout_s": options.draft_timeout_s,
        },
    )


def public_config(
    engines: EngineFacts, options: RepositoryOptions, further: Mapping[str, object]
) -> ModelConfig:
    """Return the configuration of a public model.

    Args:
        further: parameters beyond those that all of them have.
    """
    text_input, *other_inputs = BLS_INPUTS
    return model_config(
        PUBLIC_MODEL,
        # One prompt a request, and many requests at once.
        max_batch_size=1,
        inputs=[Tensor(text_input.name, text_input.dtype), *other_inputs, *OUR_BLS_INPUTS],
        outputs=[*BLS_OUTPUTS, *OUR_BLS_OUTPUTS],
        parameters={
            "engine_runtime": engines.runtime,
            "max_draft_len": engines.max_draft_len,
            "max_seq_len": engines.max_seq_len,
            "vocab_size": engines.vocab_size,
            "eos_token_ids": ",".join(map(str, engines.eos_token_ids)),
            "exclude_input_in_output": str(options.exclude_input_in_output is not False).lower(),
            "max_inflight_requests": options.max_inflight_requests,
            # How long an engine may take until its next response.
            "target_timeout_s": options.target_timeout_s,
            **further,
        },
    )


def cpu_engine_config(name: str, max_batch_size: int) -> ModelConfig:
    """Return the configuration of a cpu engine's model."""
    return model_config(
        name,
        max_batch_size=max_batch_size,
        inputs=[*LEAF_INPUTS, *OUR_LEAF_INPUTS],
        outputs=LEAF_OUTPUTS,
        parameters={"exclude_input_in_output": "false"},
    )


def model_config(
    name: str,
    *,
    max_batch_size: int,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    parameters: Mapping[str, object],
    backend: str = "python",
) -> ModelConfig:
    """Return the configuration of a decoupled model with these tensors."""
    config = ModelConfig(name=name, backend=backend, max_batch_size=max_batch_size)
    # One instance: it serves all requests at once, and sends each answer in as many responses as it takes.
    config.model_transaction_policy.decoupled = True
    config.instance_group.add(count=1, kind=ModelInstanceGroup.KIND_CPU)
    for tensor in inputs:
        entry = config.input.add(
            name=tensor.name,
            data_type=DataType.Value(f"TYPE_{tensor.dtype}"),
            dims=tensor.dims,
            optional=tensor.optional,
            allow_ragged_batch=tensor.ragged,
        )
        if tensor.scalar:
            entry.reshape.SetInParent()
    for tensor in outputs:
        config.output.add(
            name=tensor.name, data_type=DataType.Value(f"TYPE_{tensor.dtype}"), dims=tensor.dims
        )
    for key, value in parameters.items():
        config.parameters[key].string_value = str(value)
    return config


def render(config: ModelConfig) -> str:
    """Return the text of `config.pbtxt`; what it reads back to is what went in."""
    text = str(text_format.MessageToString(config))
    if text_format.Parse(text, ModelConfig()) != config:
        raise RepositoryError(f"{config.name}: the configuration does not survive being written")
    return text
