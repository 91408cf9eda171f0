"""An engine pair in, a Triton model repository out.

    repo/
      tensorrt_llm_bls/     the public model: the speculation loop and the tokenizer
      tensorrt_llm/         the target engine
      tensorrt_llm_draft/   the draft engine
      launch.sh             for TensorRT-LLM's engines: how to start the server

Over TensorRT-LLM's LLM API there is the public model only, which holds the pair.


The folder needs nothing outside itself: it may be moved, copied and served elsewhere.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trtspec.engines import cpu
from trtspec.engines.manifest import MANIFEST, EngineSettings
from trtspec.engines.memory.result import MemoryPlan
from trtspec.engines.pair import EnginePair, check_contents
from trtspec.engines.publish import check_output, publish
from trtspec.errors import RepositoryError
from trtspec.triton_repo.contract import DRAFT_MODEL, TARGET_MODEL
from trtspec.triton_repo.engine_config import read_engine_config
from trtspec.triton_repo.launch import SCRIPT, LaunchOptions
from trtspec.triton_repo.llm_api_repository import llm_api_folder, llm_api_script, triton_image
from trtspec.triton_repo.model_config import EngineFacts, cpu_engine_config
from trtspec.triton_repo.model_folders import ModelFolder, files_in, loop_folder, write_model_folder
from trtspec.triton_repo.options import RepositoryOptions as RepositoryOptions
from trtspec.triton_repo.tensorrt_repository import EngineSource, tensorrt_models


@dataclass(frozen=True)
class Contents:
    """What a repository holds: models, and files beside them by name."""

    models: Sequence[ModelFolder]
    scripts: Mapping[str, str] = field(default_factory=dict)
    # The container that serves it; None where any Triton does.
    image: str | None = None

    def write(self, folder: Path) -> None:
        """Fill an empty folder."""
        for model in self.models:
            write_model_folder(model, folder)
        for name, text in self.scripts.items():
            (folder / name).write_text(text, "utf-8")


def write_repository(
    pair: EnginePair, output: str | os.PathLike[str], options: RepositoryOptions | None = None
) -> Path:
    """Write the model repository `output` for a pair and return its path.

    Raises:
        OutputError: `output` exists or cannot be made.
        EngineError: a file of the pair is not the one that was built.
        RepositoryError: an option asks for what the pair was not built for.
    """
    output = Path(output)
    contents = plan_repository(pair, options or RepositoryOptions())
    check_output(output)
    check_contents(pair)
    with publish(output) as folder:
        contents.write(folder)
        # So that a server can be refused where the engines do not run.
        shutil.copyfile(pair.path / MANIFEST, folder / MANIFEST)
    return output


def plan_repository(pair: EnginePair, options: RepositoryOptions) -> Contents:
    """Return what the repository of a pair will hold; nothing is written.

    Raises EngineError and RepositoryError as `write_repository` does.
    """
    planner = _PLANNERS.get(pair.manifest.runtime)
    if planner is None:
        raise RepositoryError(
            f"{pair.path}: made for --runtime {pair.manifest.runtime}; repositories are written for "
            f"{' and '.join(_PLANNERS)}"
        )
    return planner(pair, options)


def _draft_of(pair: EnginePair) -> EngineSettings:
    if (draft := pair.manifest.draft) is None:
        raise RepositoryError(f"{pair.path}: has no draft engine; build the pair again")
    return draft.settings


def _plan_cpu(pair: EnginePair, options: RepositoryOptions) -> Contents:
    draft = _draft_of(pair)
    if options.launch != LaunchOptions() or options.memory is not None:
        raise RepositoryError(
            f"{pair.path}: made for --runtime cpu; GPUs, launch modes, fast logits and memory plans are for "
            "pairs of --runtime tensorrt"
        )
    leaves = (
        (TARGET_MODEL, pair.manifest.target.settings, pair.target),
        (DRAFT_MODEL, draft, pair.draft),
    )
    return Contents(
        [
            _loop(pair, draft, options),
            *(
                ModelFolder(
                    cpu_engine_config(name, settings.max_batch_size),
                    (cpu, "cpu_engine"),
                    folders={"engine": files_in(engine)},
                )
                for name, settings, engine in leaves
            ),
        ]
    )


def _plan_tensorrt(pair: EnginePair, options: RepositoryOptions) -> Contents:
    draft = _draft_of(pair)
    if not pair.manifest.compiled:
        raise RepositoryError(
            f"{pair.path}: holds checkpoints that are not compiled; compile them on a GPU host with the "
            "script of `trtspec build --script`, and finish the pair with `trtspec adopt`"
        )
    needs = pair.manifest.host_needs
    target_source, draft_source = (
        EngineSource(read_engine_config(engine), files_in(engine)) for engine in (pair.target, pair.draft)
    )
    sources = {TARGET_MODEL: target_source, DRAFT_MODEL: draft_source}
    silent = [name for name, source in sources.items() if not source.config.gathers_generation_logits]
    if options.launch.fast_logits and silent:
        raise RepositoryError(
            f"{pair.path}: fast logits pass the models' logits on, and {', '.join(silent)} gives none; build "
            "with --acceptance logits"
        )
    written = tensorrt_models(
        target_source,
        draft_source,
        options.launch,
        memory=_memory(pair, options),
        image=needs.container if needs else None,
    )
    return Contents([_loop(pair, draft, options), *written.models], written.scripts, written.image)


def _memory(pair: EnginePair, options: RepositoryOptions) -> MemoryPlan | None:
    """Return the plan that was given, else the one the pair was built with, unless GPUs are named too."""
    names_gpus = options.launch.target_gpus is not None or options.launch.draft_gpus is not None
    return options.memory or (None if names_gpus else pair.manifest.memory)


def _loop(pair: EnginePair, draft: EngineSettings, options: RepositoryOptions) -> ModelFolder:
    manifest, target = pair.manifest, pair.manifest.target.settings
    options.check(target.max_draft_len, pair.path)
    engines = EngineFacts(
        runtime=manifest.runtime,
        max_draft_len=target.max_draft_len,
        max_seq_len=target.max_seq_len,
        draft_max_seq_len=draft.max_seq_len,
        vocab_size=target.vocab_size,
        max_rows_per_call=min(target.max_batch_size, draft.max_batch_size),
        eos_token_ids=manifest.eos_token_ids,
    )
    return loop_folder(engines, options, files_in(pair.tokenizer))


def _plan_pytorch(pair: EnginePair, options: RepositoryOptions) -> Contents:
    if options.launch != LaunchOptions() or options.memory is not None:
        raise RepositoryError(
            f"{pair.path}: made for --runtime pytorch, which places itself; GPUs, launch modes, fast logits "
            "and memory plans are for pairs of --runtime tensorrt"
        )
    return Contents(
        [llm_api_folder(pair, options)], {SCRIPT: llm_api_script(pair)}, triton_image(pair.manifest)
    )


Planner = Callable[[EnginePair, RepositoryOptions], Contents]
_PLANNERS: Mapping[str, Planner] = {
    "cpu": _plan_cpu,
    "tensorrt": _plan_tensorrt,
    "pytorch": _plan_pytorch,
}
