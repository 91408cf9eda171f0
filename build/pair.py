"""Two checkpoints in, an engine pair out."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtspec import __version__
from trtspec.build.check.doctor import PairReport, check
from trtspec.build.checkpoint import INDEX, Checkpoint, open_checkpoint
from trtspec.build.quantize.pair_quantizer import PairQuantization, Role, measure_pair, quantize_role
from trtspec.engines.host import min_sm
from trtspec.engines.pair import (
    AcceptanceManifest,
    EngineDtype,
    EngineManifest,
    EnginePair,
    EngineSettings,
    HostNeeds,
    Manifest,
    QuantizationManifest,
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
    quantization: PairQuantization = field(default_factory=PairQuantization)


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
        _write_tokenizer(checkpoints[0], folder / "tokenizer")
        wanted = options.quantization
        roles = (
            Role("target", checkpoints[0], folder / "target", wanted.target),
            Role("draft", checkpoints[1], folder / "draft", wanted.draft),
        )
        written = _write_weights(roles, folder / "tokenizer", output, options, report)
        engines = [
            _finish_engine(
                role.checkpoint,
                role.engine,
                EngineSettings(
                    dtype=options.dtype,
                    max_seq_len=max_seq_len,
                    max_batch_size=options.max_batch_size,
                    max_draft_len=options.max_draft_len,
                    vocab_size=vocab_size,
                ),
                found.eos_token_ids,
                written,
            )
            for role, max_seq_len in zip(roles, lengths, strict=True)
        ]
        needed_sm = min_sm(fp8=bool(written.quantizations))
        manifest = Manifest(
            trtspec_version=__version__,
            runtime=options.runtime,
            target=engines[0],
            draft=engines[1],
            eos_token_ids=found.eos_token_ids,
            repairs=tuple(finding.id for finding in found.findings if finding.repairable),
            tokenizer_sha256=_sha256(folder / "tokenizer" / "tokenizer.json"),
            acceptance=written.acceptance,
            host_needs=None if needed_sm is None else HostNeeds(min_sm=needed_sm),
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


@dataclass(frozen=True)
class _Written:
    """What is known of the weights once they are written."""

    hashes: Mapping[str, Mapping[str, str]]  # by role and file, of what was copied
    quantizations: Mapping[str, QuantizationManifest]  # by role
    acceptance: AcceptanceManifest | None


def _write_weights(
    roles: tuple[Role, Role], tokenizer: Path, output: Path, options: BuildOptions, report: Report
) -> _Written:
    """Write config.json and weights of both engines."""
    hashes, quantised = {}, []
    for role in roles:
        report(f"{role.name}: {role.checkpoint.architecture} from {role.checkpoint.path}")
        role.engine.mkdir()
        state = output.parent / f".{output.name}.{role.name}.calibration"
        made = quantize_role(role, options.quantization, options.dtype, tokenizer, state, report)
        if made is None:
            hashes[role.name] = _copy_weights(role.checkpoint, role.engine)
        else:
            quantised.append(made)
    quantizations, acceptance = measure_pair(
        *roles, quantised, options.quantization, options.dtype, tokenizer, report
    )
    return _Written(hashes, quantizations, acceptance)


def _copy_weights(checkpoint: Checkpoint, folder: Path) -> dict[str, str]:
    """The cpu engine is the checkpoint itself; returns the hashes of the weights."""
    _write_json(folder / "config.json", checkpoint.config)
    if len(checkpoint.files) > 1:
        shutil.copyfile(checkpoint.path / INDEX, folder / INDEX)
    return {file.name: _copy(file, folder / file.name) for file in checkpoint.files}


def _finish_engine(
    checkpoint: Checkpoint,
    folder: Path,
    settings: EngineSettings,
    eos_token_ids: tuple[int, ...],
    written: _Written,
) -> EngineManifest:
    """Write what an engine may hold beside its weights, and return what it is."""
    _write_json(folder / "engine.json", settings.model_dump())
    ends = {"eos_token_id": list(eos_token_ids)} if eos_token_ids else {}
    _write_json(folder / "generation_config.json", {**checkpoint.generation_config, **ends})
    known = written.hashes.get(folder.name, {})
    hashes = {file.name: known.get(file.name) or _sha256(file) for file in folder.iterdir()}
    sizes: Counter[str] = Counter()
    for tensor in checkpoint.tensors.values():
        sizes[tensor.dtype] += math.prod(tensor.shape)
    return EngineManifest(
        architecture=checkpoint.architecture,
        source_dtype=sizes.most_common(1)[0][0],
        parameters=sizes.total(),
        settings=settings,
        quantization=written.quantizations.get(folder.name),
        files=dict(sorted(hashes.items())),
    )


def _copy(source: Path, destination: Path) -> str:
    """Copy a file and return its SHA-256, in one pass.

    Not a link: who saves a new checkpoint over the old one must not change an engine.
    """
    digest = hashlib.sha256()
    with destination.open("xb") as writer:
        for chunk in _chunks(source):
            digest.update(chunk)
            writer.write(chunk)
    return digest.hexdigest()


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    for chunk in _chunks(file):
        digest.update(chunk)
    return digest.hexdigest()


def _chunks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as reader:
        while chunk := reader.read(CHUNK_BYTES):
            yield chunk


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
