"""What an OpenAI-compatible server says in a stream, and how it says that something is wrong.

Servers differ: some begin with a chunk that has a role and no text, some put the usage into a chunk
without choices, some (ik_llama.cpp, transformers serve) leave out the closing `[DONE]`, and each has a
shape of its own for errors (vLLM, TGI, trtllm-serve, llama.cpp and FastAPI are read).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

DONE = b"[DONE]"
# Where a chunk's text is: of a completion, of a chat, and of a chat's thoughts by two names.
_TEXT_KEYS = ("text", "content", "reasoning_content", "reasoning")
_ERROR_CHARACTERS = 300
# A usage beyond is no count.
MOST_TOKENS = 2**31 - 1


class SaidError(Exception):
    """The server said, inside of the stream, that it could not go on."""


@dataclass
class Transcript:
    """What a stream has said so far; `completion_tokens` is None until a usage came."""

    text: str = ""
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    done: bool = False

    @property
    def complete(self) -> bool:
        return self.done or self.finish_reason is not None

    def take(self, data: bytes) -> str:
        """Return the text that an event adds, "" for none.

        Raises:
            SaidError: with the server's words.
            ValueError: for what is no chunk of a stream.
        """
        if data.strip() == DONE:
            self.done = True
            return ""
        chunk = _json(data)
        if not isinstance(chunk, dict):
            raise ValueError(f"{type(chunk).__name__} in place of an object")
        if words := error_words(chunk):
            raise SaidError(words)
        if isinstance(usage := chunk.get("usage"), dict):
            self.prompt_tokens = _count(usage, "prompt_tokens")
            self.completion_tokens = _count(usage, "completion_tokens")
        choices = chunk.get("choices", [])
        if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
            raise ValueError("choices that are no list of objects")
        added = "".join(map(self._take_choice, choices))
        self.text += added
        return added

    def _take_choice(self, choice: dict[str, Any]) -> str:
        if choice.get("finish_reason"):
            self.finish_reason = str(choice["finish_reason"])
        # A completion's text is in the choice itself, a chat's in its delta.
        said = choice.get("delta") or choice
        if not isinstance(said, dict):
            raise ValueError("a delta that is no object")
        text = next((said[key] for key in _TEXT_KEYS if said.get(key)), "")
        if not isinstance(text, str):
            raise ValueError("text that is no string")
        return text


def error_words(value: object) -> str:
    """Return what the JSON of an error says, in one line; "" where it is none."""
    if not isinstance(value, dict):
        return ""
    error = value.get("error") or value.get("detail")
    if isinstance(error, dict):
        error = error.get("message") or error
    if not error and value.get("object") == "error":
        error = value.get("message") or "an error without a word"
    if not error:
        return ""
    text = error if isinstance(error, str) else json.dumps(error, ensure_ascii=False)
    return " ".join(text.split())[:_ERROR_CHARACTERS]


def words_of_body(body: bytes) -> str:
    """Return what the body of a refusal says: an error's words, else its beginning."""
    try:
        words = error_words(_json(body))
    except ValueError:
        words = ""
    return words or " ".join(body.decode(errors="replace").split())[:_ERROR_CHARACTERS]


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None


def _count(usage: dict[str, Any], key: str) -> int | None:
    value = usage.get(key)
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_TOKENS
    return value if is_count else None
