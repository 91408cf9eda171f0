"""Pairs that are known to share a tokenizer, or nearly, and what to build them with.

Names, licences and sizes are those of the models' pages on the Hugging Face hub.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from trtspec.errors import RecipeError

APACHE = "Apache-2.0"
LLAMA_3_2 = "Llama 3.2 Community License, gated: accept it on the model's page, then `hf auth login`"
LLAMA_3_3 = "Llama 3.3 Community License, gated: accept it on the model's page, then `hf auth login`"


@dataclass(frozen=True)
class KnownModel:
    """A model on the hub."""

    hub_id: str
    licence: str

    @property
    def folder(self) -> str:
        """Where a recipe expects its checkpoint."""
        return f"models/{self.hub_id.rpartition('/')[2]}"


@dataclass(frozen=True)
class KnownPair:
    """A target, a draft and how to build them."""

    name: str
    target: KnownModel
    draft: KnownModel
    gpus: str  # that the settings are planned for, as `trtspec plan --gpu` and --tp take them
    notes: tuple[str, ...]
    build: Mapping[str, Any]
    why: Mapping[str, str] = field(default_factory=dict)  # of single keys, beside their help


QWEN_WIDTHS = (
    "The tokenizers agree, the widths do not: the target has 152064 rows, the draft 151936 (padding).",
    "For the cpu and the tensorrt runtime build gives the draft the target's width.",
)
QWEN25_DRAFT = KnownModel("Qwen/Qwen2.5-1.5B-Instruct", APACHE)
LLAMA_1B = KnownModel("meta-llama/Llama-3.2-1B-Instruct", LLAMA_3_2)
TWO_KV_HEADS = "The draft has 12 heads and 2 KV heads: 1, 2 or 4 ranks."

PAIRS = (
    KnownPair(
        name="llama-3.3-70b",
        target=KnownModel("meta-llama/Llama-3.3-70B-Instruct", LLAMA_3_3),
        draft=LLAMA_1B,
        gpus="4 × H100",
        notes=("Both have 128256 rows and the same tokenizer: draft logits can be used too.",),
        build={"tp": 4, "max_seq_len": 8192},
        why={"tp": "The target alone is 141 GB in bfloat16."},
    ),
    KnownPair(
        name="qwen2.5-7b",
        target=KnownModel("Qwen/Qwen2.5-7B-Instruct", APACHE),
        draft=QWEN25_DRAFT,
        gpus="1 × L40S",
        notes=(
            *QWEN_WIDTHS,
            "The draft is a fifth of the target: it pays where most of its tokens are accepted.",
        ),
        build={"tp": 1, "max_seq_len": 8192},
        why={"tp": TWO_KV_HEADS},
    ),
    KnownPair(
        name="qwen2.5-14b",
        target=KnownModel("Qwen/Qwen2.5-14B-Instruct", APACHE),
        draft=QWEN25_DRAFT,
        gpus="1 × H100",
        notes=QWEN_WIDTHS,
        build={"tp": 1, "max_seq_len": 8192},
        why={"tp": TWO_KV_HEADS},
    ),
    KnownPair(
        name="qwen3-32b",
        target=KnownModel("Qwen/Qwen3-32B", APACHE),
        draft=KnownModel("Qwen/Qwen3-0.6B", APACHE),
        gpus="2 × H100",
        notes=(
            "Both have 151936 rows and the same tokenizer: draft logits can be used too.",
            "Both think before they answer; long answers make max_seq_len matter.",
        ),
        build={"tp": 2, "max_seq_len": 16384},
        why={"max_seq_len": "Their context is 40960 tokens."},
    ),
    KnownPair(
        name="deepseek-r1-distill-llama-70b",
        target=KnownModel(
            "deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "MIT; made from Llama 3.3, whose license holds too"
        ),
        draft=LLAMA_1B,
        gpus="4 × H100",
        notes=(
            "Both have 128256 rows and the same words, but DeepSeek gave special tokens of its own to ids",
            "that Llama keeps for others (begin and end of text, the roles of a chat, <think>). The draft",
            "never saw them: run `trtspec check` first, and expect more from a 1B model tuned on this",
            "target's answers.",
        ),
        build={"tp": 4, "max_seq_len": 16384},
        why={"max_seq_len": "It thinks before it answers, often for thousands of tokens."},
    ),
)


def known_pair(name: str) -> KnownPair:
    """Return a pair by its name. Raises RecipeError with the nearest one."""
    names = [pair.name for pair in PAIRS]
    if name not in names:
        close = get_close_matches(name.lower(), names, n=1, cutoff=0.4)
        meant = f"did you mean {close[0]}? " if close else ""
        raise RecipeError(f"{name}: no recipe of that name; {meant}known are {', '.join(names)}")
    return PAIRS[names.index(name)]
