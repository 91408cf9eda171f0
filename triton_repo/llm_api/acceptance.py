"""What speculation did for an answer, from what the LLM API tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..speculation.loop import Speculation


@dataclass(frozen=True)
class Drafted:
    """TensorRT-LLM's own count of an answer's draft tokens."""

    proposed: int
    accepted: int


def speculation_of(
    steps: Sequence[int], drafted: Drafted | None, max_draft_len: int, *, fixed_length: bool = True
) -> Speculation:
    """Return the figures of an answer.

    The first response brings the token that the prompt leads to; each later one is a round, as long as
    every response is sent by itself. By position they are told only where both counts agree.

    Args:
        steps: tokens that each response has brought.
        drafted: None where TensorRT-LLM did not say, as when an answer was stopped.
        fixed_length: whether every round drafts `max_draft_len` tokens. Where not, what TensorRT-LLM
            does not say is not known.
    """
    kept = [count - 1 for count in steps[1:]]
    if not fixed_length:
        found = drafted or Drafted(0, 0)
        rounds = len(kept) if found.proposed else 0
        return Speculation(rounds=rounds, proposed=found.proposed, accepted=found.accepted)
    counted = Drafted(len(kept) * max_draft_len, sum(kept))
    found = drafted or counted
    speculation = Speculation(
        rounds=-(-found.proposed // max_draft_len), proposed=found.proposed, accepted=found.accepted
    )
    if found == counted and all(0 <= count <= max_draft_len for count in kept):
        speculation.proposed_per_position = [len(kept)] * max_draft_len if kept else []
        speculation.accepted_per_position = [
            sum(count > position for count in kept) for position in range(max_draft_len if kept else 0)
        ]
    return speculation
