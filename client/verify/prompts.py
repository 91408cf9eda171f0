"""What `trtspec verify` asks when it is given no prompts."""

from __future__ import annotations

import json
from importlib.resources import files

# Code first, in several languages; then prose and scripts of one to four bytes a character, which a
# tokenizer cuts inside. The first 20 are those of `trtspec demo`.
DEFAULT_PROMPTS: tuple[str, ...] = tuple(
    json.loads(line)
    for line in files("trtspec.client.verify").joinpath("prompts.jsonl").read_text("utf-8").split("\n")
    if line
)
