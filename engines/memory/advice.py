"""Changes that make a deployment fit, found by the arithmetic that refused it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from trtspec.engines.memory.gpus import GPUS
from trtspec.engines.memory.pools import Deployment, lay_out, pool_tokens, sequence_tokens
from trtspec.errors import PlanError

SHORTEST = 1024  # tokens; below that a sequence is of little use
FEWEST_TOKENS = 2048  # max_num_tokens; lower makes long prompts slow
MOST_RANKS = 8

Change = tuple[str, Deployment]


def what_would_fit(deployment: Deployment) -> tuple[str, ...]:
    """Return the changes that suffice, one by one; where none does, in twos. Each is a flag or a GPU."""
    singles = [change for change in _changes(deployment) if _fits(change[1])]
    if singles:
        return tuple(text for text, _ in singles)
    twos = (
        (f"{first} with {second}", changed)
        for first, half in _changes(deployment)
        for second, changed in _changes(half)
        if first.split()[0] < second.split()[0]
    )
    return tuple(text for text, changed in twos if _fits(changed))[:4]


def _fits(deployment: Deployment) -> bool:
    try:
        tokens = pool_tokens(lay_out(deployment), deployment.gpu.usable_bytes)
    except PlanError:
        return False
    return min(tokens) >= sequence_tokens(deployment.limits.max_seq_len, deployment.limits)


def _changes(deployment: Deployment) -> Iterator[Change]:
    yield from _quantizations(deployment)
    yield from _more_ranks(deployment)
    if deployment.placement == "together" and deployment.runtime == "tensorrt":
        yield "--placement apart", replace(deployment, placement="apart")
    yield from _smaller_limits(deployment)
    yield from _larger_gpu(deployment)


def _quantizations(deployment: Deployment) -> Iterator[Change]:
    """FP8 for the target, and where it is that already, for the draft."""
    if not deployment.gpu.has_fp8:
        return
    if not (deployment.target.fp8 or deployment.target.decoder.is_fp8):
        target = replace(deployment.target, fp8=True)
        yield "--target-quantization fp8", replace(deployment, target=target)
    elif not (deployment.draft.fp8 or deployment.draft.decoder.is_fp8):
        yield "--draft-quantization fp8", replace(deployment, draft=replace(deployment.draft, fp8=True))


def _more_ranks(deployment: Deployment) -> Iterator[Change]:
    """The fewest more ranks that suffice, for the target; the draft goes along where it was split alike."""
    target, draft = deployment.target, deployment.draft
    tp = target.tp * 2
    while tp <= MOST_RANKS:
        alike = draft.tp == target.tp and draft.decoder.heads % tp == 0
        changed = replace(
            deployment, target=replace(target, tp=tp), draft=replace(draft, tp=tp) if alike else draft
        )
        if _fits(changed) or tp == MOST_RANKS:
            yield f"--tp {tp}", changed
            return
        tp *= 2


def _smaller_limits(deployment: Deployment) -> Iterator[Change]:
    limits = deployment.limits
    length = limits.max_seq_len // 2
    while length >= SHORTEST:
        shorter = replace(deployment, limits=replace(limits, max_seq_len=length))
        if _fits(shorter):
            yield f"--max-seq-len {length}", shorter
            break
        length //= 2
    if limits.max_batch_size > 1:
        batch = _smaller_batch(deployment)
        yield (
            f"--max-batch-size {batch}",
            replace(deployment, limits=replace(limits, max_batch_size=batch)),
        )
    if limits.max_num_tokens > FEWEST_TOKENS:
        fewer = replace(limits, max_num_tokens=FEWEST_TOKENS)
        yield f"--max-num-tokens {FEWEST_TOKENS}", replace(deployment, limits=fewer)


def _smaller_batch(deployment: Deployment) -> int:
    """Return half the sequences in flight, or a half of that, and so on until it fits; 1 where none does."""
    limits = deployment.limits
    batch = limits.max_batch_size // 2
    while batch > 1 and not _fits(replace(deployment, limits=replace(limits, max_batch_size=batch))):
        batch //= 2
    return max(batch, 1)


def _larger_gpu(deployment: Deployment) -> Iterator[Change]:
    """The smallest known GPU that suffices, else the largest there is."""
    larger = sorted(
        (gpu for gpu in GPUS.values() if gpu.memory_bytes > deployment.gpu.memory_bytes),
        key=lambda gpu: gpu.memory_bytes,
    )
    for gpu in larger:
        changed = replace(deployment, gpu=gpu)
        if _fits(changed) or gpu is larger[-1]:
            yield f"--gpu {gpu.name}", changed
            return
