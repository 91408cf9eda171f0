"""How engines behave on a few prompts, so that another machine can be seen to do the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trtspec.engines.manifest import FingerprintManifest, ProbeManifest

PROBES = (
    "The capital of France is",
    "def add(a, b):\n    return",
    "Übermorgen fahren wir nach",
)
NEW_TOKENS = 8
DECIMALS = 4


def fingerprint_of(target: Path, draft: Path | None, tokenizer: Path) -> FingerprintManifest:
    """Return what engines of the cpu runtime continue the probes with.

    Args:
        tokenizer: the folder of tokenizer.json.
    """
    prompts = _prompts(tokenizer)
    return FingerprintManifest(
        target=_probe(target, prompts), draft=None if draft is None else _probe(draft, prompts)
    )


def _prompts(tokenizer: Path) -> list[list[int]]:
    from tokenizers import Tokenizer

    loaded = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    return [loaded.encode(text).ids for text in PROBES]


def _probe(folder: Path, prompts: Sequence[Sequence[int]]) -> tuple[ProbeManifest, ...]:
    from trtspec.engines.cpu.engine import Engine
    from trtspec.engines.cpu.request import Request

    engine = Engine(folder)
    room = engine.limits.max_seq_len
    new_tokens = min(NEW_TOKENS, room // 2)
    found = []
    for prompt in prompts:
        # A draft may know fewer ids than the tokenizer has.
        ids = [i for i in prompt if i < engine.limits.known_ids][: room - new_tokens]
        if not ids:
            continue
        (answer,) = engine.generate(Request(input_ids=ids, max_new_tokens=new_tokens, return_log_probs=True))
        rounded = tuple(round(value, DECIMALS) for value in answer.log_probs or ())
        found.append(ProbeManifest(prompt_ids=tuple(ids), ids=tuple(answer.ids), log_probs=rounded))
    return tuple(found)
