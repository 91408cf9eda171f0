"""Plan the memory of two models that share GPUs; refuse what cannot fit and say what would."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trtspec.engines.memory.advice import what_would_fit
from trtspec.engines.memory.gpus import GIB
from trtspec.engines.memory.pools import (
    Deployment,
    Layout,
    concurrency,
    gpu_uses,
    lay_out,
    model_plans,
    pool_tokens,
    sequence_tokens,
    shared_fraction,
)
from trtspec.engines.memory.result import MemoryPlan
from trtspec.errors import PlanError

LENGTHS = (1024, 4096, 16384)


class DoesNotFitError(PlanError):
    """A deployment that its GPUs cannot hold; `would_fit` lists changes with which they could."""

    def __init__(self, message: str, would_fit: Sequence[str]) -> None:
        advice = "; ".join(would_fit) or "nothing this plan knows; take a smaller model"
        super().__init__(f"{message}; what would fit: {advice}")
        self.would_fit = tuple(would_fit)


def plan_memory(deployment: Deployment, lengths: Sequence[int] = LENGTHS) -> MemoryPlan:
    """Return what to set for both models, and how many sequences of each of the `lengths` they then serve.

    Lengths beyond the limits' max_seq_len are left out; max_seq_len itself is always there.

    Raises:
        DoesNotFitError: the models leave no room for one sequence of max_seq_len.
        PlanError: a model cannot be split or placed as asked.
    """
    limits, usable = deployment.limits, deployment.gpu.usable_bytes
    target = deployment.target.decoder
    if target.context is not None and limits.max_seq_len > target.context:
        raise PlanError(f"--max-seq-len {limits.max_seq_len}: {target.name} reads {target.context} tokens")
    layout = lay_out(deployment)
    tokens = pool_tokens(layout, usable)
    if min(tokens) < sequence_tokens(limits.max_seq_len, limits):
        raise DoesNotFitError(_shortage(deployment, layout), what_would_fit(deployment))
    plans = model_plans(layout, tokens, usable)
    together = deployment.runtime == "pytorch"
    shown = sorted({length for length in lengths if length < limits.max_seq_len} | {limits.max_seq_len})
    return MemoryPlan(
        gpu=deployment.gpu.name,
        gpu_memory_bytes=deployment.gpu.memory_bytes,
        runtime=deployment.runtime,
        placement=deployment.placement,
        max_seq_len=limits.max_seq_len,
        max_batch_size=limits.max_batch_size,
        max_draft_len=limits.max_draft_len,
        max_num_tokens=limits.max_num_tokens,
        target=plans[0],
        draft=plans[1],
        shared_fraction=shared_fraction(layout, tokens[0], usable) if together else None,
        gpus=gpu_uses(plans, usable),
        concurrency=tuple(concurrency(tokens, length, limits) for length in shown),
        notes=tuple(_window_notes(deployment)),
    )


def _window_notes(deployment: Deployment) -> Iterator[str]:
    """Yield where a cache may need less: TensorRT-LLM drops what lies before a window that it is told of.

    It is told by max_attention_window_size, in the LLM API max_attention_window, which both default to the
    whole sequence.
    """
    for role, engine in (("target", deployment.target), ("draft", deployment.draft)):
        window = engine.decoder.window
        if window is not None and window < deployment.limits.max_seq_len:
            yield (
                f"the {role} has layers that attend to the last {window:,} tokens only; the plan keeps all "
                "tokens in all layers, as TensorRT-LLM does unless max_attention_window_size is set, with "
                "which a sequence may take less"
            )


def _shortage(deployment: Deployment, layout: Layout) -> str:
    """Return what the fullest GPU would have to hold, in words."""
    sequence = sequence_tokens(deployment.limits.max_seq_len, deployment.limits)
    needs = {
        gpu: (sum(rank.fixed for rank in ranks), sequence * sum(rank.kv_per_token for rank in ranks))
        for gpu, ranks in layout.on().items()
    }
    gpu, (fixed, kv_cache) = max(needs.items(), key=lambda item: sum(item[1]))
    weights = sum(rank.weights for rank in layout.on()[gpu])
    return (
        f"{deployment.target.decoder.name} and {deployment.draft.decoder.name} on {deployment.gpu.name}: "
        f"GPU {gpu} would hold {fixed / GIB:.1f} GiB ({weights / GIB:.1f} GiB of weights) and "
        f"{kv_cache / GIB:.1f} GiB of KV cache for one sequence of {deployment.limits.max_seq_len} tokens, "
        f"it has {deployment.gpu.usable_bytes / GIB:.1f} GiB"
    )
