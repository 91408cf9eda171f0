"""What each rank of one engine takes of its GPU.

Sources: TensorRT-LLM's "Memory Usage" page (weights split over ranks, activations linear in
max_num_tokens and of one layer, buffers allocated before the KV cache) and its C++ runtime buffers (eight
steps of generation logits). Sizes of weights and KV cache are exact; the others are upper estimates:

  activations  max_num_tokens × element × 1.25 × (4 H + (2 Hq + 2 Hkv) D / t + 3 I / t): hidden states of a
               layer, q k v and the attention's output, gate, up and their product
  logits       rows × vocabulary × 4 bytes, three times: the engine's output, the sampler's copy and
               probabilities; rows = batch × (γ + 1) for a target, batch for a draft
  runtime      CUDA context and libraries 1 GiB a process, 0.5 GiB for communication between ranks. The
               log on that page leaves 0.76 GiB of a GPU's 79.10 GiB to the context.

H hidden size, Hq and Hkv heads, D head size, I MLP width, t tensor-parallel ranks, γ draft tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from trtspec.engines.memory.decoder import Decoder
from trtspec.engines.memory.gpus import GIB
from trtspec.errors import PlanError

ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
LOGIT_BYTES = 4
LOGIT_COPIES = 3
LOGITS_KEPT_STEPS = 8  # generation logits that wait on the GPU to be copied out
ACTIVATION_ALLOWANCE = 1.25
CONTEXT_BYTES = GIB
COMMUNICATION_BYTES = GIB // 2

Dtype = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True, kw_only=True)
class Engine:
    """One model, as it is to be built."""

    decoder: Decoder
    tp: int = 1
    pp: int = 1
    dtype: Dtype = "bfloat16"
    fp8: bool = False  # quantise the matrices; those that are FP8 already stay so
    fp8_kv_cache: bool = False


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What both engines must hold."""

    max_seq_len: int = 4096
    max_batch_size: int = 16
    max_draft_len: int = 8
    max_num_tokens: int = 8192
    use_draft_logits: bool = False  # sampled requests are accepted by probabilities


class RankMemory(BaseModel):
    """One rank of an engine, in bytes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    weights: int
    activations: int
    logits: int
    runtime: int
    kv_per_token: int = Field(description="that a token adds to the KV cache")

    @property
    def fixed(self) -> int:
        """All but the KV cache."""
        return self.weights + self.activations + self.logits + self.runtime


def rank_memories(engine: Engine, limits: Limits, *, is_target: bool) -> tuple[RankMemory, ...]:
    """Return what each rank takes; rank = stage × tp + position in the stage, as TensorRT-LLM counts.

    Raises:
        PlanError: the heads or the layers cannot be split like this.
    """
    _check_split(engine)
    stages = [
        RankMemory(
            weights=_weights(engine, stage),
            activations=_activations(engine, limits),
            logits=_logits(engine, limits, is_target) if stage == engine.pp - 1 else 0,
            runtime=CONTEXT_BYTES + (COMMUNICATION_BYTES if engine.tp * engine.pp > 1 else 0),
            kv_per_token=_kv_per_token(engine, stage),
        )
        for stage in range(engine.pp)
    ]
    return tuple(stage for stage in stages for _ in range(engine.tp))


def splits_heads(heads: int, kv_heads: int, ranks: int) -> bool:
    """Whether TensorRT-LLM can split the heads: KV heads are shared out, or repeated where too few."""
    return heads % ranks == 0 and (kv_heads % ranks == 0 or ranks % kv_heads == 0)


def _check_split(engine: Engine) -> None:
    decoder, tp, pp = engine.decoder, engine.tp, engine.pp
    if not splits_heads(decoder.heads, decoder.kv_heads, tp):
        raise PlanError(
            f"{decoder.name}: {decoder.heads} heads and {decoder.kv_heads} KV heads cannot be split over "
            f"{tp} ranks; the heads must divide evenly, the KV heads divide or be a divisor"
        )
    if decoder.layers % pp:
        raise PlanError(f"{decoder.name}: {decoder.layers} layers cannot be split into {pp} equal stages")


def _weights(engine: Engine, stage: int) -> int:
    """Return the bytes of one rank's weights.

    Each rank of the first stage holds the whole embedding; the head is split by rows, in the last stage,
    and stored beside a tied embedding unless both are one whole matrix. FP8 leaves all but the matrices.
    """
    decoder, tp, pp = engine.decoder, engine.tp, engine.pp
    element = ELEMENT_BYTES[engine.dtype]
    matrix_element = 1 if engine.fp8 or decoder.is_fp8 else element
    kv_share = max(decoder.kv_heads // tp, 1) / decoder.kv_heads
    matrices = (decoder.matrices - decoder.kv_matrices) / tp + decoder.kv_matrices * kv_share
    total = (matrices * matrix_element + decoder.vectors * element) / pp
    if stage == 0:
        total += decoder.embedding * element
    if stage == pp - 1 and not (decoder.tied and tp == pp == 1):
        total += -(-decoder.vocab // tp) * decoder.hidden * element
    return round(total)


def _activations(engine: Engine, limits: Limits) -> int:
    decoder, tp = engine.decoder, engine.tp
    heads = 2 * (decoder.heads + max(decoder.kv_heads, tp)) * decoder.head_dim
    columns = 4 * decoder.hidden + (heads + 3 * decoder.intermediate) / tp
    tokens = max(limits.max_num_tokens, limits.max_batch_size * (limits.max_draft_len + 1))
    return round(tokens * ELEMENT_BYTES[engine.dtype] * columns * ACTIVATION_ALLOWANCE)


def _logits(engine: Engine, limits: Limits, is_target: bool) -> int:
    """Return the bytes of the logits; by probabilities, the drafts' come into the target beside its own."""
    rows = limits.max_batch_size * (limits.max_draft_len + 1 if is_target else 1) * LOGIT_COPIES
    if limits.use_draft_logits:
        rows += limits.max_batch_size * LOGITS_KEPT_STEPS
        rows += 2 * limits.max_batch_size * (limits.max_draft_len + 1) if is_target else 0
    return rows * engine.decoder.vocab * LOGIT_BYTES


def _kv_per_token(engine: Engine, stage: int) -> int:
    decoder = engine.decoder
    heads = max(decoder.kv_heads // engine.tp, 1)
    return 2 * (decoder.layers // engine.pp) * heads * decoder.head_dim * _kv_element(engine)


def _kv_element(engine: Engine) -> int:
    return 1 if engine.fp8_kv_cache else ELEMENT_BYTES[engine.dtype]
