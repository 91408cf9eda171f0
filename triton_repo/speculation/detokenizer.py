"""Token ids to text, one at a time, so that the pieces join to what decoding all of them gives."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

Decode = Callable[[Sequence[int]], str]

REPLACEMENT = "\ufffd"


class Detokenizer:
    """Decodes a growing sequence by a short window of it.

    A tokenizer may treat the first token of what it decodes specially (SentencePiece and WordPiece
    drop a leading space), so each new token is decoded together with those before it, and what the
    window gave before is taken off. Text is held back while it may still change: inside a character
    of several bytes, which decodes to U+FFFD, and after the tokens `open_ids`: byte tokens, a run of
    which SentencePiece decodes as a whole, and special tokens, which have no text and do not end one.
    """

    def __init__(self, decode: Decode, open_ids: Collection[int] = ()) -> None:
        self._decode = decode
        self._open_ids = open_ids
        self._ids: list[int] = []
        self._start = 0  # the window is ids[start:]
        self._emitted = 0  # and the text of ids[start:emitted] is out

    def push(self, token_id: int) -> str:
        """Return the text that this token makes certain; "" while it is held back."""
        self._ids.append(token_id)
        if token_id in self._open_ids:
            return ""
        before, text = self._window()
        if text.endswith(REPLACEMENT) or len(text) <= len(before) or not text.startswith(before):
            return ""
        self._start, self._emitted = self._emitted, len(self._ids)
        return text[len(before) :]

    def flush(self) -> str:
        """Return what is still held back; the sequence is over."""
        before, text = self._window()
        self._start = self._emitted = len(self._ids)
        return text[len(before) :]

    def _window(self) -> tuple[str, str]:
        return self._decode(self._ids[self._start : self._emitted]), self._decode(self._ids[self._start :])
