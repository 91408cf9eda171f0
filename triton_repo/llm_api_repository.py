"""A pair for TensorRT-LLM's LLM API in, the one model that serves it out."""

from __future__ import annotations

import json

import yaml

from trtspec.engines.llm_api import ARGUMENTS, dialect_of
from trtspec.engines.manifest import MANIFEST, Manifest
from trtspec.engines.pair import EnginePair
from trtspec.errors import EngineError, RepositoryError
from trtspec.triton_repo import llm_api, speculation
from trtspec.triton_repo.launch import LaunchPlan, launch_script
from trtspec.triton_repo.model_config import EngineFacts, public_config
from trtspec.triton_repo.model_folders import ModelFolder, files_in, tokenizer_files
from trtspec.triton_repo.options import RepositoryOptions

TRITON_REGISTRY = "nvcr.io/nvidia/tritonserver:"


def llm_api_folder(pair: EnginePair, options: RepositoryOptions) -> ModelFolder:
    """Return the public model over the LLM API, with the pair inside.

    Raises:
        EngineError: the pair has no arguments, or is for a version that is not known.
        RepositoryError: another number of draft tokens is asked for than the pair was built with.
    """
    manifest, target = pair.manifest, pair.manifest.target.settings
    if options.num_draft_tokens not in (None, target.max_draft_len):
        raise RepositoryError(
            f"num_draft_tokens is {options.num_draft_tokens}; TensorRT-LLM drafts {target.max_draft_len} "
            f"tokens in every round, as {pair.path} was built"
        )
    options.check(target.max_draft_len, pair.path)
    arguments = _read_arguments(pair)
    drafting = arguments["speculative_config"]
    one_engine = dialect_of(_version(pair)).one_engine
    facts = EngineFacts(
        runtime=manifest.runtime,
        max_draft_len=target.max_draft_len,
        max_seq_len=target.max_seq_len,
        draft_max_seq_len=target.max_seq_len,
        vocab_size=target.vocab_size,
        max_rows_per_call=target.max_batch_size,
        eos_token_ids=manifest.eos_token_ids,
    )
    can = {
        # Only n-grams are drafted where some are found.
        "fixed_length": manifest.speculation != "ngram",
        "one_engine": one_engine,
        "samples": not one_engine or drafting.get("allow_advanced_sampling", False),
        "penalties": not one_engine or drafting.get("enable_penalty", False),
    }
    engines = {"engine/target": files_in(pair.target)}
    if manifest.draft is not None:
        engines["engine/draft"] = files_in(pair.draft)
    tokenizer, texts = tokenizer_files(files_in(pair.tokenizer), options)
    return ModelFolder(
        public_config(facts, options, {name: str(value).lower() for name, value in can.items()}),
        (llm_api, "served.llm_api"),
        imports={"served.speculation": speculation},
        folders={"tokenizer": tokenizer, **engines},
        texts={**texts, "llm_args.json": json.dumps(arguments, indent=2) + "\n"},
    )


def llm_api_script(pair: EnginePair) -> str:
    """Return the shell script that starts the server: TensorRT-LLM starts the ranks by itself."""
    version = pair.manifest.versions["tensorrt_llm"]
    image = triton_image(pair.manifest) or f"an image with Triton and TensorRT-LLM {version}"
    return launch_script(LaunchPlan("leader", (), (), fast_logits=False), image)


def triton_image(manifest: Manifest) -> str | None:
    """Return the Triton container that has the pair's TensorRT-LLM; None where there is none."""
    image = manifest.host_needs.container if manifest.host_needs else None
    return image if image and image.startswith(TRITON_REGISTRY) else None


def _version(pair: EnginePair) -> str:
    version = pair.manifest.versions.get("tensorrt_llm")
    if version is None:
        raise EngineError(f"{pair.path / MANIFEST}: no version of TensorRT-LLM; build the pair again")
    return version


def _read_arguments(pair: EnginePair) -> dict[str, dict[str, object]]:
    file = pair.path / ARGUMENTS
    try:
        found = yaml.safe_load(file.read_text("utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise EngineError(f"{file}: cannot be read ({error}); build the pair again") from error
    if not isinstance(found, dict) or not isinstance(found.get("speculative_config"), dict):
        raise EngineError(f"{file}: no speculative_config; build the pair again")
    try:
        json.dumps(found)
    except (TypeError, ValueError) as error:  # YAML has dates, sets and loops, too
        raise EngineError(f"{file}: no plain values ({error}); build the pair again") from error
    return found
