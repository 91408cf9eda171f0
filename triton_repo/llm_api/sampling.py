"""A request as the keywords of TensorRT-LLM's SamplingParams.

Stop strings are not among them: the public model finds them itself, in the text, and then stops the
request. Nothing that shapes the choice of tokens is left unsaid, because the LLM API fills in what a
checkpoint's generation_config.json says.
"""

from __future__ import annotations

from typing import Any

from ..speculation.request import GenerationRequest

# No id ends the answer.
NO_END = -1


def sampling_keywords(request: GenerationRequest) -> dict[str, Any]:
    """Return the keywords for a checked request."""
    sampling = request.sampling
    keywords: dict[str, Any] = {
        "max_tokens": request.max_tokens,
        "end_id": request.eos_ids[0] if request.eos_ids else NO_END,
        "seed": sampling.seed,
        "repetition_penalty": sampling.repetition_penalty or 1.0,
        "detokenize": False,
        "return_perf_metrics": True,
    }
    if sampling.greedy:
        keywords |= {"top_k": 1}
    else:
        # Top-k of 0 keeps all. A temperature alone would count as greedy.
        keywords |= {
            "temperature": 1.0 if sampling.temperature is None else sampling.temperature,
            "top_k": sampling.top_k or 0,
            "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
        }
    if len(request.eos_ids) > 1:
        keywords["stop_token_ids"] = list(request.eos_ids[1:])
    if request.min_tokens:
        keywords["min_tokens"] = request.min_tokens
    if sampling.presence_penalty or sampling.frequency_penalty:
        keywords |= {
            "presence_penalty": sampling.presence_penalty or 0.0,
            "frequency_penalty": sampling.frequency_penalty or 0.0,
            # Neither counts the prompt, as on the other runtimes.
            "prompt_ignore_length": len(request.prompt_ids),
        }
    if request.return_log_probs:
        keywords["logprobs"] = 1
    return keywords
