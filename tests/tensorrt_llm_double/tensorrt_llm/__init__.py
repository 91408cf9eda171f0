"""A double of TensorRT-LLM: its LLM API, as far as the public model uses it, without a model.

It continues a prompt by repeating it, a round of draft tokens at a time, and refuses what the release
would refuse and what it would ignore. `double.json` beside this file says which release it is, how long a
round takes and what goes wrong; what was done with requests is written down in `double.log`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from . import llmapi as llmapi
from .llm_args import check_arguments

HERE = Path(__file__).parent

DEFAULTS = {
    "version": "1.4.0rc4",
    "round_s": 0.0,
    "accepted": [2, 0, 4, 1],
    "returns_end": True,
    "scores": True,
}


def settings() -> dict[str, Any]:
    """What holds now: a test may change the file between requests."""
    file = HERE / "double.json"
    return DEFAULTS | (json.loads(file.read_text()) if file.is_file() else {})


__version__ = settings()["version"]

KEYWORDS = {
    *("end_id", "max_tokens", "min_tokens", "stop_token_ids", "top_k", "top_p", "temperature", "seed"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "prompt_ignore_length"),
    *("logprobs", "detokenize", "return_perf_metrics"),
}


def log(event: str) -> None:
    with (HERE / "double.log").open("a") as file:
        file.write(f"{event}\n")


class SamplingParams:
    def __init__(self, **keywords: Any) -> None:
        if unknown := keywords.keys() - KEYWORDS:
            raise TypeError(f"SamplingParams got unexpected keyword arguments {sorted(unknown)}")
        self.given = keywords


class LLM:
    def __init__(self, model: str, *, skip_tokenizer_init: bool, **arguments: Any) -> None:
        drafting, cache = arguments.pop("speculative_config"), arguments.pop("kv_cache_config")
        plain = {
            **arguments,
            "speculative_config": drafting.tagged(__version__),
            "kv_cache_config": cache.given,
        }
        check_arguments(__version__, plain)
        folders = [model, *(drafting.given[f] for f in llmapi.DRAFT_FIELDS if f in drafting.given)]
        for folder in folders:
            if not (Path(folder) / "config.json").is_file():
                raise FileNotFoundError(folder)
        given = drafting.given
        self.max_draft_len = given.get("max_draft_len") or given["num_nextn_predict_layers"]
        self.one_engine = not __version__.startswith("1.2")
        self.samples = not self.one_engine or given.get("allow_advanced_sampling", False)
        self.penalties = not self.one_engine or given.get("enable_penalty", False)
        log(f"loaded {len(folders)}")

    def generate_async(self, inputs: list[int], parameters: SamplingParams, *, streaming: bool) -> Result:
        asyncio.get_running_loop()
        given = parameters.given
        if given.get("top_k") != 1 and not self.samples:
            raise ValueError("sampling would be ignored")
        if not self.penalties and (given["repetition_penalty"] != 1 or "presence_penalty" in given):
            raise ValueError("penalties would be ignored")
        if refusal := settings().get("refuse"):
            raise ValueError(refusal)
        log(f"request {json.dumps(given, sort_keys=True)}")
        return Result(inputs, given, self.max_draft_len)

    def shutdown(self) -> None:
        log("shutdown")


class Result:
    def __init__(self, prompt: list[int], given: dict[str, Any], max_draft_len: int) -> None:
        self._prompt, self._given, self._max_draft_len = prompt, given, max_draft_len
        self._settings = settings()
        self._aborted = False

    def abort(self) -> None:
        self._aborted = True
        log("abort")

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._run()

    async def _run(self) -> AsyncIterator[Any]:
        ids: list[int] = []
        ends = {self._given["end_id"], *self._given.get("stop_token_ids", [])}
        proposed = accepted = 0
        reason = None
        plan = [0, *self._settings["accepted"] * self._given["max_tokens"]]
        for number, kept in enumerate(plan):
            await asyncio.sleep(self._settings["round_s"])
            if self._aborted:
                return
            if self._settings.get("hang_after") == number:
                await asyncio.sleep(3600)
            if self._settings.get("fail_after") == number:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            if number:
                proposed += self._max_draft_len
            for _ in range(1 + min(kept, self._max_draft_len)):
                token = self._prompt[len(ids) % len(self._prompt)]
                if token in ends:
                    reason = "stop"
                    if self._settings["returns_end"]:
                        ids.append(token)
                    break
                ids.append(token)
                if len(ids) == self._given["max_tokens"]:
                    reason = "length"
                    break
            accepted = len(ids) - 1 - number if number else 0
            if reason:
                log(f"finished {reason}")
            yield SimpleNamespace(outputs=[self._output(ids, reason, proposed, accepted)])
            if reason:
                return

    def _output(self, ids: list[int], reason: str | None, proposed: int, accepted: int) -> Any:
        scores = None
        if "logprobs" in self._given and self._settings["scores"]:
            scores = [{i: SimpleNamespace(logprob=-i / 1000)} for i in ids]
        counts = SimpleNamespace(total_draft_tokens=proposed, total_accepted_draft_tokens=max(accepted, 0))
        metrics = SimpleNamespace(speculative_decoding=counts) if reason else None
        return SimpleNamespace(
            token_ids=list(ids), logprobs=scores, finish_reason=reason, request_perf_metrics=metrics
        )
