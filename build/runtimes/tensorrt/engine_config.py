"""`config.json` of a compiled engine, as far as it is looked at.

Written by `trtllm-build` (TensorRT-LLM 1.2, builder.py), read by the C++ runtime, which goes by it.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from trtspec.engines.versions import ENGINE_RELEASE
from trtspec.errors import BuildError


class _Read(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Mapped(_Read):
    """How an engine is split."""

    tp_size: int = 1
    pp_size: int = 1


class Quantized(_Read):
    """How an engine is quantised."""

    quant_algo: str | None = None
    kv_cache_quant_algo: str | None = None


class PretrainedConfig(_Read):
    """The model."""

    architecture: str
    dtype: str
    vocab_size: int
    logits_dtype: str = "float32"
    mapping: Mapped = Mapped()
    quantization: Quantized = Quantized()


class PluginConfig(_Read):
    """What computes it; None: off, or not said."""

    use_paged_context_fmha: bool | None = None
    use_fp8_context_fmha: bool | None = None
    context_fmha: bool | None = None
    remove_input_padding: bool | None = None
    tokens_per_block: int | None = None
    reduce_fusion: bool | None = None
    user_buffer: bool | None = None
    gemm_swiglu_plugin: str | None = None
    low_latency_gemm_plugin: str | None = None


class BuildConfig(_Read):
    """What it holds."""

    max_batch_size: int
    max_beam_width: int = 1
    max_input_len: int
    max_seq_len: int
    max_num_tokens: int
    max_draft_len: int = 0
    speculative_decoding_mode: int | str = 1
    kv_cache_type: str | None = None
    gather_context_logits: bool = False
    gather_generation_logits: bool = False
    plugin_config: PluginConfig = PluginConfig()


class EngineConfig(_Read):
    """An engine."""

    version: str
    pretrained_config: PretrainedConfig
    build_config: BuildConfig


def read_engine_config(folder: Path, name: object) -> EngineConfig:
    """Return what an engine folder says of its engine, which messages call `name`.

    Raises:
        BuildError: there is no config.json, or not one of an engine.
    """
    file = folder / "config.json"
    try:
        return EngineConfig.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        raise BuildError(f"{name}/config.json: missing; expected what trtllm-build writes") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        count = error.error_count()
        entries = "1 entry is" if count == 1 else f"{count} entries are"
        raise BuildError(
            f"{name}/config.json: {entries} not as trtllm-build {ENGINE_RELEASE} writes, "
            f"first {where}: {first['msg']}"
        ) from error
