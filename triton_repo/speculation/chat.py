"""A conversation to the text of a prompt, by the checkpoint's own template.

The result is that of transformers' `apply_chat_template(..., add_generation_prompt=True)`. The
template is the checkpoint's code and the messages are the caller's data: the sandbox lets neither
reach Python, and both are bounded.

The files are those that transformers reads beside `tokenizer.json`: `chat_template.jinja`, else
`chat_template` in `tokenizer_config.json`; the special tokens that a template may name are in that
file, or in `special_tokens_map.json`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .request import RequestError

MAX_MESSAGES = 1024
MAX_MESSAGES_CHARACTERS = 4 << 20
# Templates add some words around each message; one that writes more than this has gone astray.
MAX_PROMPT_CHARACTERS = 16 << 20

Message = dict[str, str]


NO_TEMPLATE = (
    "this model has no chat template; give it one with `trtspec repo --chat-template FILE`, "
    "or send the prompt as text_input"
)


class Chat:
    """Conversations of one model; where there is no template that works, each is refused with the reason."""

    def __init__(self, tokenizer_folder: Path) -> None:
        self._template: ChatTemplate | None = None
        self._reason = NO_TEMPLATE
        try:
            self._template = load_template(tokenizer_folder)
        except (ValueError, OSError, ImportError) as error:
            self._reason = str(error)

    def prompt(self, messages: str) -> str:
        """Return the text of the prompt for a conversation in JSON."""
        conversation = read_messages(messages)
        if self._template is None:
            raise RequestError(f"messages: {self._reason}")
        return self._template.render(conversation)


class ChatTemplate:
    """A checkpoint's template, compiled once. ValueError: it cannot be read."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        from jinja2 import TemplateError

        from .chat_sandbox import Sandbox

        self._special_tokens = dict(special_tokens)
        try:
            self._template = Sandbox().from_string(source)
        except TemplateError as error:
            raise ValueError(f"the chat template cannot be read: {error}") from error

    def render(self, messages: list[Message]) -> str:
        """Return the prompt, ending where the assistant is to speak; RequestError when there is none.

        The template writes the special tokens, so whoever tokenises the prompt must add none.
        """
        from .chat_sandbox import TemplateRefusal

        pieces: list[str] = []
        length = 0
        try:
            for piece in self._template.generate(
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._special_tokens,
            ):
                pieces.append(piece)
                length += len(piece)
                if length > MAX_PROMPT_CHARACTERS:
                    raise TemplateRefusal(f"more than {MAX_PROMPT_CHARACTERS} characters of prompt")
        except TemplateRefusal as refusal:
            raise RequestError(f"messages: refused by the chat template: {refusal}") from refusal
        # A template is a program of its own, and may fail in any way.
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise RequestError(f"messages: the chat template failed on them: {reason}") from error
        return "".join(pieces)


def load_template(folder: Path) -> ChatTemplate | None:
    """Return the template in a tokenizer's folder, None where there is none; ValueError for a broken one."""
    config = _read_json(folder / "tokenizer_config.json")
    file = folder / "chat_template.jinja"
    source = file.read_text("utf-8") if file.is_file() else _default(config.get("chat_template"))
    if not source:
        return None
    return ChatTemplate(source, _special_tokens(config | _read_json(folder / "special_tokens_map.json")))


def read_messages(text: str) -> list[Message]:
    """Return the checked conversation; RequestError says what is wrong with it."""
    if len(text) > MAX_MESSAGES_CHARACTERS:
        raise RequestError(f"messages: {len(text)} characters, expected at most {MAX_MESSAGES_CHARACTERS}")
    try:
        messages = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"messages: not JSON ({error}); send a list of {{role, content}}") from error
    if not isinstance(messages, list) or not 0 < len(messages) <= MAX_MESSAGES:
        found = len(messages) if isinstance(messages, list) else type(messages).__name__
        raise RequestError(
            f"messages: found {found}, expected a JSON list of 1 to {MAX_MESSAGES}, each {{role, content}}"
        )
    for index, message in enumerate(messages):
        _check(index, message)
    return messages


def _check(index: int, message: object) -> None:
    fields = sorted(message) if isinstance(message, dict) else type(message).__name__
    if not isinstance(message, dict) or fields != ["content", "role"]:
        raise RequestError(f"messages: message {index} has {fields!s:.200}, expected role and content")
    for field, value in message.items():
        if not isinstance(value, str):
            raise RequestError(
                f"messages: {field} of message {index} is {type(value).__name__}, expected a text"
            )


def _read_json(file: Path) -> dict[str, Any]:
    values = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    if not isinstance(values, dict):
        raise ValueError(f"{file.name}: expected a JSON object")
    return values


def _default(template: object) -> str:
    """Return the default one of named templates, which the config holds in a list."""
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    return template if isinstance(template, str) else ""


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Return them by name; the files spell a token as a text, or as an object with `content`."""
    named = {name: value for name, value in config.items() if name.endswith("_token")}
    texts = {
        name: value.get("content") if isinstance(value, dict) else value for name, value in named.items()
    }
    return {name: text for name, text in texts.items() if isinstance(text, str)}
