"""The engines' models and the launch script of a repository for TensorRT-LLM's C++ backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from trtspec.engines.memory.result import MemoryPlan, ModelPlan
from trtspec.engines.versions import containers_with
from trtspec.errors import RepositoryError
from trtspec.triton_repo.contract import DRAFT_MODEL, TARGET_MODEL
from trtspec.triton_repo.engine_config import EngineConfig
from trtspec.triton_repo.launch import SCRIPT, LaunchOptions, LaunchPlan, launch_script, plan_launch
from trtspec.triton_repo.model_folders import ModelFolder
from trtspec.triton_repo.tensorrt_leaf import LeafSettings, tensorrt_leaf_config

# Shares of free GPU memory for the caches where nobody has planned them. On one GPU most of it is the
# target's, whose tokens are larger, and a fifth stays free for whichever loads last.
TOGETHER = {TARGET_MODEL: 0.6, DRAFT_MODEL: 0.2}
APART = 0.9


@dataclass(frozen=True)
class EngineSource:
    """An engine of trtllm-build, and what its model shall be told."""

    config: EngineConfig
    files: Sequence[Path]
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TensorrtModels:
    """What a repository for the C++ backend has beside the loop."""

    models: tuple[ModelFolder, ModelFolder]
    scripts: Mapping[str, str]
    plan: LaunchPlan
    image: str


def tensorrt_models(
    target: EngineSource,
    draft: EngineSource,
    options: LaunchOptions,
    *,
    memory: MemoryPlan | None = None,
    image: str | None = None,
) -> TensorrtModels:
    """Return the models of two engines and how they are started; the newest `image` by default.

    Raises:
        RepositoryError: the engines, the options and the memory plan do not fit each other, or no
            container is known for the engines.
    """
    if memory and memory.runtime != "tensorrt":
        raise RepositoryError(
            f"the memory plan is for --runtime {memory.runtime}, this repository for tensorrt; plan again"
        )
    _check_memory(memory, target.config)
    plan = plan_launch(target.config.ranks, draft.config.ranks, _placed(options, memory))
    image = image or _image_for(target.config)
    leaves = (
        _leaf(TARGET_MODEL, target, plan, memory.target if memory else None),
        _leaf(DRAFT_MODEL, draft, plan, memory.draft if memory else None),
    )
    return TensorrtModels(leaves, {SCRIPT: launch_script(plan, image)}, plan, image)


def read_memory_plan(file: Path) -> MemoryPlan:
    """Return a memory plan that was written as JSON; RepositoryError when it is none."""
    text = file.read_bytes()
    try:
        return MemoryPlan.model_validate_json(text)
    except ValidationError as error:
        if b'"would_fit"' in text:
            raise RepositoryError(
                f"{file}: says that nothing fits; plan again with what `trtspec plan` advises"
            ) from None
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise RepositoryError(
            f"{file}: {where}: {first['msg']}, expected what `trtspec plan --json` prints"
        ) from error


def _check_memory(memory: MemoryPlan | None, target: EngineConfig) -> None:
    """Refuse a plan for shorter sequences, or fewer, than the engine takes."""
    if memory is None:
        return
    held = target.max_seq_len - target.max_draft_len  # as it was asked for
    wanted = (
        ("max_seq_len", memory.max_seq_len, held),
        ("max_batch_size", memory.max_batch_size, target.max_batch_size),
        ("max_draft_len", memory.max_draft_len, target.max_draft_len),
    )
    short = [
        f"{name} {planned}, the engine has {built}" for name, planned, built in wanted if planned < built
    ]
    if short:
        raise RepositoryError(
            f"{target.path}: the memory plan is for {'; '.join(short)}; make one with "
            "`trtspec plan PAIR --json`"
        )


def _placed(options: LaunchOptions, memory: MemoryPlan | None) -> LaunchOptions:
    """Return the options with the GPUs of the memory plan, which must not name others."""
    if memory is None:
        return options
    for role, asked, planned in (
        ("target", options.target_gpus, memory.target.gpus),
        ("draft", options.draft_gpus, memory.draft.gpus),
    ):
        if asked not in (None, planned):
            raise RepositoryError(
                f"{role}: GPUs {asked} asked for, the memory plan has {planned}; leave one of them out"
            )
    return LaunchOptions(options.mode, memory.target.gpus, memory.draft.gpus, options.fast_logits)


def _leaf(name: str, source: EngineSource, plan: LaunchPlan, memory: ModelPlan | None) -> ModelFolder:
    of_target = name == TARGET_MODEL
    cache = _cache(name, plan, memory)
    settings = LeafSettings(
        name,
        source.config,
        engine_path=f"{name}/1/engine",
        gpus=plan.target_gpus if of_target else plan.draft_gpus,
        participants=plan.target_participants if of_target else plan.draft_participants,
        fast_logits=plan.fast_logits,
        # A plan was asked for; shares that nobody planned give way to what the model says.
        wanted={**source.parameters, **cache} if memory else {**cache, **source.parameters},
    )
    return ModelFolder(tensorrt_leaf_config(settings), folders={"engine": source.files})


def _cache(name: str, plan: LaunchPlan, memory: ModelPlan | None) -> dict[str, str]:
    """Return what is said about the size of the key-value cache."""
    if memory is None:
        share = TOGETHER[name] if plan.shares_gpus else APART
        return {"kv_cache_free_gpu_mem_fraction": f"{share:g}"}
    return {
        # Which engine loads first is not known; with the tokens given too, this one is right in any order.
        "kv_cache_free_gpu_mem_fraction": f"{memory.fraction_loaded_second:g}",
        "max_tokens_in_paged_kv_cache": str(memory.max_tokens),
    }


def _image_for(engine: EngineConfig) -> str:
    found = containers_with(tensorrt_llm=engine.version)
    if not found:
        raise RepositoryError(
            f"{engine.path}: built with TensorRT-LLM {engine.version or 'of no known version'}, which no "
            "known container has; build it in a container of Triton"
        )
    return found[-1].image
