"""What the LLM API can do of what a request may ask, which depends on how the pair was built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..speculation.request import GenerationRequest, RequestError


@dataclass(frozen=True)
class Capabilities:
    """Of one engine.

    It drafts as many tokens as it can in every round of every request.
    """

    max_draft_len: int
    # Every round drafts so many; where not, it drafts what it finds.
    fixed_length: bool
    # Draft and target are one engine, whose sampling knows less than that of plain requests.
    one_engine: bool
    # Temperature, top-k and top-p.
    samples: bool
    penalties: bool

    @classmethod
    def read(cls, settings: Mapping[str, str]) -> Capabilities:
        """Return what the parameters of the model say."""
        return cls(
            max_draft_len=int(settings["max_draft_len"]),
            fixed_length=settings["fixed_length"] == "true",
            one_engine=settings["one_engine"] == "true",
            samples=settings["samples"] == "true",
            penalties=settings["penalties"] == "true",
        )

    def check(self, request: GenerationRequest) -> None:
        """Raise RequestError for what would be ignored, with every option by its name."""
        if faults := list(self._faults(request)):
            raise RequestError("; ".join(faults))

    def _faults(self, request: GenerationRequest) -> Iterator[str]:
        sampling = request.sampling
        if request.num_draft_tokens != self.max_draft_len:
            yield (
                f"num_draft_tokens is {request.num_draft_tokens}; TensorRT-LLM drafts {self.max_draft_len} "
                "tokens in every round here, as the pair was built; leave it out"
            )
        unknown = {
            "bad_words": bool(sampling.bad_words),
            "embedding_bias_words": sampling.bias_V is not None,
            "return_generation_logits": request.return_logits,
            "use_draft_logits": request.use_draft_logits,
            "min_tokens": self.one_engine and request.min_tokens > 0,
        }
        if asked := [name for name, is_asked in unknown.items() if is_asked]:
            yield f"not supported over the LLM API while it speculates: {', '.join(asked)}; leave them out"
        if not self.samples and not sampling.greedy:
            yield (
                "temperature, top_k, top_p: the pair was built with --sampling greedy; build it with "
                "--sampling sampled, or leave them out"
            )
        if not self.penalties and _penalised(request):
            yield (
                "repetition_penalty, presence_penalty, frequency_penalty: the pair was built without "
                "--penalties; build it with them, or leave them out"
            )


def _penalised(request: GenerationRequest) -> bool:
    sampling = request.sampling
    return bool(
        sampling.repetition_penalty not in (None, 1.0)
        or sampling.presence_penalty
        or sampling.frequency_penalty
    )
