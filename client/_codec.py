"""Our requests and responses as Triton's protobuf messages, tensors as raw bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2
from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor, triton_to_np_dtype

from trtspec.client._metadata import Metadata, TensorSpec
from trtspec.client._transport import InferRequest


def encode(request: InferRequest) -> Any:
    """Return the ModelInferRequest that says the same."""
    message = service_pb2.ModelInferRequest(model_name=request.model, id=request.id)
    # A decoupled model may end after its last tensors: the end then is a response without any.
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    for name, array in request.inputs.items():
        message.inputs.add(name=name, datatype=np_to_triton_dtype(array.dtype), shape=array.shape)
        message.raw_input_contents.append(_to_bytes(array))
    return message


def decode(message: Any) -> dict[str, NDArray[Any]]:
    """Return the outputs of a ModelInferResponse by name; ValueError when it contradicts itself."""
    return {
        # A list, for numpy takes three times as long to read the shape out of the message.
        output.name: _from_bytes(raw, output.datatype).reshape(output.shape[:])
        for output, raw in zip(message.outputs, message.raw_output_contents, strict=True)
    }


def is_final(message: Any) -> bool:
    """Whether this ModelInferResponse is the last of its request."""
    return bool(message.parameters["triton_final_response"].bool_param)


def read_metadata(server: Any, model: Any, config: Any) -> Metadata:
    """Return what the answers to ServerMetadata, ModelMetadata and ModelConfig say together."""
    return Metadata(
        server_version=server.version,
        model=model.name,
        inputs={t.name: TensorSpec(t.datatype, tuple(t.shape)) for t in model.inputs},
        outputs={t.name: TensorSpec(t.datatype, tuple(t.shape)) for t in model.outputs},
        decoupled=config.model_transaction_policy.decoupled,
        parameters={name: value.string_value for name, value in config.parameters.items()},
    )


def _to_bytes(array: NDArray[Any]) -> bytes:
    return bytes(serialize_byte_tensor(array).item()) if array.dtype == object else array.tobytes()


def _from_bytes(raw: bytes, datatype: str) -> NDArray[Any]:
    if datatype == "BYTES":
        return np.array(list(_strings(raw)), object)
    return np.frombuffer(raw, triton_to_np_dtype(datatype))


def _strings(raw: bytes) -> Iterator[bytes]:
    """Yield the elements of a BYTES tensor, each after its length."""
    end = 0
    while end < len(raw):
        start = end + 4
        end = start + int.from_bytes(raw[end:start], "little")
        yield raw[start:end]
    if end > len(raw):
        raise ValueError(f"a string of {end - start} bytes, of which {len(raw) - start} are there")
