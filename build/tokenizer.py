"""The tokenizer of a pair."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

from trtspec.build.json_file import write_json
from trtspec.build.runtimes.job import Job
from trtspec.build.stages import Done, NoFacts, Stage
from trtspec.errors import CheckpointError


def tokenizer_stage(job: Job) -> Stage:
    """Return the step that writes the tokenizer."""
    return Stage("tokenizer", partial(_write, job), sources=("target",), place="tokenizer")


def _write(job: Job, folder: Path, done: Done) -> NoFacts:
    """Write the tokenizer as transformers would run it.

    Loading it may change what tokenizer.json says (add_bos_token, SentencePiece models), and its class
    may bring special tokens that no file names, so the effective ones are written.
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoTokenizer

    checkpoint = job.target
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            checkpoint.path, local_files_only=True, trust_remote_code=False
        )
        backend = tokenizer.backend_tokenizer
    # It reads config.json too, whose faults have errors of other kinds.
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StrictDataclassError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{checkpoint.path}: no tokenizer that can be used ({reason})") from error
    backend.no_truncation()
    backend.no_padding()
    (folder / "tokenizer.json").write_text(backend.to_str(pretty=False), "utf-8")
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        if (checkpoint.path / name).is_file():
            shutil.copyfile(checkpoint.path / name, folder / name)
    named = tokenizer.special_tokens_map.items()
    special_tokens = {name: str(token) for name, token in named if name.endswith("_token")}
    write_json(folder / "special_tokens_map.json", special_tokens)
    return NoFacts()
