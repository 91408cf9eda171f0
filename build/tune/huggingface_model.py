"""A model in transformers' own modules, for devices that the embedded engine has no code for.

Not yet run on a GPU; tested on the CPU against the embedded engine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trtspec.errors import CheckpointError


class HuggingFaceModel:
    """A causal language model on a torch device, in the dtype it is stored in.

    Args:
        folder: a Hugging Face checkpoint.
        end_ids: the tokens that end an answer.

    Raises:
        CheckpointError: when transformers cannot load it there.
    """

    def __init__(
        self,
        folder: Path,
        end_ids: Sequence[int],
        device: str,
        *,
        dtype: str = "auto",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        from trtspec.engines.cpu.transformers_model import cache_argument

        loader: Any = AutoModelForCausalLM
        try:
            model = loader.from_pretrained(
                folder, dtype=dtype, local_files_only=True, trust_remote_code=False
            ).to(device)
        # transformers, safetensors and torch have no common error, and no memory is one of them.
        except Exception as error:
            raise CheckpointError(f"{folder}: cannot be loaded on {device}: {error}") from error
        self._torch = torch
        self._model = model.eval()
        self._cache_argument = cache_argument(model)
        self._ends = list(end_ids)
        self._device = device
        self._clock = clock

    def answer(self, prompt_ids: Sequence[int], max_tokens: int) -> list[int]:
        torch = self._torch
        prompt = torch.tensor([list(prompt_ids)], device=self._device)
        with torch.inference_mode():
            ids = self._model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=max_tokens,
                do_sample=False,
                eos_token_id=self._ends or None,
                pad_token_id=self._ends[0] if self._ends else 0,
            )
        return [int(token) for token in ids[0, len(prompt_ids) :]]

    def agrees(self, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> list[bool]:
        torch = self._torch
        known = int(self._model.get_input_embeddings().weight.shape[0])
        ids = [*prompt_ids, *answer_ids]
        beyond = next((place for place, token in enumerate(ids) if token >= known), len(ids))
        if beyond <= len(prompt_ids):
            return []
        read = torch.tensor([ids[: beyond - 1]], device=self._device)
        with torch.inference_mode():
            choices = self._model(read, use_cache=False).logits[0].argmax(-1).tolist()
        answer = ids[len(prompt_ids) : beyond]
        return [a == b for a, b in zip(answer, choices[len(prompt_ids) - 1 :], strict=True)]

    def pass_seconds(self, sequences: int, rows: int, context: int) -> float:
        from transformers import DynamicCache

        torch = self._torch
        cached: dict[str, Any] = {self._cache_argument: DynamicCache()}
        known = int(self._model.get_input_embeddings().weight.shape[0])
        ids = (torch.arange(sequences)[:, None] + 31 * torch.arange(context + rows - 1)) % known
        ids = ids.to(self._device)
        with torch.inference_mode():
            if context > 1:
                self._model(ids[:, : context - 1], use_cache=True, **cached)
            self._synchronise()
            started = self._clock()
            self._model(ids[:, context - 1 :], use_cache=True, **cached)
            self._synchronise()
        return self._clock() - started

    def _synchronise(self) -> None:
        """Wait until the device has done what it was given."""
        if self._device.startswith("cuda"):
            self._torch.cuda.synchronize()
