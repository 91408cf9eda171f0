"""Two checkpoints in, an engine pair out."""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, get_args

from trtspec import __version__
from trtspec.build.check.doctor import PairReport, check
from trtspec.build.checkpoint import Checkpoint, open_checkpoint
from trtspec.build.convert.converter import plan_conversion, write_plan
from trtspec.build.quantize.pair_quantizer import PairQuantization, Role, measure_pair, write_role
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
    sha256,
    write_manifest,
)
from trtspec.engines.publish import check_output, publish
from trtspec.errors import BuildError, CheckpointError, PairError

# A default that fits a laptop; the context of a large model would ask for gigabytes of KV cache.
DEFAULT_MAX_SEQ_LEN = 4096

Report = Callable[[str], None]


@dataclass(frozen=True)
class BuildOptions:
    """What the engines of a pair shall hold."""

    runtime: Runtime = "cpu"
    # None: float32 on the cpu runtime, the checkpoint's own for TensorRT-LLM.
    dtype: EngineDtype | None = None
    # Tokens of prompt and answer together; None: the target's context, at most DEFAULT_MAX_SEQ_LEN.
    max_seq_len: int | None = None
    # Sequences in flight.
    max_batch_size: int = 16
    # Draft tokens in a round.
    max_draft_len: int = 8
    # TensorRT-LLM ranks and pipeline stages of each engine.
    tp: int = 1
    pp: int = 1
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
    lengths = _lengths(*checkpoints, options)
    found = _check_pair(*checkpoints, report)
    with publish(output) as folder:
        _write_tokenizer(checkpoints[0], folder / "tokenizer")
        wanted = options.quantization
        roles = (
            Role("target", checkpoints[0], folder / "target", wanted.target),
            Role("draft", checkpoints[1], folder / "draft", wanted.draft),
        )
        if options.runtime == "cpu":
            written = _write_weights(roles, found.eos_token_ids, output, folder, options, report)
        else:
            written = _convert_weights(roles, options, report)
        engines = []
        for role, settings in zip(roles, _settings(roles, lengths, options, written), strict=True):
            if options.runtime == "cpu":
                _write_json(role.engine / "engine.json", settings.model_dump())
            engines.append(_describe_engine(role, settings, written))
        needed_sm = min_sm(fp8=bool(written.quantizations))
        manifest = Manifest(
            trtspec_version=__version__,
            runtime=options.runtime,
            compiled=options.runtime == "cpu",
            target=engines[0],
            draft=engines[1],
            eos_token_ids=found.eos_token_ids,
            repairs=_repairs(found, options.runtime),
            tokenizer_sha256=sha256(folder / "tokenizer" / "tokenizer.json"),
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
        *_runtime_faults(options),
    )
    for wrong, message in faults:
        if wrong:
            raise BuildError(message)
    return wanted, min(wanted, _context(draft))


def _runtime_faults(options: BuildOptions) -> tuple[tuple[bool, str], ...]:
    """What one runtime cannot do and another can."""
    on_cpu = options.runtime == "cpu"
    quantised = "fp8" in (options.quantization.target, options.quantization.draft)
    return (
        (on_cpu and options.dtype == "float16", "--runtime cpu computes in float32 or bfloat16, not float16"),
        (on_cpu and (options.tp, options.pp) != (1, 1), "--tp and --pp are for --runtime tensorrt"),
        (
            not on_cpu and quantised,
            "--runtime tensorrt with FP8: quantise each model with `trtspec convert --quantization fp8`",
        ),
    )


def _repairs(found: PairReport, runtime: Runtime) -> tuple[str, ...]:
    """Return the findings that this build mends; TensorRT-LLM checkpoints keep their widths."""
    mended = [finding.id for finding in found.findings if finding.repairable]
    return tuple(repair for repair in mended if runtime == "cpu" or repair != "vocab.width")


def _settings(
    roles: tuple[Role, Role], lengths: tuple[int, int], options: BuildOptions, written: _Written
) -> list[EngineSettings]:
    """Return what each engine is to hold."""
    widest = max(role.checkpoint.vocab_size for role in roles)
    return [
        EngineSettings(
            dtype=written.dtypes[role.name],
            max_seq_len=max_seq_len,
            max_batch_size=options.max_batch_size,
            max_draft_len=options.max_draft_len,
            vocab_size=widest if options.runtime == "cpu" else role.checkpoint.vocab_size,
        )
        for role, max_seq_len in zip(roles, lengths, strict=True)
    ]


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

    dtypes: Mapping[str, EngineDtype]  # by role
    quantizations: Mapping[str, QuantizationManifest] = field(default_factory=dict)  # by role
    acceptance: AcceptanceManifest | None = None


def _convert_weights(roles: tuple[Role, Role], options: BuildOptions, report: Report) -> _Written:
    """Write both models as TensorRT-LLM checkpoints, which trtllm-build compiles."""
    plans = [
        plan_conversion(role.checkpoint, "trtllm", options.dtype, options.tp, options.pp) for role in roles
    ]
    for role, plan in zip(roles, plans, strict=True):
        report(f"{role.name}: {role.checkpoint.architecture} from {role.checkpoint.path}")
        for note in plan.notes:
            report(f"{role.name}: {note}")
        role.engine.mkdir()
        write_plan(plan, role.engine)
    return _Written({role.name: _dtype(plan.dtype) for role, plan in zip(roles, plans, strict=True)})


def _dtype(name: str) -> EngineDtype:
    if name not in get_args(EngineDtype):
        raise BuildError(f"engines of dtype {name} are not made; give --dtype")
    return cast(EngineDtype, name)


def _write_weights(
    roles: tuple[Role, Role],
    eos_token_ids: tuple[int, ...],
    output: Path,
    folder: Path,
    options: BuildOptions,
    report: Report,
) -> _Written:
    """Write the checkpoints of both cpu engines: config.json, generation_config.json and weights."""
    dtype, tokenizer = options.dtype or "float32", folder / "tokenizer"
    quantised = []
    for role in roles:
        report(f"{role.name}: {role.checkpoint.architecture} from {role.checkpoint.path}")
        role.engine.mkdir()
        state = output.parent / f".{output.name}.{role.name}.calibration"
        made = write_role(role, options.quantization, dtype, tokenizer, state, report)
        if made is not None:
            quantised.append(made)
        ends = {"eos_token_id": list(eos_token_ids)} if eos_token_ids else {}
        _write_json(role.engine / "generation_config.json", {**role.checkpoint.generation_config, **ends})
    quantizations, acceptance = measure_pair(
        *roles, quantised, options.quantization, dtype, tokenizer, report
    )
    return _Written(dict.fromkeys(("target", "draft"), dtype), quantizations, acceptance)


def _describe_engine(role: Role, settings: EngineSettings, written: _Written) -> EngineManifest:
    """Return the manifest's part about an engine whose weights are written."""
    hashes = {file.name: sha256(file) for file in role.engine.iterdir()}
    sizes: Counter[str] = Counter()
    for tensor in role.checkpoint.tensors.values():
        sizes[tensor.dtype] += math.prod(tensor.shape)
    return EngineManifest(
        architecture=role.checkpoint.architecture,
        source_dtype=sizes.most_common(1)[0][0],
        parameters=sizes.total(),
        settings=settings,
        quantization=written.quantizations.get(role.name),
        files=dict(sorted(hashes.items())),
    )


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
