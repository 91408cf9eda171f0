"""One checkpoint quantised to FP8, in either format; one that is FP8 already is converted, not quantised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from trtspec.build.checkpoint import Checkpoint, open_checkpoint
from trtspec.build.convert.converter import Conversion, check_output, convert, plan_conversion
from trtspec.build.convert.formats import FORMATS
from trtspec.build.convert.fp8 import Fp8Scales
from trtspec.build.convert.linears import find_linears
from trtspec.build.convert.stream import Progress
from trtspec.build.quantize.choices import BOTH, Device
from trtspec.build.quantize.ready_made import read_fp8
from trtspec.build.quantize.scales import scales_of
from trtspec.build.quantize.texts import CALIBRATION, encode_texts, read_texts, shipped_texts
from trtspec.engines.publish import publish
from trtspec.errors import BuildError

CACHE_NOTE = (
    "the key-value cache will be FP8: TensorRT-LLM has an open report of wrong output when such a cache is "
    "reused between requests, as draft-target does; compare answers before you serve it"
)

LayerReport = Callable[[int, int], None]  # layers calibrated, and of all


@dataclass(frozen=True)
class Fp8Options:
    """How a checkpoint is quantised."""

    # A file of texts; "none": no calibration, the runtime finds activation scales; None: trtspec's own texts.
    calibrate: Path | Literal["none"] | None = None
    kv_cache: bool = False
    device: Device = "cpu"
    # float16, bfloat16 or float32 for the calibration's arithmetic; None: the checkpoint's.
    compute_dtype: str | None = None


@dataclass(frozen=True)
class Calibration:
    """What the activation scales come from."""

    texts_sha256: str
    texts: int
    tokens: int
    compute_dtype: str


@dataclass(frozen=True)
class Quantized:
    """What a quantisation wrote."""

    conversions: tuple[Conversion, ...]
    algorithm: str
    origin: str  # who quantised: trtspec, or who made the checkpoint
    calibration: Calibration | None


def quantize(
    checkpoint: Checkpoint | Path | str,
    output: Path | str,
    options: Fp8Options | None = None,
    *,
    format: str = "trtllm",
    dtype: str | None = None,
    tp: int = 1,
    pp: int = 1,
    workers: int | None = None,
    report: LayerReport | None = None,
    progress: Progress | None = None,
) -> Quantized:
    """Write one checkpoint as FP8 into a new folder, which appears whole or not at all.

    A calibration that is killed leaves a hidden folder beside the output, and goes on from there.

    Args:
        format: "trtllm", "hf", or "both": a folder of each, from one calibration.
        output, dtype, tp, pp, workers, progress: as of `trtspec.build.convert.converter.convert`.
        report: called after each layer of the calibration.

    Raises:
        CheckpointError, BuildError: as convert, and where FP8 cannot hold the model.
    """
    if isinstance(checkpoint, Path | str):
        checkpoint = open_checkpoint(Path(checkpoint))
    output, options = Path(output), options or Fp8Options()
    check_output(output, checkpoint)
    formats = FORMATS if format == BOTH else (format,)
    splits = {name: (tp, pp) if name != "hf" or format != BOTH else (1, 1) for name in formats}
    fp8, calibration = read_fp8(checkpoint), None
    if fp8 is None:
        for name, split in splits.items():
            plan_conversion(checkpoint, name, dtype, *split)
            check_options(checkpoint, options, name)
        state = output.parent / f".{output.name}.calibration"
        fp8, calibration = find_scales(checkpoint, options, state=state, report=report)

    def write(name: str, place: Path) -> Conversion:
        tp, pp = splits[name]
        return convert(
            checkpoint,
            place,
            format=name,
            dtype=dtype,
            tp=tp,
            pp=pp,
            workers=workers,
            fp8=fp8,
            progress=progress,
        )

    if format == BOTH:
        with publish(output) as folder:
            made = [write(name, folder / name) for name in formats]
        made = [replace(conversion, output=output / conversion.format) for conversion in made]
    else:
        made = [write(format, output)]
    notes = (CACHE_NOTE,) if fp8.cache else ()
    conversions = tuple(replace(conversion, notes=conversion.notes + notes) for conversion in made)
    return Quantized(conversions, fp8.algorithm, fp8.origin, calibration)


def find_scales(
    checkpoint: Checkpoint,
    options: Fp8Options,
    *,
    tokenizer: Path | None = None,
    state: Path | None = None,
    report: LayerReport | None = None,
) -> tuple[Fp8Scales, Calibration | None]:
    """Return the scales of an unquantised checkpoint, and what they were calibrated on.

    Args:
        tokenizer: the folder of the tokenizer's files, where it is not the checkpoint's.
        state: see `trtspec.build.quantize.calibration.calibrate`.
    """
    linears = find_linears(checkpoint)
    if options.calibrate == "none":
        return scales_of(checkpoint, linears, None, {}), None
    from trtspec.build.quantize.calibration import calibrate, checkpoint_dtype, named_dtype

    dtype = named_dtype(options.compute_dtype) if options.compute_dtype else checkpoint_dtype(checkpoint)
    texts = read_texts(options.calibrate) if options.calibrate else shipped_texts(CALIBRATION)
    ids = encode_texts(texts, checkpoint, tokenizer)
    maxima = calibrate(
        checkpoint,
        ids,
        dtype=dtype,
        device=options.device,
        kv_cache=options.kv_cache,
        state=state,
        report=report,
    )
    found = scales_of(checkpoint, linears, maxima.inputs, maxima.cache)
    name = str(dtype).removeprefix("torch.")
    return found, Calibration(texts.sha256, len(ids), sum(map(len, ids)), name)


def check_options(checkpoint: Checkpoint, options: Fp8Options, format: str) -> None:
    """Refuse, before anything is read, what the format cannot hold."""
    transposed = find_linears(checkpoint)[0].transposed
    faults = (
        (
            format == "trtllm" and options.calibrate == "none",
            "--calibrate none leaves activations without scales, and a TensorRT engine has them fixed when "
            "it is built: give --calibrate PROMPTS, or --format hf, whose runtime can find them itself",
        ),
        (
            options.kv_cache and options.calibrate == "none",
            "--kv-cache fp8 needs the scales of keys and values: give --calibrate PROMPTS",
        ),
        (
            format == "hf" and transposed,
            f"{checkpoint.architecture} stores its matrices [in, out], which the unified FP8 layout has no "
            "word for; take --format trtllm or no quantisation",
        ),
    )
    for wrong, message in faults:
        if wrong:
            raise BuildError(message)
