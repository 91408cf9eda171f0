"""The pair's tokenizer, as the loop needs it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer as Backend

from .detokenizer import Detokenizer


class Tokenizer:
    """`tokenizer.json`, read by the `tokenizers` library."""

    def __init__(self, path: Path) -> None:
        self._backend = Backend.from_file(str(path))
        byte_ids = (self._backend.token_to_id(f"<0x{value:02X}>") for value in range(256))
        added = self._backend.get_added_tokens_decoder()
        special_ids = (i for i, token in added.items() if token.special)
        # Half of what a detokenizer decodes is one token that it has decoded before.
        self._decode_one = lru_cache(maxsize=1 << 16)(lambda token_id: self._decode([token_id]))
        self._open_ids = frozenset(i for i in (*byte_ids, *special_ids) if i is not None)

    @property
    def size(self) -> int:
        """The number of ids the tokenizer knows; the engine's vocabulary may be padded beyond it."""
        return int(self._backend.get_vocab_size())

    def encode(self, text: str, *, special_tokens: bool = True) -> tuple[int, ...]:
        """Return the ids of a prompt, with the special tokens the checkpoint puts around one.

        `special_tokens` is False where the text has them: a chat template writes its own.
        """
        return tuple(self._backend.encode(text, add_special_tokens=special_tokens).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids; special tokens have none."""
        return self._decode_one(ids[0]) if len(ids) == 1 else self._decode(ids)

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self._backend.decode(list(ids), skip_special_tokens=True))

    def detokenizer(self) -> Detokenizer:
        return Detokenizer(self.decode, self._open_ids)

    def word_variants(self, word: str) -> tuple[tuple[int, ...], ...]:
        """Return the id sequences a word has at the start of a text and after a space."""
        spellings = (word, f" {word}")
        encoded = (self._backend.encode(text, add_special_tokens=False).ids for text in spellings)
        return tuple(dict.fromkeys(tuple(ids) for ids in encoded if ids))
