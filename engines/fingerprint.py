"""How engines behave on a few prompts, so that another machine can be seen to do the same."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trtspec.choices import Dtype
from trtspec.dtype_noise import Noise
from trtspec.engines.load import load_engine
from trtspec.engines.manifest import FingerprintManifest, ProbeManifest
from trtspec.errors import EngineError

PROBES = (
    "The capital of France is",
    "def add(a, b):\n    return",
    "Übermorgen fahren wir nach",
)
NEW_TOKENS = 8
DECIMALS = 6


def fingerprint_of(
    target: Path, draft: Path | None, tokenizer: Path, dtypes: Mapping[str, Dtype]
) -> FingerprintManifest:
    """Return what engines of the cpu runtime continue the probes with.

    Args:
        tokenizer: the folder of tokenizer.json.
        dtypes: what each engine computes in, by its role.

    Raises:
        EngineError: an engine cannot be run as it is, or what it says are no numbers.
    """
    prompts = _prompts(tokenizer)
    return FingerprintManifest(
        target=_probe("target", target, prompts, dtypes["target"]),
        draft=None if draft is None else _probe("draft", draft, prompts, dtypes["draft"]),
    )


def _prompts(tokenizer: Path) -> list[list[int]]:
    from tokenizers import Tokenizer

    loaded = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    return [loaded.encode(text).ids for text in PROBES]


def _probe(
    role: str, folder: Path, prompts: Sequence[Sequence[int]], dtype: Dtype
) -> tuple[ProbeManifest, ...]:
    from trtspec.engines.cpu.request import Request

    engine = load_engine(folder)
    noise = _noise(folder, dtype)
    room = engine.limits.max_seq_len
    new_tokens = min(NEW_TOKENS, room // 2)
    found = []
    for prompt in prompts:
        # A draft may know fewer ids than the tokenizer has.
        ids = [i for i in prompt if i < engine.limits.known_ids][: room - new_tokens]
        if not (ids and new_tokens):
            continue
        request = Request(
            input_ids=ids, max_new_tokens=new_tokens, return_log_probs=True, return_generation_logits=True
        )
        (answer,) = engine.generate(request)
        assert answer.log_probs is not None
        assert answer.logits is not None
        # Ids that only the other model has are -inf here.
        if not np.isfinite(answer.logits.max(axis=-1)).all():
            raise EngineError(
                f"the {role}'s engine says NaN or infinite logits where it continues {ids}; its weights "
                "overflow, or its config.json does not belong to them"
            )
        found.append(
            ProbeManifest(
                prompt_ids=tuple(ids),
                ids=tuple(answer.ids),
                log_probs=tuple(round(value, DECIMALS) for value in answer.log_probs),
                margins=tuple(_margin(row_V) for row_V in answer.logits),
                tolerances=tuple(_rounded_up(noise.bound(row_V)) for row_V in answer.logits),
            )
        )
    return tuple(found)


def _noise(folder: Path, dtype: Dtype) -> Noise:
    from transformers import AutoConfig

    loaded = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    config = loaded.get_text_config()
    return Noise(dtype, config.num_hidden_layers, config.hidden_size)


def _margin(row_V: NDArray[np.float32]) -> float:
    second, best = np.partition(row_V, -2)[-2:]
    return round(float(best - second), DECIMALS)


def _rounded_up(bound: float) -> float:
    """Return a bound for log-probs that were rounded themselves."""
    step = 10.0**-DECIMALS
    return round((math.ceil(bound / step) + 1) * step, DECIMALS)
