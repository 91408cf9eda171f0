"""Speed-ups that others measured and published, beside what the formulas make of their α and c.

`stated` is what the source itself computed from its α and c, `measured` what its clock said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trtspec.theory import Costs, acceptance_from_tokens, round_cost, speed_up

LEVIATHAN = "Leviathan, Kalman, Matias 2023, arXiv:2211.17192, tables: T5-XXL 11B, batch 1, one TPU-v4"
CHEN = "Chen et al. 2023, arXiv:2302.01318, table 1: Chinchilla 70B with a 4B draft, batch 1, 16 TPU v4"
NVIDIA = "NVIDIA, 'Boost Llama 3.3 70B Inference Throughput 3x', December 2024: TensorRT-LLM, H200"


@dataclass(frozen=True)
class Published:
    """A row of a published table."""

    pair: str
    task: str
    source: str
    num_draft_tokens: int
    cost_ratio: float
    measured: float
    acceptance: float | None = None  # None: not published
    stated: float | None = None

    @property
    def predicted(self) -> float | None:
        """S by the formula, where α is known."""
        if self.acceptance is None:
            return None
        return speed_up(self.acceptance, self.num_draft_tokens, Costs(self.cost_ratio))

    @property
    def residual(self) -> float | None:
        """What was measured beyond what the formula says, as a share of it."""
        return None if self.predicted is None else self.measured / self.predicted - 1

    @property
    def implied_acceptance(self) -> float | None:
        """The α at which the formula gives what was measured; None where none does."""
        tokens = self.measured * round_cost(self.num_draft_tokens, Costs(self.cost_ratio))
        if tokens > self.num_draft_tokens + 1:
            return None
        return acceptance_from_tokens(tokens, self.num_draft_tokens)


# Task, draft, γ, α, c, S as the paper predicts it, S as it measured it.
_T5 = (
    ("EN-DE, greedy", "T5-small", 7, 0.75, 0.02, 3.2, 3.4),
    ("EN-DE, greedy", "T5-base", 7, 0.80, 0.04, 3.3, 2.8),
    ("EN-DE, greedy", "T5-large", 7, 0.82, 0.11, 2.5, 1.7),
    ("EN-DE, sampled", "T5-small", 7, 0.62, 0.02, 2.3, 2.6),
    ("EN-DE, sampled", "T5-base", 5, 0.68, 0.04, 2.4, 2.4),
    ("EN-DE, sampled", "T5-large", 3, 0.71, 0.11, 2.0, 1.4),
    ("CNN/DM, greedy", "T5-small", 5, 0.65, 0.02, 2.4, 3.1),
    ("CNN/DM, greedy", "T5-base", 5, 0.73, 0.04, 2.6, 3.0),
    ("CNN/DM, greedy", "T5-large", 3, 0.74, 0.11, 2.0, 2.2),
    ("CNN/DM, sampled", "T5-small", 5, 0.53, 0.02, 1.9, 2.3),
    ("CNN/DM, sampled", "T5-base", 3, 0.55, 0.04, 1.8, 2.2),
    ("CNN/DM, sampled", "T5-large", 3, 0.56, 0.11, 1.6, 1.7),
)
# c is 1.8 ms over 14.1 ms a token; α was not published.
_CHINCHILLA = (("XSum, nucleus", 1.92), ("XSum, greedy", 2.01), ("HumanEval, nucleus", 2.46))
# Neither α nor γ was published: 181.74 tokens/s over 51.14. c is the ratio of the weights, 1.24B over
# 70.55B parameters in one precision.
_LLAMA_LENGTHS = (4, 6, 8, 10)

TABLES = (
    *(
        Published(f"T5-XXL + {draft}", task, LEVIATHAN, length, cost, measured, acceptance, stated)
        for task, draft, length, acceptance, cost, stated, measured in _T5
    ),
    *(
        Published("Chinchilla 70B + 4B", task, CHEN, 4, 1.8 / 14.1, measured)
        for task, measured in _CHINCHILLA
    ),
    *(
        Published("Llama 3.3 70B + 3.2 1B", "not said", NVIDIA, length, 1.24 / 70.55, 181.74 / 51.14)
        for length in _LLAMA_LENGTHS
    ),
)


def published_as_json(rows: Sequence[Published]) -> dict[str, Any]:
    """Return rows in JSON's types, with what the formulas make of them."""
    derived = ("predicted", "residual", "implied_acceptance")
    return {"published": [asdict(row) | {name: getattr(row, name) for name in derived} for row in rows]}
