"""An engine pair in, a Triton model repository out.

    repo/
      tensorrt_llm_bls/     the public model: the speculation loop and the tokenizer
      tensorrt_llm/         the target engine
      tensorrt_llm_draft/   the draft engine

The folder needs nothing outside itself: it may be moved, copied and served elsewhere.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig, ModelInstanceGroup

from trtspec.engines import cpu
from trtspec.engines.manifest import EngineSettings
from trtspec.engines.pair import EnginePair, check_contents
from trtspec.engines.publish import check_output, link_or_copy, publish
from trtspec.errors import RepositoryError
from trtspec.triton_repo import speculation
from trtspec.triton_repo.contract import (
    BLS_INPUTS,
    BLS_OUTPUTS,
    LEAF_INPUTS,
    LEAF_OUTPUTS,
    OUR_BLS_INPUTS,
    OUR_BLS_OUTPUTS,
    OUR_LEAF_INPUTS,
    Tensor,
)
from trtspec.triton_repo.speculation.chat import ChatTemplate

PUBLIC_MODEL = "tensorrt_llm_bls"
TARGET_MODEL = "tensorrt_llm"
DRAFT_MODEL = "tensorrt_llm_draft"

# Near the best on the demo pair, alone and with eight streams; a request may ask for another.
DEFAULT_DRAFT_TOKENS = 5


@dataclass(frozen=True)
class RepositoryOptions:
    """How the repository answers when a request does not say."""

    # "auto": chosen for every round. None: DEFAULT_DRAFT_TOKENS, or what the pair was built for if that
    # is less.
    num_draft_tokens: int | Literal["auto"] | None = None
    # Renders conversations; None: the template of the checkpoint, if it has one.
    chat_template: Path | None = None
    # NVIDIA's recipe puts the prompt in front of the answer; clients rarely want that.
    exclude_input_in_output: bool = True
    # Requests the public model works on; one more is told that it is busy.
    max_inflight_requests: int = 64
    # An engine that sends nothing for so long counts as failed: the target ends the answer, the draft
    # is left out of it.
    target_timeout_s: float = 300.0
    draft_timeout_s: float = 30.0


def write_repository(pair: EnginePair, output: Path, options: RepositoryOptions | None = None) -> Path:
    """Write the model repository `output` for a pair and return its path.

    Raises:
        OutputError: `output` exists or cannot be made.
        EngineError: a file of the pair is not the one that was built.
        RepositoryError: an option asks for what the pair was not built for.
    """
    options = options or RepositoryOptions()
    if pair.manifest.runtime != "cpu":
        raise RepositoryError(
            f"{pair.path}: made for --runtime {pair.manifest.runtime} and not compiled; repositories are "
            "written for pairs of --runtime cpu"
        )
    if (draft := pair.manifest.draft) is None:
        raise RepositoryError(f"{pair.path}: has no draft engine; build the pair again")
    configs = {
        PUBLIC_MODEL: _public_config(pair, draft.settings, options),
        TARGET_MODEL: _engine_config(TARGET_MODEL, pair.manifest.target.settings),
        DRAFT_MODEL: _engine_config(DRAFT_MODEL, draft.settings),
    }
    check_output(output)
    check_contents(pair)
    with publish(output) as folder:
        for name, config in configs.items():
            (folder / name / "1").mkdir(parents=True)
            (folder / name / "config.pbtxt").write_text(render(config), "utf-8")
        _write_model(folder / PUBLIC_MODEL, speculation, "speculation")
        tokenizer = folder / PUBLIC_MODEL / "1" / "tokenizer"
        _link_files(pair.tokenizer, tokenizer)
        if options.chat_template:
            _put_chat_template(options.chat_template, tokenizer / "chat_template.jinja")
        for name, engine in ((TARGET_MODEL, pair.target), (DRAFT_MODEL, pair.draft)):
            _write_model(folder / name, cpu, "cpu_engine")
            _link_files(engine, folder / name / "1" / "engine")
    return output


def render(config: ModelConfig) -> str:
    """Return the text of `config.pbtxt`; what it reads back to is what went in."""
    text = str(text_format.MessageToString(config))
    if text_format.Parse(text, ModelConfig()) != config:
        raise RepositoryError(f"{config.name}: the configuration does not survive being written")
    return text


def _public_config(pair: EnginePair, draft: EngineSettings, options: RepositoryOptions) -> ModelConfig:
    manifest = pair.manifest
    target = manifest.target.settings
    num_draft_tokens = options.num_draft_tokens
    if num_draft_tokens is None:
        num_draft_tokens = min(DEFAULT_DRAFT_TOKENS, target.max_draft_len)
    if num_draft_tokens != "auto" and not 0 <= num_draft_tokens <= target.max_draft_len:
        raise RepositoryError(
            f"num_draft_tokens is {num_draft_tokens}; {pair.path} was built for 0 to {target.max_draft_len}"
        )
    if options.max_inflight_requests < 1:
        raise RepositoryError(
            f"max_inflight_requests is {options.max_inflight_requests}, expected at least 1"
        )
    text_input, *other_inputs = BLS_INPUTS
    parameters = {
        "tensorrt_llm_model_name": TARGET_MODEL,
        "tensorrt_llm_draft_model_name": DRAFT_MODEL,
        "num_draft_tokens": num_draft_tokens,
        "max_draft_len": target.max_draft_len,
        "max_seq_len": target.max_seq_len,
        "draft_max_seq_len": draft.max_seq_len,
        "vocab_size": target.vocab_size,
        "eos_token_ids": ",".join(map(str, manifest.eos_token_ids)),
        "exclude_input_in_output": str(options.exclude_input_in_output).lower(),
        "max_inflight_requests": options.max_inflight_requests,
        "engine_runtime": manifest.runtime,
        # Calls of different answers that reach an engine as one request.
        "max_rows_per_call": min(target.max_batch_size, draft.max_batch_size),
        # How long an engine may take until its next response.
        "target_timeout_s": options.target_timeout_s,
        "draft_timeout_s": options.draft_timeout_s,
    }
    return _config(
        PUBLIC_MODEL,
        # The loop serves one prompt a request, and many requests at once.
        max_batch_size=1,
        inputs=[Tensor(text_input.name, text_input.dtype), *other_inputs, *OUR_BLS_INPUTS],
        outputs=[*BLS_OUTPUTS, *OUR_BLS_OUTPUTS],
        parameters=parameters,
    )


def _engine_config(name: str, engine: EngineSettings) -> ModelConfig:
    return _config(
        name,
        max_batch_size=engine.max_batch_size,
        inputs=[*LEAF_INPUTS, *OUR_LEAF_INPUTS],
        outputs=LEAF_OUTPUTS,
        parameters={"exclude_input_in_output": "false"},
    )


def _config(
    name: str,
    *,
    max_batch_size: int,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    parameters: Mapping[str, object],
) -> ModelConfig:
    config = ModelConfig(name=name, backend="python", max_batch_size=max_batch_size)
    # One instance: it serves all requests at once, and sends each answer in as many responses as it takes.
    config.model_transaction_policy.decoupled = True
    config.instance_group.add(count=1, kind=ModelInstanceGroup.KIND_CPU)
    for tensor in inputs:
        entry = config.input.add(
            name=tensor.name,
            data_type=DataType.Value(f"TYPE_{tensor.dtype}"),
            dims=tensor.dims,
            optional=tensor.optional,
            allow_ragged_batch=tensor.ragged,
        )
        if tensor.scalar:
            entry.reshape.SetInParent()
    for tensor in outputs:
        config.output.add(
            name=tensor.name, data_type=DataType.Value(f"TYPE_{tensor.dtype}"), dims=tensor.dims
        )
    for key, value in parameters.items():
        config.parameters[key].string_value = str(value)
    return config


def _write_model(model: Path, package: ModuleType, name: str) -> None:
    """Copy a package of ours into a model's version folder, and write the entry point that loads it."""
    (source,) = package.__path__
    shutil.copytree(source, model / "1" / name, ignore=shutil.ignore_patterns("__pycache__"))
    entry_point = f"from {name}.serving import TritonPythonModel as TritonPythonModel\n"
    (model / "1" / "model.py").write_text(entry_point, "utf-8")


def _put_chat_template(source: Path, destination: Path) -> None:
    try:
        text = source.read_text("utf-8")
        ChatTemplate(text, {})
    except (OSError, ValueError) as error:
        raise RepositoryError(f"{source}: {error}; expected a Jinja template of messages") from error
    # The file of the pair may be linked here; it stays as it is.
    destination.unlink(missing_ok=True)
    destination.write_text(text, "utf-8")


def _link_files(source: Path, destination: Path) -> None:
    destination.mkdir()
    for file in sorted(source.iterdir()):
        link_or_copy(file, destination / file.name)
