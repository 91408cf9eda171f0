"""Two checkpoints in, an engine pair out."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import cast

from trtspec import __version__
from trtspec.build.check.doctor import PairReport, check
from trtspec.build.check.model_shape import shape_of
from trtspec.build.checkpoint import Checkpoint, open_checkpoint
from trtspec.build.json_file import write_json
from trtspec.build.options import DEFAULT_MAX_SEQ_LEN, BuildOptions
from trtspec.build.runtimes import cpu
from trtspec.build.runtimes.job import Job, Report, RuntimeModule
from trtspec.build.runtimes.tensorrt import runtime as tensorrt
from trtspec.build.stages import Done, NoFacts, Stage, run_stages
from trtspec.engines.manifest import Manifest, Runtime
from trtspec.engines.pair import EnginePair, open_pair, sha256, write_manifest
from trtspec.engines.publish import check_output, publish
from trtspec.errors import BuildError, CheckpointError, PairError

RUNTIMES: Mapping[Runtime, RuntimeModule] = {
    "cpu": cast(RuntimeModule, cpu),
    "tensorrt": cast(RuntimeModule, tensorrt),
}


def build(
    target: Path, draft: Path, output: Path, options: BuildOptions | None = None, *, report: Report = print
) -> EnginePair:
    """Build the engine pair `output` from two Hugging Face folders.

    Args:
        report: called with a line for each step and each finding of the pair check.

    Raises:
        OutputError, CheckpointError: the folders cannot be used.
        PairError: the checkpoints do not fit each other.
        BuildError: an option is out of range, or a step failed.
    """
    job = open_job(target, draft, output, options or BuildOptions(), report=report)
    runtime = RUNTIMES[job.options.runtime]
    stages = [_tokenizer_stage(job), *runtime.stages(job)]
    with publish(output) as folder:
        workspace = folder / ".stages"
        done = run_stages(stages, workspace)
        manifest = _manifest(job, runtime, stages, done)
        _place(stages, done, folder)
        shutil.rmtree(workspace)
        write_manifest(manifest, folder)
    return open_pair(output)


def open_job(target: Path, draft: Path, output: Path, options: BuildOptions, *, report: Report) -> Job:
    """Return what `build` is about to do, once the options and the checkpoints have been checked.

    Raises as `build` does; nothing is written.
    """
    check_output(output)
    checkpoints = open_checkpoint(target), open_checkpoint(draft)
    lengths = _lengths(*checkpoints, options)
    if wrong := RUNTIMES[options.runtime].faults(options):
        raise BuildError("; ".join(wrong))
    found = _check_pair(*checkpoints, report)
    return Job(*checkpoints, found, options, *lengths, report, output)


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
    found = shape_of(checkpoint).context_length
    if found is None:
        raise CheckpointError(
            f"{checkpoint.path / 'config.json'}: no max_position_embeddings, so its context is unknown"
        )
    return found


def _manifest(job: Job, runtime: RuntimeModule, stages: Sequence[Stage], done: Done) -> Manifest:
    built = runtime.describe(job, done)
    files = {
        str(Path(stage.place) / file.relative_to(done.folder(stage.name))): sha256(file)
        for stage in stages
        if stage.place not in (None, "target", "draft")
        for file in sorted(done.folder(stage.name).rglob("*"))
        if file.is_file()
    }
    return Manifest(
        trtspec_version=__version__,
        runtime=job.options.runtime,
        compiled=built.compiled,
        speculation=built.speculation,
        target=built.target,
        draft=built.draft,
        eos_token_ids=job.found.eos_token_ids,
        repairs=built.repairs,
        files=files,
        commands=built.commands,
        versions=built.versions or {},
        acceptance=built.acceptance,
        host_needs=built.host_needs,
    )


def _place(stages: Sequence[Stage], done: Done, folder: Path) -> None:
    """Move what the stages made to its place in the pair."""
    for stage in stages:
        if stage.place is None:
            continue
        place = folder / stage.place
        place.mkdir(exist_ok=True)
        for file in done.folder(stage.name).iterdir():
            file.rename(place / file.name)


def _tokenizer_stage(job: Job) -> Stage:
    return Stage("tokenizer", partial(_write_tokenizer, job), sources=("target",), place="tokenizer")


def _write_tokenizer(job: Job, folder: Path, done: Done) -> NoFacts:
    """Write the tokenizer as transformers would run it.

    Loading it may change what tokenizer.json says (add_bos_token, SentencePiece models), and its class
    may bring special tokens that no file names, so the effective ones are written.
    """
    from transformers import AutoTokenizer

    checkpoint = job.target
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
    (folder / "tokenizer.json").write_text(backend.to_str(pretty=False), "utf-8")
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        if (checkpoint.path / name).is_file():
            shutil.copyfile(checkpoint.path / name, folder / name)
    named = tokenizer.special_tokens_map.items()
    special_tokens = {name: str(token) for name, token in named if name.endswith("_token")}
    write_json(folder / "special_tokens_map.json", special_tokens)
    return NoFacts()
