"""The FP8 engines of a pair on the cpu runtime, and what quantising them cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from trtspec.build.checkpoint import Checkpoint, open_checkpoint
from trtspec.build.convert.converter import WRITING_BYTES, write_plan
from trtspec.build.convert.fp8 import Fp8Scales
from trtspec.build.convert.hf_plan import COMPANIONS, plan_hf
from trtspec.build.convert.linears import find_linears
from trtspec.build.convert.stream import Progress
from trtspec.build.quantize.choices import Device, Quantization
from trtspec.build.quantize.quantizer import Calibration, Fp8Options, check_options, prepare
from trtspec.build.quantize.ready_made import read_fp8
from trtspec.build.quantize.scales import weight_scales
from trtspec.build.quantize.texts import (
    HELD_OUT,
    Texts,
    check_lengths,
    encode_texts,
    read_texts,
    shipped_texts,
)
from trtspec.choices import EngineDtype
from trtspec.engines.manifest import (
    AcceptanceManifest,
    CalibrationManifest,
    QualityManifest,
    QuantizationManifest,
)
from trtspec.errors import BuildError

Report = Callable[[str], None]


@dataclass(frozen=True)
class PairQuantization:
    """What of a pair is quantised, and how it is calibrated and measured."""

    target: Quantization = "none"
    draft: Quantization = "none"
    # As in Fp8Options.
    calibrate: Path | Literal["none"] | None = None
    # Texts to measure on; None: trtspec's own. Not those of the calibration.
    evaluate: Path | None = None
    # The build fails where a model moves farther than this, in nats; None: it never does.
    max_kl: float | None = None
    device: Device = "cpu"

    @property
    def fp8(self) -> Fp8Options:
        """How one checkpoint is quantised."""
        return Fp8Options(calibrate=self.calibrate, device=self.device)

    def of(self, role: str) -> Quantization:
        """Return what was asked of the target or the draft."""
        return self.target if role == "target" else self.draft

    def inputs(self, role: str) -> dict[str, object]:
        """Return what decides about the codes and scales of the target or the draft."""
        if self.of(role) == "none":
            return {"quantization": "none"}
        return {"quantization": self.of(role), "calibrate": self.calibrate, "device": self.device}

    def memory_bytes(self, role: str) -> int | None:
        """Return what writing the target or the draft takes; None: calibration has the machine for itself."""
        return None if self.of(role) == "fp8" else WRITING_BYTES


@dataclass(frozen=True)
class Role:
    """One model of the pair on its way to an engine."""

    name: str  # target or draft
    checkpoint: Checkpoint
    engine: Path  # the folder to write
    wanted: Quantization


@dataclass(frozen=True)
class QuantizedRole:
    """An engine folder of FP8, and where its scales come from."""

    role: Role
    manifest: QuantizationManifest


def write_role(
    role: Role,
    options: PairQuantization,
    dtype: EngineDtype,
    tokenizer: Path,
    state: Path,
    report: Report,
    progress: Progress | None = None,
) -> QuantizedRole | None:
    """Write config.json and weights of a cpu engine; None where the model stays unquantised.

    A checkpoint that is FP8 already keeps its codes and scales, whatever was asked.

    Args:
        state: the folder that a killed calibration goes on from.
        progress: called with the source bytes done and in all; what it raises ends the writing.

    Raises:
        CheckpointError: the weights hold NaN or Inf.
        BuildError: FP8 cannot hold the model.
    """
    fp8, calibration = find_scales(role, options.fp8, "hf", dtype, tokenizer, state, report)
    for note in fp8.notes if fp8 else ():
        report(f"{role.name}: {note}")
    if fp8 and fp8.cache:
        report(f"{role.name}: its FP8 cache scales are kept; the cpu runtime caches in {dtype}")
    plan = plan_hf(role.checkpoint, fp8=fp8)
    documents = {name: content for name, content in plan.documents.items() if name not in COMPANIONS}
    write_plan(replace(plan, documents=documents), role.engine, progress=progress)
    return QuantizedRole(role, quantization_manifest(fp8, calibration)) if fp8 else None


def find_scales(
    role: Role,
    options: Fp8Options,
    format: str,
    dtype: EngineDtype,
    tokenizer: Path,
    state: Path,
    report: Report,
) -> tuple[Fp8Scales | None, Calibration | None]:
    """Return the scales of a model that is FP8, or shall be, and what they were found on.

    Args:
        format: "hf" or "trtllm", which holds less.
        state: the folder that a killed calibration goes on from.
    """
    fp8, calibration = read_fp8(role.checkpoint), None
    if fp8 is not None:
        report(f"{role.name}: FP8 already, quantised by {fp8.origin}; its codes and scales are kept")
    elif role.wanted == "fp8":
        options = replace(options, compute_dtype=dtype)
        check_options(role.checkpoint, options, format)

        def say(done: int, layers: int) -> None:
            report(f"{role.name}: calibrated {done} of {layers} layers")

        fp8 = weight_scales(role.checkpoint, find_linears(role.checkpoint))
        if options.calibrate != "none":
            prepared = prepare(role.checkpoint, options, tokenizer)
            fp8, calibration = prepared.scales(fp8, state, say), prepared.calibration
    return fp8, calibration


def quantization_manifest(fp8: Fp8Scales, calibration: Calibration | None) -> QuantizationManifest:
    """Return how a model is quantised, its quality not yet measured."""
    return QuantizationManifest(
        algorithm=fp8.algorithm,
        origin=fp8.origin,
        activations="static" if fp8.static else "dynamic",
        calibration=None if calibration is None else CalibrationManifest(**vars(calibration)),
    )


def measure_quality(
    target: Role,
    draft: Role,
    quantised: Sequence[QuantizedRole],
    options: PairQuantization,
    dtype: EngineDtype,
    tokenizer: Path,
    report: Report,
) -> tuple[dict[str, QuantizationManifest], AcceptanceManifest | None]:
    """Return the manifests with the quality of what was quantised here, and the pair's acceptance.

    Nothing is measured where nothing was quantised here: there is no unquantised model to compare with.

    Raises:
        BuildError: a model moved farther than `max_kl` allows, or the texts cannot be used.
    """
    manifests = {found.role.name: found.manifest for found in quantised}
    ours = [found.role for found in quantised if found.manifest.origin == "trtspec"]
    if not ours:
        return manifests, None
    from trtspec.build.quantize.calibration import named_dtype
    from trtspec.build.quantize.quality import acceptance, check_divergence, compare, evaluate

    texts = read_texts(options.evaluate) if options.evaluate else shipped_texts(HELD_OUT)
    ids = encode_texts(texts, target.checkpoint, tokenizer)
    check_lengths(ids, draft.checkpoint, texts.name)
    _check_held_out(texts, manifests)
    evaluated = {}
    for role in (target, draft):
        report(f"{role.name}: running {sum(map(len, ids))} tokens of held-out text")
        written = open_checkpoint(role.engine) if role in ours else None
        evaluated[role.name] = evaluate(role.checkpoint, written, ids, named_dtype(dtype), options.device)
    for role in ours:
        quality = compare(evaluated[role.name], ids)
        check_divergence(role.name, quality, options.max_kl)
        found = QualityManifest(texts_sha256=texts.sha256, **vars(quality))
        manifests[role.name] = manifests[role.name].model_copy(update={"quality": found})
    before, after = acceptance(evaluated["target"], evaluated["draft"])
    return manifests, AcceptanceManifest(
        sampled_before=before.sampled,
        sampled_after=after.sampled,
        greedy_before=before.greedy,
        greedy_after=after.greedy,
    )


def _check_held_out(texts: Texts, manifests: dict[str, QuantizationManifest]) -> None:
    calibrated = {m.calibration.texts_sha256 for m in manifests.values() if m.calibration is not None}
    if texts.sha256 in calibrated:
        raise BuildError(
            f"{texts.name}: calibration has seen these texts, so they say little about quality; give others "
            "with --evaluate"
        )
