"""A repository of NVIDIA's recipe in, ours with the same engines and settings out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trtspec.engines.publish import check_output, publish
from trtspec.errors import RepositoryError
from trtspec.triton_repo.contract import DRAFT_MODEL
from trtspec.triton_repo.engine_config import EngineConfig, read_engine_config
from trtspec.triton_repo.launch import LaunchOptions
from trtspec.triton_repo.layout import Layout, Leaf, open_layout
from trtspec.triton_repo.leaf_parameters import LEAF_PARAMETERS
from trtspec.triton_repo.lint import Finding, lint
from trtspec.triton_repo.model_config import EngineFacts
from trtspec.triton_repo.model_folders import files_in, loop_folder
from trtspec.triton_repo.nvidia_models import POSTPROCESSING, PREPROCESSING
from trtspec.triton_repo.options import RepositoryOptions
from trtspec.triton_repo.repository import Contents
from trtspec.triton_repo.tensorrt_repository import EngineSource, tensorrt_models
from trtspec.triton_repo.tokenizer_files import end_token_ids, tokenizer_files


@dataclass(frozen=True)
class Takeover:
    """A repository that was written from another one."""

    repository: Path
    image: str | None
    # What was wrong with the other one, and what still is with this one: no errors.
    found: tuple[Finding, ...]
    left: tuple[Finding, ...]


def take_over(source: Path, output: Path, options: RepositoryOptions | None = None) -> Takeover:
    """Write `output` with the engines, the tokenizer and the settings of a repository of NVIDIA's recipe.

    Files become links where the file system and their modes allow, copies elsewhere; `source` is
    only read. GPUs, cache sizes and further parameters of the backend stay what they are there
    where the options do not say otherwise.

    Raises:
        OutputError: `output` exists or cannot be made.
        RepositoryError, EngineError: parts are missing from `source`, or its engines cannot be used.
    """
    check_output(output)
    if output.resolve().is_relative_to(source.resolve()):
        raise RepositoryError(f"{output}: lies in {source}, which is only read; choose another --output")
    layout = open_layout(source)
    found = lint(source)
    contents = _plan(layout, options or RepositoryOptions())
    with publish(output) as folder:
        contents.write(folder)
        left = lint(folder)
        if errors := [finding for finding in left if finding.severity == "error"]:
            raise RepositoryError(
                f"{source}: {len(errors)} errors would remain, first {errors[0].rule}: {errors[0].message}; "
                f"{errors[0].repair}"
            )
    return Takeover(output, contents.image, found, left)


def _plan(layout: Layout, options: RepositoryOptions) -> Contents:
    target, draft = layout.target, layout.draft
    if target is None or draft is None:
        wanted = layout.target_name if target is None else layout.draft_name or DRAFT_MODEL
        raise RepositoryError(
            f"{layout.folder}: found no model {wanted} that can be read, expected a target and a draft "
            "engine; `trtspec repo lint` says what is wrong"
        )
    target_source, draft_source = _source(target), _source(draft)
    if target_source.config.path.resolve() == draft_source.config.path.resolve():
        raise RepositoryError(
            f"{draft.file.path}: the draft loads the target's engine, {target_source.config.path}; give it "
            "its own"
        )
    tokenizer = _tokenizer_folder(layout)
    written = tensorrt_models(
        target_source, draft_source, _launch(target, draft, options), memory=options.memory
    )
    engines = _facts(target_source.config, draft_source.config, tokenizer)
    options.check(engines.max_draft_len, target_source.config.path)
    if options.exclude_input_in_output is None:
        options = replace(options, exclude_input_in_output=target.switch("exclude_input_in_output"))
    loop = loop_folder(engines, options, tokenizer_files(tokenizer))
    return Contents([loop, *written.models], written.scripts, written.image)


def _facts(target: EngineConfig, draft: EngineConfig, tokenizer: Path) -> EngineFacts:
    return EngineFacts(
        runtime="tensorrt",
        max_draft_len=target.max_draft_len,
        # trtllm-build has added the drafted tokens to what it was asked for.
        max_seq_len=target.max_seq_len - target.max_draft_len,
        draft_max_seq_len=draft.max_seq_len,
        vocab_size=target.vocab_size,
        max_rows_per_call=min(target.max_batch_size, draft.max_batch_size),
        eos_token_ids=end_token_ids(tokenizer),
    )


def _source(leaf: Leaf) -> EngineSource:
    if leaf.engine_folder is None:
        raise RepositoryError(
            f"{leaf.file.path}: gpt_model_path has no value, expected the engine's folder; give it"
        )
    if not leaf.engine_folder.is_dir():
        raise RepositoryError(
            f"{leaf.engine_folder}: the engine is not on this machine; run this where it is"
        )
    known = {parameter.name for parameter in LEAF_PARAMETERS}
    kept = {key: value for key, value in leaf.file.parameters.items() if key in known and _valid(key, value)}
    return EngineSource(read_engine_config(leaf.engine_folder), files_in(leaf.engine_folder), kept)


def _valid(key: str, value: str) -> bool:
    """Whether the backend understands a value; it would have taken its default."""
    return all(parameter.fault(value) is None for parameter in LEAF_PARAMETERS if parameter.name == key)


def _launch(target: Leaf, draft: Leaf, options: RepositoryOptions) -> LaunchOptions:
    """Return what was asked for, completed by what the configurations say."""
    asked = options.launch
    ranks = all(leaf.ranks_in("participant_ids") for leaf in (target, draft))
    fast = all(leaf.switch("speculative_decoding_fast_logits") for leaf in (target, draft))
    planned = options.memory is not None  # and then it says which GPUs
    return LaunchOptions(
        mode=asked.mode or ("ranks" if ranks else None),
        target_gpus=asked.target_gpus or (None if planned else _gpus(target)),
        draft_gpus=asked.draft_gpus or (None if planned else _gpus(draft)),
        fast_logits=asked.fast_logits or (ranks and fast),
    )


def _gpus(leaf: Leaf) -> tuple[int, ...] | None:
    groups = leaf.ranks_in("gpu_device_ids")
    if len(groups) > 1:
        raise RepositoryError(
            f"{leaf.file.path}: gpu_device_ids is for {len(groups)} instances, our loop drives one; "
            "give the GPUs of one, and serve the repository once for each"
        )
    return tuple(map(int, groups[0])) if groups else None


def _tokenizer_folder(layout: Layout) -> Path:
    """Return the folder that pre- and postprocessing load their tokenizer from."""
    named: Sequence[str] = [
        layout.models[name].parameters["tokenizer_dir"]
        for name in (PREPROCESSING, POSTPROCESSING)
        if name in layout.models and "tokenizer_dir" in layout.models[name].parameters
    ]
    if not named:
        raise RepositoryError(
            f"{layout.folder}: {PREPROCESSING} and {POSTPROCESSING} name no tokenizer_dir; "
            "give it in one of them"
        )
    folder = layout.folder / named[0]
    if not folder.is_dir():
        raise RepositoryError(f"{folder}: the tokenizer is not on this machine; run this where it is")
    return folder
