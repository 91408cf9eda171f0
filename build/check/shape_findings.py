"""What the weights of one model, and the shapes of two, say about building them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trtspec.build.check.body import is_head
from trtspec.build.check.drafters import architecture_of
from trtspec.build.check.findings import Finding
from trtspec.build.check.model_shape import FLOATS, ModelShape
from trtspec.build.check.size_findings import size_findings
from trtspec.build.checkpoint import Checkpoint
from trtspec.build.convert.families import families
from trtspec.build.quantize.ready_made import read_fp8
from trtspec.errors import CheckpointError

FIRST_QUERY = re.compile(r"(?:^|\.)layers\.0\.self_attn\.q_proj\.weight$")
# Quantisations that TensorRT-LLM's PyTorch runtime loads as they are.
UNIFIED = {"modelopt", "fp8", "compressed-tensors"}


def model_findings(role: str, checkpoint: Checkpoint, shape: ModelShape) -> Iterator[Finding]:
    """Yield where config.json and the weights of one model disagree, and weights that cannot be converted."""
    architecture = architecture_of(checkpoint.config)
    if architecture not in families():
        yield Finding(
            f"{role}.architecture",
            "warning",
            f"the {role} is a {architecture or 'model of no named class'}, which cannot be converted for the "
            f"tensorrt runtime; expected one of {', '.join(families())}",
            "build for the pytorch or the cpu runtime",
        )
    yield from _vocabulary(role, checkpoint)
    yield from size_findings(role, checkpoint, shape)
    yield from _heads(role, checkpoint, shape)
    yield from _quantization(role, checkpoint, shape)
    if checkpoint.config.get("auto_map"):
        yield Finding(
            f"{role}.code",
            "note",
            f"the {role} names code of its own (auto_map); it is never run",
            "",
        )


def _vocabulary(role: str, checkpoint: Checkpoint) -> Iterator[Finding]:
    rows, written = checkpoint.vocab_size, checkpoint.config.get("vocab_size")
    if isinstance(written, int) and written != rows:
        yield Finding(
            "vocab.config",
            "warning",
            f"the {role}'s config.json says vocab_size {written:,}, its embedding has {rows:,} rows",
            "build goes by the weights",
            repairable=True,
        )
    for name, tensor in checkpoint.tensors.items():
        if is_head(name) and len(tensor.shape) == 2 and tensor.shape[0] != rows:
            yield Finding(
                "vocab.head",
                "error",
                f"the {role}'s {name} has {tensor.shape[0]:,} rows, its embedding {rows:,}",
                "take a checkpoint whose head and embedding belong together",
            )


def _heads(role: str, checkpoint: Checkpoint, shape: ModelShape) -> Iterator[Finding]:
    query = next((t for name, t in checkpoint.tensors.items() if FIRST_QUERY.search(name)), None)
    if query is None or shape.heads is None or shape.head_dim is None:
        return
    expected = shape.heads * shape.head_dim
    # Twice as many where a gate is fused in (Qwen3-Next). Packed weights have a finding of their own, and
    # latent attention has heads of other sizes.
    fits = query.shape[0] in (expected, 2 * expected) or "kv_lora_rank" in checkpoint.config
    if query.dtype in FLOATS and not fits:
        yield Finding(
            "heads.size",
            "error",
            f"the {role}'s {query.name} has {query.shape[0]:,} rows, config.json gives {shape.heads} heads "
            f"of {shape.head_dim}, {expected:,} rows",
            "correct num_attention_heads or head_dim in config.json",
        )


def _quantization(role: str, checkpoint: Checkpoint, shape: ModelShape) -> Iterator[Finding]:
    settings = checkpoint.config.get("quantization_config")
    method = settings.get("quant_method") if isinstance(settings, dict) else None
    if method is None and shape.dtype in FLOATS:
        return
    try:
        fp8 = read_fp8(checkpoint)
    except CheckpointError:
        fp8 = None
    if fp8 is not None:
        yield Finding(
            f"{role}.fp8",
            "note",
            f"the {role} is FP8 already, quantised by {fp8.origin}",
            "its codes and scales are kept as they are",
        )
        return
    how = f"quantised ({method or 'no method named'}, mostly {shape.dtype})"
    if isinstance(method, str) and method in UNIFIED:
        yield Finding(
            f"{role}.quantized",
            "warning",
            f"the {role} is {how}; only the pytorch runtime takes it as it is",
            "for the other runtimes take the checkpoint it was made from",
        )
    else:
        yield Finding(
            f"{role}.quantized",
            "error",
            f"the {role} is {how}; conversion takes float16, bfloat16 or float32 weights",
            "take the checkpoint it was quantised from",
        )


def pair_findings(
    target: ModelShape, draft: ModelShape, target_rows: int, draft_rows: int
) -> Iterator[Finding]:
    """Yield where the shapes of the two do not fit; `rows` are those of the token embeddings."""
    if target_rows != draft_rows:
        small, large = sorted((target_rows, draft_rows))
        yield Finding(
            "vocab.width",
            "warning",
            f"the target's embedding has {target_rows:,} rows, the draft's {draft_rows:,}; engines need "
            "the same",
            f"build makes them the same, {small:,} or {large:,}, in a way that no answer depends on",
            repairable=True,
        )
    if target.context_length is None or draft.context_length is None:
        side = "target" if target.context_length is None else "draft"
        yield Finding(
            "context.unknown",
            "warning",
            f"the {side}'s config.json gives no context length (max_position_embeddings)",
            "give the length to build for",
        )
    elif draft.context_length < target.context_length:
        yield Finding(
            "context.shorter",
            "warning",
            f"the draft reads up to {draft.context_length:,} tokens, the target {target.context_length:,}",
            f"nothing has to be done; past {draft.context_length:,} tokens the target goes on alone",
        )
    if target.dtype != draft.dtype and {target.dtype, draft.dtype} <= FLOATS.keys():
        yield Finding(
            "dtype.differs",
            "note",
            f"the target's weights are {target.dtype}, the draft's {draft.dtype}; each is built in its own",
            "give --dtype to build both in one",
        )
    lost = [n for n in target.tensor_parallel if n not in draft.tensor_parallel]
    if lost:
        yield Finding(
            "heads.parallel",
            "note",
            f"the target's heads split over {_list(target.tensor_parallel)} GPUs, the draft's over "
            f"{_list(draft.tensor_parallel)} ({draft.heads} heads, {draft.kv_heads} key-value heads)",
            "split both alike, or give the draft one GPU",
        )


def _list(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers)) or "no number of"
