"""What an engine pair is and where it may run, as data: `trtspec.json`."""

from __future__ import annotations

import json
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from trtspec.choices import Dtype, EngineDtype, Runtime
from trtspec.dtype_noise import served_dtype
from trtspec.engines.memory.result import MemoryPlan

MANIFEST = "trtspec.json"
# Ids are int32 where engines take them.
MOST_ID = 2**31 - 1


class Strict(BaseModel):
    """A document of ours: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class EngineSettings(Strict):
    """What an engine can hold; `engine.json` in its folder."""

    dtype: EngineDtype = Field(description="dtype the engine computes in")
    max_seq_len: int = Field(description="tokens of prompt and answer together")
    max_batch_size: int = Field(description="sequences in flight")
    max_draft_len: int = Field(description="largest number of draft tokens in a round")
    vocab_size: int = Field(description="columns of the logits")
    tp: int = Field(default=1, description="tensor-parallel ranks")
    pp: int = Field(default=1, description="pipeline stages")


class CalibrationManifest(Strict):
    """What activation scales were found on."""

    texts_sha256: str
    texts: int
    tokens: int
    compute_dtype: str


class QualityManifest(Strict):
    """A quantised model against the unquantised one, on text that calibration did not see."""

    texts_sha256: str
    tokens: int = Field(description="positions compared")
    top1_agreement: float
    kl_divergence: float = Field(description="mean, in nats")
    perplexity_before: float
    perplexity_after: float
    weight_errors: dict[str, float] = Field(description="relative root mean square error, by module")


class QuantizationManifest(Strict):
    """How an engine is quantised, and what that costs."""

    algorithm: str = Field(description="FP8, or FP8_PER_CHANNEL_PER_TOKEN")
    origin: str = Field(description="who quantised: trtspec, modelopt or compressed-tensors")
    activations: Literal["static", "dynamic"]
    calibration: CalibrationManifest | None = None
    quality: QualityManifest | None = None


class AcceptanceManifest(Strict):
    """How often draft tokens are accepted, measured on text, before and after quantisation."""

    sampled_before: float
    sampled_after: float
    greedy_before: float
    greedy_after: float


class HostNeeds(Strict):
    """What a machine that runs the pair must have; None where any will do."""

    min_sm: int | None = Field(default=None, description="lowest compute capability, 89 for 8.9")
    sm: int | None = Field(default=None, description="the compute capability the engines were compiled for")
    gpus: int = Field(default=0, description="GPUs that the two models take together")
    tensorrt_llm: str | None = Field(default=None, description="version; exact for compiled engines")
    tensorrt: str | None = Field(default=None, description="version the engines were compiled with")
    cuda: str | None = None
    container: str | None = Field(default=None, description="image that has all of it")


class SourceManifest(Strict):
    """The checkpoint an engine was made from."""

    revision: str | None = Field(default=None, description="commit on the hub, where the folder tells")
    files: dict[str, str] = Field(description="SHA-256 of each file, by its name")


class ProbeManifest(Strict):
    """What an engine continued a prompt with, greedily."""

    # What is no number would be compared with nothing.
    model_config = ConfigDict(allow_inf_nan=False)

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    log_probs: tuple[float, ...] = Field(description="of each of the ids, rounded to 6 decimals")
    margins: tuple[float, ...] = Field(description="by how much each is better than the next best, in nats")
    tolerances: tuple[float, ...] = Field(
        description="by how much another correct computation in the engine's dtype may be off"
    )

    @model_validator(mode="after")
    def _check(self) -> ProbeManifest:
        counts = [len(values) for values in (self.ids, self.log_probs, self.margins, self.tolerances)]
        if not counts[0] or len({*counts}) > 1:
            raise ValueError(
                f"found {', '.join(map(str, counts))} ids, log_probs, margins and tolerances, expected as "
                "many of each, at least one"
            )
        if not self.prompt_ids or not all(0 <= i <= MOST_ID for i in (*self.prompt_ids, *self.ids)):
            raise ValueError(f"found no prompt or ids that are none, expected 0 to {MOST_ID}")
        return self


class FingerprintManifest(Strict):
    """How the engines behaved where the pair was built, to compare with where it runs."""

    target: tuple[ProbeManifest, ...]
    draft: tuple[ProbeManifest, ...] | None


class EngineManifest(Strict):
    """Where an engine comes from."""

    architecture: str
    source_dtype: str = Field(description="dtype of most weights, in the spelling of safetensors")
    parameters: int
    settings: EngineSettings
    quantization: QuantizationManifest | None = None
    source: SourceManifest | None = None
    files: dict[str, str] = Field(description="SHA-256 of each file of the engine, by its name")


class Manifest(Strict):
    """What a pair is and where it may run; `trtspec.json`."""

    format: Literal[2] = 2
    key: str = Field(default="", description="equal for equal builds: hash of all that decides about them")
    trtspec_version: str
    runtime: Runtime
    compiled: bool = Field(description="False: the folders hold checkpoints that trtllm-build has to compile")
    speculation: str = Field(default="draft_target", description="how tokens are drafted")
    target: EngineManifest
    draft: EngineManifest | None = Field(description="null where the drafter is no engine of its own")
    eos_token_ids: tuple[int, ...]
    repairs: tuple[str, ...] = Field(description="findings of the pair check that the build has mended")
    files: dict[str, str] = Field(description="SHA-256 of each file outside the engines, by its path")
    commands: tuple[tuple[str, ...], ...] = Field(default=(), description="what was run to build it")
    versions: dict[str, str] = Field(default={}, description="of what built it, by name")
    options: dict[str, JsonValue] = Field(
        default={}, description="as given to the build; a file by the SHA-256 of its content"
    )
    acceptance: AcceptanceManifest | None = None
    fingerprint: FingerprintManifest | None = None
    memory: MemoryPlan | None = Field(default=None, description="what both engines take of which GPUs")
    host_needs: HostNeeds | None = None

    @property
    def served_dtype(self) -> Dtype:
        """What the target computes in."""
        return served_dtype(self.target.settings.dtype, quantized=self.target.quantization is not None)

    @property
    def sources(self) -> dict[str, str]:
        """The SHA-256 of each file that the target was built from, by its name."""
        return self.target.source.files if self.target.source else {}


def schema() -> str:
    """Return the JSON Schema of `trtspec.json`, as `engines/manifest.schema.json` holds it."""
    document = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Manifest.model_json_schema()}
    return json.dumps(document, indent=2, sort_keys=True) + "\n"
