"""What FP8 costs: error of the weights, and of the answers on text that calibration did not see.

The unquantised model and the written FP8 checkpoint are both run layer by layer over the same tokens;
compared are their distributions of the next token. For a pair also the rate at which draft tokens are
accepted, before and after.

Shapes: N positions of all texts, V vocabulary, H hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trtspec.build.checkpoint import Checkpoint
from trtspec.build.convert.fp8 import Fp8Scales
from trtspec.build.quantize.layers import LayeredModel, read_tensor
from trtspec.build.quantize.ready_made import read_fp8
from trtspec.engines.cpu.fp8 import dequantise
from trtspec.errors import BuildError, CheckpointError

# Positions whose logits are in memory at a time.
CHUNK = 64


@dataclass(frozen=True)
class Quality:
    """One quantised model against the unquantised one."""

    tokens: int  # positions compared
    top1_agreement: float  # share of positions with the same most likely token
    kl_divergence: float  # mean, in nats, of the quantised distribution from the unquantised one
    perplexity_before: float
    perplexity_after: float
    weight_errors: Mapping[str, float]  # relative root mean square, by module


@dataclass(frozen=True)
class Acceptance:
    """How often draft tokens are accepted, at temperature 1 and greedily."""

    sampled: float  # mean of sum(min(p, q))
    greedy: float  # share of positions where both models prefer the same token


@dataclass(frozen=True)
class Evaluated:
    """A model before and after quantisation, run over texts up to the head."""

    model: LayeredModel
    before_NH: Tensor
    after_NH: Tensor
    weight_errors: Mapping[str, float]


def evaluate(
    original: Checkpoint,
    quantised: Checkpoint | None,
    texts: Sequence[Sequence[int]],
    dtype: torch.dtype,
    device: str = "cpu",
) -> Evaluated:
    """Run a model over texts, unquantised and, where there is such a checkpoint, quantised.

    Args:
        original: may itself be FP8; it is then what the other is compared with.

    Raises:
        CheckpointError: `quantised` holds no FP8 weights.
    """
    model, before = _run(original, read_fp8(original), texts, dtype, device)
    if quantised is None:
        return Evaluated(model, before, before, {})
    fp8 = read_fp8(quantised)
    if fp8 is None:
        raise CheckpointError(f"{quantised.path}: not quantised; expected FP8 weights to evaluate")
    _, after = _run(quantised, fp8, texts, dtype, device)
    return Evaluated(model, before, after, dict(_weight_errors(original, quantised, fp8)))


def _run(
    checkpoint: Checkpoint,
    fp8: Fp8Scales | None,
    texts: Sequence[Sequence[int]],
    dtype: torch.dtype,
    device: str,
) -> tuple[LayeredModel, Tensor]:
    """Return the model, and what left its last layer at all positions but the last of each text."""
    model = LayeredModel(checkpoint, dtype, device, fp8)
    hidden = model.embed(texts)
    for index in range(model.layers):
        with model.layer(index) as (_, run):
            hidden = run(hidden)
    return model, torch.cat([states[0, :-1] for states in hidden])


def _weight_errors(
    original: Checkpoint, quantised: Checkpoint, fp8: Fp8Scales
) -> Iterator[tuple[str, float]]:
    for module, scales in sorted(fp8.linears.items()):
        name = f"{module}.weight"
        weight = read_tensor(original.tensors[name]).float()
        scale = torch.from_numpy(np.array(scales.weight))
        error = dequantise(read_tensor(quantised.tensors[name]), scale) - weight
        yield module, float(error.norm() / weight.norm())


def next_tokens(texts: Sequence[Sequence[int]]) -> Tensor:
    """Return the token after each position compared, [N]."""
    return torch.tensor([token for text in texts for token in text[1:]])


def compare(found: Evaluated, texts: Sequence[Sequence[int]]) -> Quality:
    """Return how far quantisation moved the distributions of the next token."""
    found.model.load_head()
    expected_N = next_tokens(texts)
    agree, divergence, before_nats, after_nats = 0, 0.0, 0.0, 0.0
    for rows in _chunks(len(expected_N)):
        before_NV, after_NV = _log_probabilities(found, rows)
        agree += int((before_NV.argmax(-1) == after_NV.argmax(-1)).sum())
        divergence += float((before_NV.exp() * (before_NV - after_NV)).sum())
        expected_N1 = expected_N[rows, None].to(before_NV.device)
        before_nats -= float(before_NV.gather(1, expected_N1).sum())
        after_nats -= float(after_NV.gather(1, expected_N1).sum())
    count = len(expected_N)
    return Quality(
        tokens=count,
        top1_agreement=agree / count,
        kl_divergence=max(divergence / count, 0.0),
        perplexity_before=math.exp(before_nats / count),
        perplexity_after=math.exp(after_nats / count),
        weight_errors=found.weight_errors,
    )


def acceptance(target: Evaluated, draft: Evaluated) -> tuple[Acceptance, Acceptance]:
    """Return the acceptance of the pair before and after, over the same texts."""
    target.model.load_head()
    draft.model.load_head()
    count = len(target.before_NH)
    sampled, greedy = [0.0, 0.0], [0, 0]
    for rows in _chunks(count):
        both = zip(_log_probabilities(target, rows), _log_probabilities(draft, rows), strict=True)
        for moment, (target_NV, draft_NV) in enumerate(both):
            # Heads may be padded to different widths.
            width = min(target_NV.shape[1], draft_NV.shape[1])
            p_NV, q_NV = target_NV[:, :width], draft_NV[:, :width]
            sampled[moment] += float(torch.minimum(p_NV, q_NV).exp().sum())
            greedy[moment] += int((p_NV.argmax(-1) == q_NV.argmax(-1)).sum())
    before, after = (Acceptance(sampled[i] / count, greedy[i] / count) for i in (0, 1))
    return before, after


def check_divergence(name: str, quality: Quality, limit: float | None) -> None:
    """Raise BuildError where a model moved farther than it may."""
    if limit is not None and not quality.kl_divergence <= limit:
        raise BuildError(
            f"{name}: FP8 moves the next token's distribution by {quality.kl_divergence:.4f} nats on "
            f"average, --max-kl allows {limit:g}; calibrate on texts that are like your requests, keep "
            f"this model unquantised, or allow more"
        )


def _chunks(count: int) -> Iterator[slice]:
    for begin in range(0, count, CHUNK):
        yield slice(begin, begin + CHUNK)


def _log_probabilities(found: Evaluated, rows: slice) -> tuple[Tensor, Tensor]:
    before_NV = found.model.logits(found.before_NH[rows]).log_softmax(-1)
    if found.after_NH is found.before_NH:
        return before_NV, before_NV
    return before_NV, found.model.logits(found.after_NH[rows]).log_softmax(-1)
