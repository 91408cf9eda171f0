"""Two checkpoints in, an engine pair out."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtspec import __version__
from trtspec.build.check.doctor import PairReport, check
from trtspec.build.checkpoint import Checkpoint, open_checkpoint
from trtspec.engines.pair import (
    EngineDtype,
    EngineManifest,
    EnginePair,
    EngineSettings,
    Manifest,
    Runtime,
    open_pair,
    write_manifest,
)
from trtspec.engines.publish import check_output, publish
from trtspec.errors import BuildError, CheckpointError, PairError

# A default that fits a laptop; the context of a large model would ask for gigabytes of KV cache.
DEFAULT_MAX_SEQ_LEN = 4096
CHUNK_BYTES = 1 << 22

Report = Callable[[str], None]


@dataclass(frozen=True)
class BuildOptions:
    """What the engines of a pair shall hold."""

    runtime: Runtime = "cpu"
    dtype: EngineDtype = "float32"
    # Tokens of prompt and answer together; None: the target's context, at most DEFAULT_MAX_SEQ_LEN.
    max_seq_len: int | None = None
    # Sequences in flight.
    max_batch_size: int = 16
    # Draft tokens in a round.
    max_draft_len: int = 8


def build(
    target: Path, draft: Path, output: Path, options: BuildOptions | None = None, *, report: Report = print
) -> EnginePair:
    """Build the engine pair `output` from two Hugging Face folders.

    Args:
        report: called with a line for each step and each finding of the pair check.

    Raises:
        OutputError, CheckpointError: the folders cannot be used.
        PairError: the checkpoints do not fit each other.
        BuildError: an option is out of range.
    """
    options = options or BuildOptions()
    check_output(output)
    checkpoints = open_checkpoint(target), open_checkpoint(draft)
    found = _check_pair(*checkpoints, report)
    lengths = _lengths(*checkpoints, options)
    vocab_size = max(checkpoint.vocab_size for checkpoint in checkpoints)
    with publish(output) as folder:
        engines = []
        for name, checkpoint, max_seq_len in zip(("target", "draft"), checkpoints, lengths, strict=True):
            report(f"{name}: {checkpoint.architecture} from {checkpoint.path}")
            (folder / name).mkdir()
            settings = EngineSettings(
                dtype=options.dtype,
                max_seq_len=max_seq_len,
                max_batch_size=options.max_batch_size,
                max_draft_len=options.max_draft_len,
                vocab_size=vocab_size,
            )
            engines.append(_write_engine(checkpoint, folder / name, settings, found.eos_token_ids))
        _write_tokenizer(checkpoints[0], folder / "tokenizer")
        manifest = Manifest(
            trtspec_version=__version__,
            runtime=options.runtime,
            target=engines[0],
            draft=engines[1],
            eos_token_ids=found.eos_token_ids,
            repairs=tuple(finding.id for finding in found.findings if finding.repairable),
            tokenizer_sha256=_sha256(folder / "tokenizer" / "tokenizer.json"),
        )
        write_manifest(manifest, folder)
    return open_pair(output)


def _check_pair(target: Checkpoint, draft: Checkpoint, report: Report) -> PairReport:
    found = check(target, draft)
    errors = [finding for finding in found.findings if finding.severity == "error"]
    if errors:
        more = f" (and {len(errors) - 1} more; see `trtspec check`)" if len(errors) > 1 else ""
        raise PairError(f"{errors[0].message}; {errors[0].repair}{more}")
    for finding in found.findings:
        report(f"{finding.severity}: {finding.message}")
    return found


def _lengths(target: Checkpoint, draft: Checkpoint, options: BuildOptions) -> tuple[int, int]:
    """Return how many tokens the target and the draft engine hold."""
    context = _context(target)
    default = min(context, DEFAULT_MAX_SEQ_LEN)
    wanted = default if options.max_seq_len is None else options.max_seq_len
    faults = (
        (not 1 < wanted <= context, f"max_seq_len is {wanted}, the target's context is {context} tokens"),
        (options.max_draft_len < 1, f"max_draft_len is {options.max_draft_len}, expected at least 1"),
        (options.max_batch_size < 1, f"max_batch_size is {options.max_batch_size}, expected at least 1"),
    )
    for wrong, message in faults:
        if wrong:
            raise BuildError(message)
    return wanted, min(wanted, _context(draft))


def _context(checkpoint: Checkpoint) -> int:
    for key in ("max_position_embeddings", "n_positions"):
        if isinstance(checkpoint.config.get(key), int):
            return int(checkpoint.config[key])
    raise CheckpointError(
        f"{checkpoint.path / 'config.json'}: no max_position_embeddings, so its context is unknown"
    )


def _write_engine(
    checkpoint: Checkpoint, folder: Path, settings: EngineSettings, eos_token_ids: tuple[int, ...]
) -> EngineManifest:
    """The cpu engine is the checkpoint itself, with what it may hold beside it."""
    _write_json(folder / "engine.json", settings.model_dump())
    _write_json(folder / "config.json", checkpoint.config)
    ends = {"eos_token_id": list(eos_token_ids)} if eos_token_ids else {}
    _write_json(folder / "generation_config.json", {**checkpoint.generation_config, **ends})
    if len(checkpoint.files) > 1:
        index = "model.safetensors.index.json"
        shutil.copyfile(checkpoint.path / index, folder / index)
    hashes = {file.name: _sha256(file) for file in folder.iterdir()}
    hashes |= {file.name: _copy(file, folder / file.name) for file in checkpoint.files}
    sizes: Counter[str] = Counter()
    for tensor in checkpoint.tensors.values():
        sizes[tensor.dtype] += math.prod(tensor.shape)
    return EngineManifest(
        architecture=checkpoint.architecture,
        source_dtype=sizes.most_common(1)[0][0],
        parameters=sizes.total(),
        settings=settings,
        files=dict(sorted(hashes.items())),
    )


def _copy(source: Path, destination: Path) -> str:
    """Copy a file and return its SHA-256, in one pass.

    Not a link: who saves a new checkpoint over the old one must not change an engine.
    """
    digest = hashlib.sha256()
    with source.open("rb") as reader, destination.open("xb") as writer:
        while chunk := reader.read(CHUNK_BYTES):
            digest.update(chunk)
            writer.write(chunk)
    return digest.hexdigest()


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _write_json(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", "utf-8")


def _write_tokenizer(checkpoint: Checkpoint, folder: Path) -> None:
    """Write the tokenizer as transformers would run it.

    Loading it may change what tokenizer.json says (add_bos_token, SentencePiece models), so the
    effective one is written.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            checkpoint.path, local_files_only=True, trust_remote_code=False
        )
        backend = tokenizer.backend_tokenizer
    except (OSError, ValueError, AttributeError) as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(f"{checkpoint.path}: no tokenizer that can be used ({reason})") from error
    backend.no_truncation()
    backend.no_padding()
    folder.mkdir()
    (folder / "tokenizer.json").write_text(backend.to_str(pretty=False), "utf-8")
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        if (checkpoint.path / name).is_file():
            shutil.copyfile(checkpoint.path / name, folder / name)
