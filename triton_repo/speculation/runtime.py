"""What differs between the engines that may stand behind the loop."""

from __future__ import annotations

from dataclasses import dataclass

from .loop import Role
from .request import GenerationRequest

_MASK = 2**64 - 1


@dataclass(frozen=True)
class Runtime:
    """What an engine does beyond the tensors that all have in common."""

    name: str
    # It draws each token with randomness of its position, so that one seed serves a whole answer.
    keys_seeds_by_position: bool
    # It can be told how many leading ids presence and frequency penalties do not count.
    knows_prompt_length: bool
    # It answers several calls that arrive as one request with few responses. TensorRT-LLM's backend
    # takes such requests, but answers them one by one, and batches what is in flight by itself.
    stacks_calls: bool

    def speculation_off_reason(self, request: GenerationRequest) -> str:
        """Return which option of the request would not survive the border between two rounds; "" if none."""
        sampling = request.sampling
        if not self.knows_prompt_length and (sampling.presence_penalty or sampling.frequency_penalty):
            return (
                f"presence_penalty and frequency_penalty start anew with every round of {self.name} engines"
            )
        return ""

    def call_seed(self, seed: int, engine: Role, position: int) -> int:
        """Return the seed of one call, uint64.

        An engine that starts its generator with each call gets a seed mixed from the answer's, the
        position and its role: reproducible, and neither are two rounds correlated nor the draft's
        draws with the target's decision about them. The mixing is SplitMix64's (Steele et al. 2014).
        """
        if self.keys_seeds_by_position:
            return seed
        mixed = (seed + 0x9E3779B97F4A7C15 * (2 * position + (engine == "draft") + 1)) & _MASK
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return mixed ^ (mixed >> 31)


RUNTIMES = {
    runtime.name: runtime
    for runtime in (
        Runtime("cpu", keys_seeds_by_position=True, knows_prompt_length=True, stacks_calls=True),
        Runtime("tensorrt", keys_seeds_by_position=False, knows_prompt_length=False, stacks_calls=False),
    )
}
