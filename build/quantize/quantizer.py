"""One checkpoint quantised to FP8, in either format; one that is FP8 already is converted, not quantised."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from trtspec.build.checkpoint import Checkpoint, open_checkpoint
from trtspec.build.convert.converter import Conversion, check_output, convert, plan_conversion
from trtspec.build.convert.formats import FORMATS
from trtspec.build.convert.fp8 import Fp8Scales
from trtspec.build.convert.linears import LayerLinears, find_linears
from trtspec.build.convert.stream import Progress
from trtspec.build.quantize.choices import BOTH, Device
from trtspec.build.quantize.ready_made import read_fp8
from trtspec.build.quantize.scales import main_float, weight_scales, with_activations
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
    writer = _Writer(checkpoint, output, format, dtype, tp, pp, workers)
    ready_made = read_fp8(checkpoint)
    if ready_made:
        return writer.described(writer.write(ready_made, progress=progress), ready_made, None)
    for name in writer.formats:
        plan_conversion(checkpoint, name, dtype, *writer.split(name))
        check_options(checkpoint, options, name)
    if options.calibrate == "none":
        weights = weight_scales(checkpoint, find_linears(checkpoint))
        return writer.described(writer.write(weights, progress=progress), weights, None)
    with ThreadPoolExecutor(1, thread_name_prefix="scales") as pool:
        # While torch, transformers and the tokenizer load.
        looking = pool.submit(weight_scales, checkpoint, find_linears(checkpoint))
        prepared = prepare(checkpoint, options)
        weights = looking.result()
    state = output.parent / f".{output.name}.calibration"
    conversions, scales = _write_while_calibrating(writer, weights, prepared, state, report, progress)
    return writer.described(conversions, scales, prepared.calibration)


@dataclass(frozen=True)
class _Writer:
    """Writes the output, once its scales are known."""

    checkpoint: Checkpoint
    output: Path
    format: str
    dtype: str | None
    tp: int
    pp: int
    workers: int | None

    @property
    def formats(self) -> tuple[str, ...]:
        return FORMATS if self.format == BOTH else (self.format,)

    def split(self, format: str) -> tuple[int, int]:
        """Return the tensor-parallel ranks and pipeline stages of a format."""
        # A Hugging Face folder is split by its runtime.
        return (1, 1) if self.format == BOTH and format == "hf" else (self.tp, self.pp)

    def write(
        self,
        fp8: Fp8Scales,
        complete: Callable[[], Fp8Scales] | None = None,
        progress: Progress | None = None,
    ) -> list[Conversion]:
        """Write one folder, or one of both formats."""
        if self.format != BOTH:
            return [self._convert(self.format, self.output, fp8, complete, progress)]
        with publish(self.output) as folder:
            made = [self._convert(name, folder / name, fp8, complete, progress) for name in FORMATS]
        return [replace(conversion, output=self.output / conversion.format) for conversion in made]

    def _convert(
        self,
        format: str,
        output: Path,
        fp8: Fp8Scales,
        complete: Callable[[], Fp8Scales] | None,
        progress: Progress | None,
    ) -> Conversion:
        tp, pp = self.split(format)
        return convert(
            self.checkpoint,
            output,
            format=format,
            dtype=self.dtype,
            tp=tp,
            pp=pp,
            workers=self.workers,
            fp8=fp8,
            complete=complete,
            progress=progress,
        )

    def described(
        self, conversions: list[Conversion], fp8: Fp8Scales, calibration: Calibration | None
    ) -> Quantized:
        """Return what was written."""
        notes = (CACHE_NOTE,) if fp8.cache else ()
        noted = tuple(replace(conversion, notes=conversion.notes + notes) for conversion in conversions)
        return Quantized(noted, fp8.algorithm, fp8.origin, calibration)


def _write_while_calibrating(
    writer: _Writer,
    weights: Fp8Scales,
    prepared: Prepared,
    state: Path,
    report: LayerReport | None,
    progress: Progress | None,
) -> tuple[list[Conversion], Fp8Scales]:
    """Write codes, which need no calibration, while it runs; what stops one stops the other."""
    scales: Future[Fp8Scales] = Future()

    def written(done: int, total: int) -> None:
        if scales.done():
            scales.result()
        if progress:
            progress(done, total)

    with ThreadPoolExecutor(1, thread_name_prefix="write") as pool:
        writing = pool.submit(writer.write, prepared.placeholders(weights), scales.result, written)

        def calibrated(done: int, layers: int) -> None:
            if writing.done():
                writing.result()
            if report:
                report(done, layers)

        try:
            scales.set_result(prepared.scales(weights, state, calibrated))
        except BaseException as error:
            scales.set_exception(error)
            raise
    return writing.result(), scales.result()


@dataclass(frozen=True)
class Prepared:
    """A calibration that can begin: its texts are read and fit the model."""

    checkpoint: Checkpoint
    options: Fp8Options
    linears: tuple[LayerLinears, ...]
    ids: list[list[int]]
    calibration: Calibration

    def placeholders(self, weights: Fp8Scales) -> Fp8Scales:
        """Return scales of the shape that the calibration's will have."""
        attentions = [layer.attention for layer in self.linears if self.options.kv_cache]
        return with_activations(
            weights, dict.fromkeys(weights.linears, 1.0), dict.fromkeys(attentions, (1.0, 1.0))
        )

    def scales(self, weights: Fp8Scales, state: Path | None, report: LayerReport | None) -> Fp8Scales:
        """Calibrate, and return all scales."""
        from trtspec.build.quantize.calibration import calibrate, named_dtype

        maxima = calibrate(
            self.checkpoint,
            self.ids,
            dtype=named_dtype(self.calibration.compute_dtype),
            device=self.options.device,
            kv_cache=self.options.kv_cache,
            state=state,
            report=report,
        )
        return with_activations(weights, maxima.inputs, maxima.cache)


def prepare(checkpoint: Checkpoint, options: Fp8Options, tokenizer: Path | None = None) -> Prepared:
    """Read the texts of a calibration.

    Args:
        tokenizer: the folder of the tokenizer's files, where it is not the checkpoint's.

    Raises:
        CheckpointError: no tokenizer can be loaded.
        BuildError: the texts cannot be used.
    """
    assert options.calibrate != "none"
    texts = read_texts(options.calibrate) if options.calibrate else shipped_texts(CALIBRATION)
    ids = encode_texts(texts, checkpoint, tokenizer)
    dtype = options.compute_dtype or main_float(checkpoint)
    calibration = Calibration(texts.sha256, len(ids), sum(map(len, ids)), dtype)
    return Prepared(checkpoint, options, find_linears(checkpoint), ids, calibration)


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
