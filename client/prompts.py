"""What `trtspec verify` asks when it is given no prompts, and how a file of prompts is read."""

from __future__ import annotations

import json
from pathlib import Path

from trtspec.client._errors import InvalidArgument

# Python first, for code models and the demo pair; then prose and scripts of one to four bytes a
# character, which a tokenizer cuts inside.
DEFAULT_PROMPTS = (
    "def fibonacci(n):\n    ",
    "import os\nimport sys\n\n\ndef main(",
    "class Stack:\n    def __init__(self):\n        self._items = []\n\n    def push(self",
    "    try:\n        with open(path, encoding='utf-8') as file:\n            return file.read()\n"
    "    except",
    "for index, line in enumerate(lines):\n    if not line.strip():\n        ",
    '"""Read a table from a file.\n\nThe first row holds the names of the columns.\n"""\n\nimport csv\n',
    "def test_an_empty_list_has_no_largest_element(self):\n        with self.assertRaises(",
    "async def handle(reader, writer):\n    data = await reader.readline()\n    ",
    "@property\n    def name(self):\n        return self._name\n\n    @name.setter\n",
    "SELECT name, COUNT(*) FROM orders WHERE total > 100 GROUP BY",
    "int main(int argc, char **argv) {\n    if (argc < 2) {\n        ",
    '{"name": "example", "version": "1.0.0", "dependencies": {',
    "The capital of France is",
    "Once upon a time, in a village by the sea, there lived",
    "1, 1, 2, 3, 5, 8, 13,",
    "Die Donau entspringt im Schwarzwald und mündet ins",
    "Столица России — это",
    "日本で一番高い山は",
    "عاصمة مصر هي",
    "Write three emoji that mean spring: 🌸🌱",
)


def read_prompts(path: Path) -> tuple[str, ...]:
    """Return the prompts of a file: JSON Lines where it is named so, else one prompt a line.

    A line of JSON is a string or an object with a "prompt". Empty lines are passed over.

    Raises:
        InvalidArgument: naming the line that is neither, or a file that holds no prompt or no text.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path}: cannot be read as UTF-8 text: {error}") from None
    # Not splitlines: that also cuts at U+2028 and the like, which JSON strings may hold.
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise InvalidArgument(f"{path}: found no prompts, expected one a line")
    if path.suffix in (".jsonl", ".ndjson"):
        return tuple(_prompt_of(line, f"{path}:{number}") for number, line in lines)
    return tuple(line.removesuffix("\r") for _, line in lines)


def _prompt_of(line: str, where: str) -> str:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise InvalidArgument(f"{where}: no JSON: {error}") from None
    prompt = value.get("prompt") if isinstance(value, dict) else value
    if not isinstance(prompt, str) or not prompt:
        raise InvalidArgument(f'{where}: found {line[:60]}, expected a string or {{"prompt": "a string"}}')
    return prompt
