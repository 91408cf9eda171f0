"""What the draft costs against the target, and what that allows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trtspec.build.check.findings import Finding
from trtspec.build.check.model_shape import ModelShape

USUAL_SHARE = 1 / 5  # the usual advice: a draft of 1/10 to 1/5 of the target, or smaller
CONTEXT_TOKENS = 1024


@dataclass(frozen=True)
class Ratios:
    """Draft over target."""

    parameters: float
    weight_bytes_per_token: float
    kv_bytes_per_token: float | None
    cost_ratio: float  # c: time of a draft step over time of a target step, see ratios_of
    context_tokens: int  # at which c holds


def ratios_of(target: ModelShape, draft: ModelShape, context_tokens: int = CONTEXT_TOKENS) -> Ratios:
    """Return the ratios of a pair.

    c is estimated as the ratio of bytes read per token, weights and cache, because a step at batch size 1
    is bound by memory. Kernel launches, which a small model has nearly as many of, come on top: the real
    c of a very small draft is larger.
    """
    kv = (draft.kv_bytes_per_token, target.kv_bytes_per_token)
    return Ratios(
        parameters=draft.parameters / target.parameters,
        weight_bytes_per_token=draft.weight_bytes_per_token / target.weight_bytes_per_token,
        kv_bytes_per_token=kv[0] / kv[1] if kv[0] and kv[1] else None,
        cost_ratio=draft.bytes_per_token(context_tokens) / target.bytes_per_token(context_tokens),
        context_tokens=context_tokens,
    )


def ratio_findings(ratios: Ratios) -> Iterator[Finding]:
    """Yield where the pair leaves the usual advice."""
    share = ratios.parameters
    if share >= 1:
        yield Finding(
            "ratio.size",
            "warning",
            f"the draft has {share:.0%} of the target's parameters; it cannot save time",
            "check the order of the two: the target comes first",
        )
    elif share > USUAL_SHARE:
        yield Finding(
            "ratio.size",
            "warning",
            f"the draft has {share:.0%} of the target's parameters, usual is 10 % to 20 % or less; "
            f"it only pays while more than {ratios.cost_ratio:.0%} of its tokens are accepted",
            "take a smaller draft of the same family",
        )
