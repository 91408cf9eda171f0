"""The reference: a Hugging Face checkpoint in float32, run by transformers."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from trtspec.choices import DTYPES, Dtype
from trtspec.client._options import Message
from trtspec.client.verify.findings import Finding
from trtspec.client.verify.fp8 import DEQUANTISED, is_fp8, load_fp8
from trtspec.client.verify.loading import no_progress_bar
from trtspec.client.verify.reference import Rows
from trtspec.client.verify.self_test import PART, known_answer
from trtspec.digest import sha256
from trtspec.errors import CheckpointError, ClientError


class HuggingFaceReference:
    """A causal language model in float32 on the CPU, one pass for a whole answer.

    Args:
        folder: config.json and weights.
        tokenizer: the folder of the tokenizer's files, where it is another.
        built_from: SHA-256, by name, of the files that the served engines were built from, where that is
            known; `proofs` says whether the folder has them.

    Raises:
        CheckpointError: when transformers cannot load either.
        ClientError: when torch or transformers is not installed.
    """

    def __init__(
        self,
        folder: Path,
        tokenizer: Path | None = None,
        *,
        built_from: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
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
        self._built_from = built_from
        self._hashes: dict[str, str] = {}
        self._tokenizer = _load(AutoTokenizer, tokenizer or folder)
        self._fp8 = is_fp8(folder)
        self._stored_dtype = _stored_dtype(folder)
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
    def about(self) -> dict[str, str]:
        """Versions, how it computes, and hashes of the files that decide what it says."""
        import transformers

        files = [self._folder / "config.json", *sorted(self._folder.glob("*.safetensors"))]
        return {
            "torch": str(self._torch.__version__),
            "transformers": str(transformers.__version__),
            "computes": "float32 on dequantised FP8" if self._fp8 else "float32",
            **{f"sha256 {file.name}": self._sha256(file.name) for file in files},
        }

    def proofs(self) -> Iterator[Finding]:
        """Yield what it can show for itself: a known answer, that codes became weights, and its source."""
        yield known_answer()
        if self._built_from:
            yield self._source()
        if self._fp8:
            count = sum(hasattr(module, DEQUANTISED) for module in self._model.modules())
            detail = f"{count} matrices are their FP8 codes times their scales, and not the codes"
            yield Finding(PART, "dequantised", "ok" if count else "defect", detail)

    @property
    def vocab_size(self) -> int:
        return int(self._model.get_input_embeddings().weight.shape[0])

    @property
    def arithmetic(self) -> Dtype:
        return "fp8" if self._fp8 else "float32"

    @property
    def layers(self) -> int:
        return int(self._model.config.get_text_config().num_hidden_layers)

    @property
    def width(self) -> int:
        return int(self._model.get_input_embeddings().weight.shape[1])

    @property
    def dtype(self) -> Dtype:
        """What the checkpoint is stored in, which is what engines compute in unless told otherwise."""
        stored = self._stored_dtype
        return "fp8" if self._fp8 else next((known for known in DTYPES if known == stored), "float32")

    @property
    def end_ids(self) -> frozenset[int]:
        end = self._model.generation_config.eos_token_id
        return frozenset(() if end is None else [end] if isinstance(end, int) else end)

    @property
    def bos_id(self) -> int | None:
        return None if self._tokenizer.bos_token_id is None else int(self._tokenizer.bos_token_id)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=special)["input_ids"])

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(token_ids), clean_up_tokenization_spaces=False))

    def render(self, messages: Sequence[Message]) -> list[int] | None:
        """Return the ids of a chat by the checkpoint's own template; None when it has none."""
        if not self._tokenizer.chat_template:
            return None
        rendered = self._tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=True, tokenize=True, return_dict=False
        )
        return list(rendered)

    def logits(self, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> Rows:
        """Return the logits at each position of the answer and after it, float32 [n + 1, vocab_size]."""
        torch, rows = self._torch, len(answer_ids) + 1
        ids = torch.tensor([[*prompt_ids, *answer_ids]])
        keep = {"logits_to_keep": rows} if self._keeps_rows else {}
        with torch.inference_mode():
            logits_TV: Rows = self._model(ids, use_cache=False, **keep).logits[0, -rows:].numpy()
        return logits_TV

    def _source(self) -> Finding:
        """Whether it is what the served engines were built from, file by file."""
        there = [name for name in sorted(self._built_from) if (self._folder / name).is_file()]
        others = [name for name in there if self._sha256(name) != self._built_from[name]]
        missing = sorted(self._built_from.keys() - there)
        if not (others or missing):
            detail = f"the {len(there)} files that the engines were built from, by SHA-256"
            return Finding(PART, "source", "ok", detail)
        found = [("differs", others), ("is missing", missing)]
        listed = "; ".join(f"{', '.join(names)} {what}" for what, names in found if names)
        detail = (
            f"{self._folder} is not what the engines were built from, which may be why answers differ: "
            f"{listed} (of {len(self._built_from)} files of the manifest, by SHA-256)"
        )
        return Finding(PART, "source", "note", detail)

    def _sha256(self, name: str) -> str:
        """Return the SHA-256 of a file of its folder, which is read once."""
        if name not in self._hashes:
            self._hashes[name] = sha256(self._folder / name)
        return self._hashes[name]


# Loading catches whatever transformers, safetensors and torch raise for a folder they cannot use: their
# errors have no common base.
def _load(auto_class: Any, folder: Path, **options: Any) -> Any:
    if not (folder / "config.json").is_file() and not (folder / "tokenizer_config.json").is_file():
        raise CheckpointError(
            f"{folder}: found no Hugging Face folder, expected config.json and *.safetensors; "
            "pass the checkpoint that the engines were built from with --reference"
        )
    try:
        with no_progress_bar():
            return auto_class.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False, **options
            )
    except Exception as error:
        raise CheckpointError(f"{folder}: transformers cannot load it: {error}") from error


def _load_fp8(folder: Path) -> Any:
    try:
        with no_progress_bar():
            return load_fp8(folder)
    except Exception as error:
        raise CheckpointError(f"{folder}: transformers cannot load it: {error}") from error


def _stored_dtype(folder: Path) -> str:
    """Return the dtype of config.json, in either spelling of its key; "" when it has none."""
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return ""  # transformers says what is wrong with it
    return str(config.get("dtype") or config.get("torch_dtype") or "").removeprefix("torch.")
