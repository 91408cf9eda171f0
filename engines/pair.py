"""An engine pair on disk, as a value.

pair/
  trtspec.json      the manifest, written last: a folder with a manifest is whole
  target/  draft/   engine folders of the runtime
  tokenizer/        tokenizer.json, and the files a client of Hugging Face needs beside it
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trtspec.errors import EngineError

MANIFEST = "trtspec.json"
CHUNK_BYTES = 1 << 22

Runtime = Literal["cpu", "tensorrt"]
EngineDtype = Literal["float32", "bfloat16", "float16"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class EngineSettings(_Strict):
    """What an engine can hold; `engine.json` in its folder."""

    dtype: EngineDtype = Field(description="dtype the engine computes in")
    max_seq_len: int = Field(description="tokens of prompt and answer together")
    max_batch_size: int = Field(description="sequences in flight")
    max_draft_len: int = Field(description="largest number of draft tokens in a round")
    vocab_size: int = Field(description="columns of the logits")


class CalibrationManifest(_Strict):
    """What activation scales were found on."""

    texts_sha256: str
    texts: int
    tokens: int
    compute_dtype: str


class QualityManifest(_Strict):
    """A quantised model against the unquantised one, on text that calibration did not see."""

    texts_sha256: str
    tokens: int = Field(description="positions compared")
    top1_agreement: float
    kl_divergence: float = Field(description="mean, in nats")
    perplexity_before: float
    perplexity_after: float
    weight_errors: dict[str, float] = Field(description="relative root mean square error, by module")


class QuantizationManifest(_Strict):
    """How an engine is quantised, and what that costs."""

    algorithm: str = Field(description="FP8, or FP8_PER_CHANNEL_PER_TOKEN")
    origin: str = Field(description="who quantised: trtspec, modelopt or compressed-tensors")
    activations: Literal["static", "dynamic"]
    calibration: CalibrationManifest | None = None
    quality: QualityManifest | None = None


class AcceptanceManifest(_Strict):
    """How often draft tokens are accepted, measured on text, before and after quantisation."""

    sampled_before: float
    sampled_after: float
    greedy_before: float
    greedy_after: float


class HostNeeds(_Strict):
    """What a GPU that runs the pair must have; the cpu runtime needs none."""

    min_sm: int = Field(description="compute capability, 89 for 8.9")


class EngineManifest(_Strict):
    """Where an engine comes from."""

    architecture: str
    source_dtype: str = Field(description="dtype of most weights, in the spelling of safetensors")
    parameters: int
    settings: EngineSettings
    quantization: QuantizationManifest | None = None
    files: dict[str, str] = Field(description="SHA-256 of each file of the engine, by its name")


class Manifest(_Strict):
    """What a pair is and where it may run; `trtspec.json`."""

    format: Literal[1] = 1
    trtspec_version: str
    runtime: Runtime
    compiled: bool = Field(description="False: the folders hold checkpoints that trtllm-build has to compile")
    target: EngineManifest
    draft: EngineManifest
    eos_token_ids: tuple[int, ...]
    repairs: tuple[str, ...] = Field(description="findings of the pair check that the build has mended")
    tokenizer_sha256: str
    acceptance: AcceptanceManifest | None = None
    host_needs: HostNeeds | None = None


@dataclass(frozen=True)
class EnginePair:
    """A whole pair: its folder and its manifest."""

    path: Path
    manifest: Manifest

    @property
    def target(self) -> Path:
        return self.path / "target"

    @property
    def draft(self) -> Path:
        return self.path / "draft"

    @property
    def tokenizer(self) -> Path:
        return self.path / "tokenizer"

    def files(self) -> dict[str, str]:
        """Return the SHA-256 of every file of the manifest, by its path in the pair."""
        engines = (("target", self.manifest.target), ("draft", self.manifest.draft))
        hashes = {
            f"{name}/{file}": digest for name, engine in engines for file, digest in engine.files.items()
        }
        return hashes | {"tokenizer/tokenizer.json": self.manifest.tokenizer_sha256}


def open_pair(path: Path) -> EnginePair:
    """Return the pair in a folder; EngineError when it is none or not whole."""
    if not path.is_dir():
        raise EngineError(f"{path}: no such folder; expected an engine pair, made by `trtspec build`")
    file = path / MANIFEST
    if not file.is_file():
        raise EngineError(f"{path}: no {MANIFEST}, so this is no engine pair; make one with `trtspec build`")
    try:
        manifest = Manifest.model_validate(json.loads(file.read_text("utf-8")))
    except (ValueError, ValidationError) as error:
        raise EngineError(f"{file}: {_reason(error)}; build the pair again") from error
    pair = EnginePair(path, manifest)
    missing = [file for file in pair.files() if not (path / file).is_file()]
    if missing:
        raise EngineError(
            f"{path}: {len(missing)} files of the manifest are missing, first {missing[0]}; "
            "build the pair again"
        )
    return pair


def check_contents(pair: EnginePair) -> None:
    """Raise EngineError where a file of the pair is not the one that was built. Reads all of them."""
    changed = [file for file, digest in pair.files().items() if sha256(pair.path / file) != digest]
    if changed:
        raise EngineError(
            f"{pair.path}: {len(changed)} files are not as they were built, first {changed[0]}; "
            "build the pair again"
        )


def sha256(file: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with file.open("rb") as reader:
        while chunk := reader.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _reason(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return f"not JSON ({error})"
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{error.error_count()} entries are not as expected, first {where}: {first['msg']}"


def write_manifest(manifest: Manifest, path: Path) -> None:
    """Write the manifest of the pair in a folder."""
    text = json.dumps(manifest.model_dump(mode="json"), indent=2, sort_keys=True)
    (path / MANIFEST).write_text(text + "\n", "utf-8")
