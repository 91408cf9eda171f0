"""The reference: a Hugging Face checkpoint in float32, run by transformers."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trtspec.client.fp8_reference import FP8_TIE_LOGITS, is_fp8, load_fp8
from trtspec.client.verify import Choice
from trtspec.errors import CheckpointError, ClientError


class HuggingFaceReference:
    """A causal language model in float32 on the CPU, one pass for a whole answer.

    Args:
        folder: config.json and weights.
        tokenizer: the folder of the tokenizer's files, where it is another.

    Raises:
        CheckpointError: when transformers cannot load either.
        ClientError: when torch or transformers is not installed.
    """

    def __init__(self, folder: Path, tokenizer: Path | None = None) -> None:
        try:
            import torch
            from transformers import AutoModelForCausalLM, AutoTokenizer
        except ImportError as error:
            raise ClientError(
                f"verify: the reference needs {error.name}, which is not installed; "
                "run: pip install 'trtspec[build]'"
            ) from error
        self._torch = torch
        self._folder = folder
        self._tokenizer = _load(AutoTokenizer, tokenizer or folder)
        self._fp8 = is_fp8(folder)
        self._model = (
            _load_fp8(folder) if self._fp8 else _load(AutoModelForCausalLM, folder, dtype=torch.float32)
        ).eval()
        # Only the answer's rows are wanted; logits of a long prompt times a large vocabulary are not small.
        self._keeps_rows = "logits_to_keep" in inspect.signature(self._model.forward).parameters

    @property
    def name(self) -> str:
        kind = "float32 on dequantised FP8" if self._fp8 else "float32"
        return f"{self._folder} (Hugging Face transformers, {kind})"

    @property
    def vocab_size(self) -> int:
        return int(self._model.get_input_embeddings().weight.shape[0])

    @property
    def end_ids(self) -> frozenset[int]:
        end = self._model.generation_config.eos_token_id
        return frozenset(() if end is None else [end] if isinstance(end, int) else end)

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text)["input_ids"])

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(token_ids), clean_up_tokenization_spaces=False))

    def choices(self, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> list[Choice]:
        """Return the two best tokens at each position of the answer and after it: n + 1 choices."""
        torch, rows = self._torch, len(answer_ids) + 1
        ids = torch.tensor([[*prompt_ids, *answer_ids]])
        keep = {"logits_to_keep": rows} if self._keeps_rows else {}
        with torch.inference_mode():
            logits_TV = self._model(ids, use_cache=False, **keep).logits[0, -rows:]
        best_T2, ids_T2 = logits_TV.topk(2)
        margins = (best_T2[:, 0] - best_T2[:, 1]).tolist()
        return [
            Choice(best, second, margin, tie=self._fp8 and margin < FP8_TIE_LOGITS)
            for (best, second), margin in zip(ids_T2.tolist(), margins, strict=True)
        ]


# Loading catches whatever transformers, safetensors and torch raise for a folder they cannot use: their
# errors have no common base.
def _load(auto_class: Any, folder: Path, **options: Any) -> Any:
    if not (folder / "config.json").is_file() and not (folder / "tokenizer_config.json").is_file():
        raise CheckpointError(
            f"{folder}: found no Hugging Face folder, expected config.json and *.safetensors; "
            "pass the checkpoint that the engines were built from with --reference"
        )
    try:
        with _no_progress_bar():
            return auto_class.from_pretrained(folder, local_files_only=True, **options)
    except Exception as error:
        raise CheckpointError(f"{folder}: transformers cannot load it: {error}") from error


def _load_fp8(folder: Path) -> Any:
    try:
        with _no_progress_bar():
            return load_fp8(folder)
    except Exception as error:
        raise CheckpointError(f"{folder}: transformers cannot load it: {error}") from error


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Keep transformers from drawing on stderr; what it was set to comes back."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
