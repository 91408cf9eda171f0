"""A memory plan as a value: what to set for each model, and what that gives."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from trtspec.choices import Placement, PlannedRuntime
from trtspec.engines.memory.ranks import RankMemory


class _Value(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelPlan(_Value):
    """What one model takes and what to set for it."""

    gpus: tuple[int, ...] = Field(description="GPU of each rank, as gpu_device_ids counts them")
    ranks: tuple[RankMemory, ...]
    max_tokens: int = Field(description="tokens in the KV cache: max_tokens_in_paged_kv_cache")
    fraction_loaded_first: float = Field(
        description="kv_cache_free_gpu_mem_fraction where this model loads before the other"
    )
    fraction_loaded_second: float = Field(
        description="the same where it loads after the other; with max_tokens set too, right in any order"
    )

    def kv_bytes(self, rank: int) -> int:
        """Return the size of one rank's KV cache."""
        return self.max_tokens * self.ranks[rank].kv_per_token


class Concurrency(_Value):
    """How many sequences of one length are served at once."""

    length: int = Field(description="tokens of prompt and answer")
    by_memory: int = Field(description="that both KV caches hold, none of them shared")
    served: int = Field(description="at most max_batch_size")


class GpuUse(_Value):
    """One GPU, in bytes."""

    gpu: int
    fixed: int = Field(description="weights, activations, logits and runtime of the models on it")
    kv_cache: int
    left: int


class MemoryPlan(_Value):
    """Two models on their GPUs."""

    gpu: str
    gpu_memory_bytes: int
    runtime: PlannedRuntime
    placement: Placement
    max_seq_len: int
    max_batch_size: int
    max_draft_len: int
    max_num_tokens: int
    target: ModelPlan
    draft: ModelPlan
    shared_fraction: float | None = Field(
        description="free_gpu_memory_fraction of the pytorch runtime, whose one process holds both models"
    )
    gpus: tuple[GpuUse, ...]
    concurrency: tuple[Concurrency, ...]
    notes: tuple[str, ...] = Field(default=(), description="where the plan is an upper estimate")
