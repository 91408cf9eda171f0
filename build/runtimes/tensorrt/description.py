"""What the manifest of a pair says of its TensorRT-LLM engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trtspec.build.runtimes.tensorrt.compilation import Compiled
from trtspec.build.runtimes.tensorrt.conflicts import LOWEST_SM
from trtspec.build.runtimes.tensorrt.engine_config import EngineConfig
from trtspec.choices import EngineDtype
from trtspec.engines.host import min_sm
from trtspec.engines.manifest import EngineSettings, HostNeeds
from trtspec.engines.versions import ENGINE_RELEASE, image_with, newest_container


def settings_of(config: EngineConfig, dtype: EngineDtype, max_draft_len: int) -> EngineSettings:
    """Return what an engine can hold, as it says itself.

    The target's `max_seq_len` is longer than what may be asked of it by the tokens of a round.
    """
    built, model = config.build_config, config.pretrained_config
    return EngineSettings(
        dtype=dtype,
        max_seq_len=built.max_seq_len - built.max_draft_len,
        max_batch_size=built.max_batch_size,
        max_draft_len=max_draft_len,
        vocab_size=model.vocab_size,
        tp=model.mapping.tp_size,
        pp=model.mapping.pp_size,
    )


def needs_of(ranks: Sequence[int], *, fp8: bool, compiled: Compiled | None) -> HostNeeds:
    """Return what a machine must have to run the pair, or to compile it.

    Compiled engines want the very TensorRT, and the kind of GPU, that they were compiled with.
    """
    needed = min_sm(fp8=fp8) or LOWEST_SM
    gpus = max(ranks)  # both models may share them
    if compiled is None:
        return HostNeeds(
            min_sm=needed, gpus=gpus, tensorrt_llm=ENGINE_RELEASE, container=newest_container().image
        )
    versions = compiled.versions
    return HostNeeds(
        min_sm=needed,
        sm=compiled.sm,
        gpus=gpus,
        tensorrt_llm=versions.tensorrt_llm,
        tensorrt=versions.tensorrt,
        cuda=versions.cuda,
        container=versions.container or image_with(tensorrt_llm=versions.tensorrt_llm),
    )


def versions_of(compiled: Compiled | None) -> Mapping[str, str]:
    """Return the versions of what compiled the engines."""
    if compiled is None:
        return {}
    return {name: value for name, value in compiled.versions.model_dump().items() if value is not None}
