"""TensorRT-LLM itself: the only module that imports it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .acceptance import Drafted

# Fields of a drafting configuration with a path, which is seen from the folder of the pair.
DRAFT_FIELDS = ("speculative_model", "speculative_model_dir")


class EngineFailure(Exception):
    """TensorRT-LLM did not do as it was asked; the message is for the caller."""


@dataclass(frozen=True)
class Step:
    """What one response of TensorRT-LLM adds."""

    ids: Sequence[int]
    log_probs: Sequence[float] | None
    # "" until the last.
    finish_reason: str
    drafted: Drafted | None


class Llm:
    """One engine: the target, and what drafts for it.

    Args:
        folder: holds `target/`, and `draft/` where there is one.
        arguments: of `llm_args.yaml`.
    """

    def __init__(self, folder: Path, arguments: Mapping[str, Any]) -> None:
        import tensorrt_llm
        from tensorrt_llm import llmapi

        self._sampling_params = tensorrt_llm.SamplingParams
        # The tokenizer is the public model's: ids go in and come out.
        self._llm = tensorrt_llm.LLM(
            model=str(folder / "target"),
            skip_tokenizer_init=True,
            **_as_objects(llmapi, folder, arguments),
        )

    def generate(self, prompt_ids: Sequence[int], keywords: Mapping[str, Any]) -> Generation:
        """Start a request. In the event loop that its steps are awaited in.

        Raises:
            EngineFailure: TensorRT-LLM refuses it.
        """
        try:
            parameters = self._sampling_params(**keywords)
            result = self._llm.generate_async(list(prompt_ids), parameters, streaming=True)
        except Exception as error:
            raise _failure(error) from error
        return Generation(result, scored="logprobs" in keywords)

    def close(self) -> None:
        self._llm.shutdown()


class Generation:
    """A request under way."""

    def __init__(self, result: Any, *, scored: bool) -> None:
        self._result = result
        self._scored = scored

    async def steps(self) -> AsyncIterator[Step]:
        """Yield what each response adds.

        Raises:
            EngineFailure: the request ended in an error.
        """
        seen = 0
        responses = aiter(self._result)
        while True:
            try:
                response = await anext(responses)
            except StopAsyncIteration:
                return
            except Exception as error:
                raise _failure(error) from error
            output = response.outputs[0]
            ids = list(output.token_ids[seen:])
            yield Step(
                ids=ids,
                log_probs=_log_probs(output, seen, ids) if self._scored else None,
                finish_reason=output.finish_reason or "",
                drafted=_drafted(output),
            )
            seen += len(ids)

    def stop(self) -> None:
        """Let TensorRT-LLM drop the request; one that is over is left as it is."""
        self._result.abort()


def _as_objects(llmapi: Any, folder: Path, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with the objects that the sections of the file stand for.

    A class is named after the tag in the file in all versions, whatever the spelling of the tag.
    """
    drafting = dict(arguments["speculative_config"])
    kind = getattr(llmapi, f"{drafting.pop('decoding_type').replace('_', '')}DecodingConfig")
    for field in DRAFT_FIELDS:
        if field in drafting:
            drafting[field] = str(folder / drafting[field])
    return {
        **arguments,
        "kv_cache_config": llmapi.KvCacheConfig(**arguments["kv_cache_config"]),
        "speculative_config": kind(**drafting),
    }


def _log_probs(output: Any, seen: int, ids: Sequence[int]) -> list[float]:
    """Return one for each id; of the likeliest tokens beside them nothing is wanted."""
    entries = (output.logprobs or [])[seen : seen + len(ids)]
    if len(entries) != len(ids) or any(i not in entry for i, entry in zip(ids, entries, strict=True)):
        raise EngineFailure("TensorRT-LLM gave no log-probs for some tokens; leave return_log_probs out")
    return [float(entry[i].logprob) for i, entry in zip(ids, entries, strict=True)]


def _drafted(output: Any) -> Drafted | None:
    metrics = getattr(output, "request_perf_metrics", None)
    counted = getattr(metrics, "speculative_decoding", None)
    if counted is None:
        return None
    return Drafted(int(counted.total_draft_tokens), int(counted.total_accepted_draft_tokens))


def _failure(error: Exception) -> EngineFailure:
    return EngineFailure(f"TensorRT-LLM: {type(error).__name__}: {error}")
