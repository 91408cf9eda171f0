"""The configuration of an engine's model in TensorRT-LLM's C++ backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tritonclient.grpc.model_config_pb2 import ModelConfig

from trtspec.errors import RepositoryError
from trtspec.triton_repo.contract import LEAF_INPUTS, LEAF_OUTPUTS, Tensor
from trtspec.triton_repo.engine_config import EngineConfig
from trtspec.triton_repo.leaf_parameters import LEAF_PARAMETERS, WORKER
from trtspec.triton_repo.model_config import model_config

BACKEND = "tensorrtllm"
LOGITS = ("draft_logits", "generation_logits", "context_logits")
# `logits_dtype` of an engine -> the tensors that carry them. The backend knows no other.
LOGITS_DTYPES = {"float32": "FP32", "float16": "FP16"}


@dataclass(frozen=True)
class LeafSettings:
    """What one engine's model is told."""

    name: str
    engine: EngineConfig
    # As the backend finds it: from the repository's folder, where the launch script goes first.
    engine_path: str
    gpus: tuple[int, ...]
    participants: tuple[int, ...] = ()
    fast_logits: bool = False
    # Parameters of the backend; those that speculation needs are not up to them.
    wanted: Mapping[str, str] = field(default_factory=dict)


def tensorrt_leaf_config(settings: LeafSettings) -> ModelConfig:
    """Return the configuration.

    Raises:
        RepositoryError: the backend cannot hand out this engine's logits.
    """
    engine = settings.engine
    if engine.logits_dtype not in LOGITS_DTYPES:
        raise RepositoryError(
            f"{engine.path}: logits_dtype is {engine.logits_dtype}, expected "
            f"{' or '.join(LOGITS_DTYPES)}; build it again with --logits_dtype"
        )
    dtype = LOGITS_DTYPES[engine.logits_dtype]
    config = model_config(
        settings.name,
        backend=BACKEND,
        max_batch_size=engine.max_batch_size,
        inputs=[_carrying(dtype, tensor) for tensor in LEAF_INPUTS],
        outputs=[_carrying(dtype, tensor) for tensor in LEAF_OUTPUTS],
        parameters=_parameters(settings),
    )
    # Requests that come together reach the engine's scheduler together; nobody waits for more.
    config.dynamic_batching.preferred_batch_size.append(engine.max_batch_size)
    return config


def _carrying(dtype: str, tensor: Tensor) -> Tensor:
    return replace(tensor, dtype=dtype) if tensor.name in LOGITS else tensor


def _parameters(settings: LeafSettings) -> dict[str, str]:
    """Return what the backend reads; the later of two entries with one name counts."""
    present = {parameter.name: "" for parameter in LEAF_PARAMETERS if parameter.present}
    defaults = {
        # A started request is never paused: the other engine's call would wait for it.
        "batch_scheduler_policy": "guaranteed_no_evict",
        "cancellation_check_period_ms": "100",
        "multi_block_mode": "true",
        "executor_worker_path": WORKER,
    }
    musts = {
        "gpt_model_type": "inflight_fused_batching",
        "gpt_model_path": settings.engine_path,
        "max_beam_width": "1",
        # Each round sends the whole sequence; only what is new is computed.
        "enable_kv_cache_reuse": "true",
        "exclude_input_in_output": "false",
        "gpu_device_ids": _ids(settings.gpus),
        "speculative_decoding_fast_logits": str(settings.fast_logits).lower(),
        "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
    }
    participants = {"participant_ids": _ids(settings.participants)} if settings.participants else {}
    wanted = {key: value for key, value in settings.wanted.items() if key != "participant_ids"}
    return {**present, **defaults, **wanted, **musts, **participants}


def _ids(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))
