"""What a pair for TensorRT-LLM's LLM API may be asked, one typed field for each choice.

A field with a text is a flag of the command, and the text its help.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from trtspec.engines.llm_api import NEWEST, Speculation

SamplingMode = Literal["greedy", "sampled", "rejection"]


@dataclass(frozen=True, kw_only=True)
class PytorchOptions:
    """How TensorRT-LLM shall speculate, beyond `BuildOptions`."""

    tensorrt_llm: Annotated[
        str | None, f"Version that will run the pair.  [default: {NEWEST}, the newest known here]"
    ] = None
    speculation: Annotated[
        Speculation | None,
        "How tokens are drafted; mtp and ngram have no DRAFT.  [default: by what DRAFT is]",
    ] = None
    sampling: Annotated[
        SamplingMode,
        "What requests may ask for where draft and target are one engine (from 1.3 on): the likeliest token "
        "only; temperature, top-k and top-p; or that with drafts accepted by both models' probabilities.",
    ] = "sampled"
    penalties: Annotated[bool, "Let requests ask for penalties, where draft and target are one engine."] = (
        False
    )
    overlap_scheduler: Annotated[bool, "Prepare a step while the one before runs."] = False
    block_reuse: Annotated[bool, "Keep key-value blocks for requests that begin alike."] = True
    free_gpu_memory: Annotated[
        float | None,
        "Share of the memory that the weights leave free, for the key-value cache.  [default: as the memory "
        "plan of --gpu has it, else 0.9]",
    ] = None

    @property
    def version(self) -> str:
        """The TensorRT-LLM that the arguments are spelt for."""
        return NEWEST if self.tensorrt_llm is None else self.tensorrt_llm
