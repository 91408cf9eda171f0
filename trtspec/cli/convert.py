"""`trtspec convert`: one checkpoint in, a TensorRT-LLM or Hugging Face checkpoint out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from trtspec.build.convert.formats import FLOATS, FORMATS
from trtspec.build.quantize.choices import (
    BOTH,
    CALIBRATE_HELP,
    DEVICES,
    QUANTIZATIONS,
    Device,
    Quantization,
    read_calibrate,
)

if TYPE_CHECKING:
    from trtspec.build.convert.converter import Conversion
    from trtspec.build.quantize.quantizer import Quantized


@click.command("convert")
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option("--output", required=True, type=click.Path(path_type=Path), help="Folder to make.")
@click.option(
    "--format",
    type=click.Choice([*FORMATS, BOTH]),
    default="trtllm",
    show_default=True,
    help="What to write; both, from one calibration, for FP8 only.",
)
@click.option("--dtype", type=click.Choice(list(FLOATS)), help="Cast the weights.")
@click.option("--tp", type=click.IntRange(min=1), default=1, show_default=True, help="Tensor-parallel ranks.")
@click.option("--pp", type=click.IntRange(min=1), default=1, show_default=True, help="Pipeline stages.")
@click.option("--workers", type=click.IntRange(min=1), help="Threads; one a core by default.")
@click.option(
    "--quantization",
    type=click.Choice(QUANTIZATIONS),
    default="none",
    show_default=True,
    help="Of the weights.",
)
@click.option(
    "--calibrate",
    metavar="PROMPTS|none",
    callback=lambda ctx, param, value: read_calibrate(value),
    help=CALIBRATE_HELP,
)
@click.option("--kv-cache", type=click.Choice(["fp8"]), help="Calibrate an FP8 key-value cache too.")
@click.option(
    "--device", type=click.Choice(DEVICES), default="cpu", show_default=True, help="Where to calibrate."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def command(
    checkpoint: Path,
    output: Path,
    quantization: Quantization,
    calibrate: Path | Literal["none"] | None,
    kv_cache: str | None,
    device: Device,
    as_json: bool,
    **options: Any,
) -> None:
    """Convert a Hugging Face CHECKPOINT folder, streaming, for trtllm-build or for its PyTorch backend.

    The weights are checked on the way (NaN, Inf, values too large for --dtype), and the output folder
    appears whole or not at all. --quantization fp8 calibrates layer by layer; a calibration that is killed
    goes on where it was. A checkpoint that is FP8 already is converted, not quantised again.

    \b
    Example:
      trtspec convert Llama-3.1-8B-Instruct --output work/target --tp 2
      trtspec convert Llama-3.1-8B-Instruct --output work/fp8 --quantization fp8 --calibrate prompts.jsonl
      trtllm-build --checkpoint_dir work/target --output_dir work/engine
    """
    from trtspec.build.checkpoint import open_checkpoint
    from trtspec.build.convert.converter import convert
    from trtspec.build.quantize.quantizer import Fp8Options, quantize
    from trtspec.build.quantize.ready_made import read_fp8

    if quantization == "none" and (calibrate or kv_cache):
        raise click.UsageError("--calibrate and --kv-cache are for --quantization fp8")
    opened = open_checkpoint(checkpoint)
    with _progress(checkpoint.name, quiet=as_json) as (layers, progress):
        if quantization == "fp8" or read_fp8(opened):
            fp8 = Fp8Options(calibrate=calibrate, kv_cache=kv_cache is not None, device=device)
            quantized = quantize(opened, output, fp8, report=layers, progress=progress, **options)
            made = quantized.conversions
        elif options["format"] == BOTH:
            raise click.UsageError("--format both is for --quantization fp8")
        else:
            quantized, made = None, (convert(opened, output, progress=progress, **options),)
    if as_json:
        click.echo(json.dumps(_as_dict(made, quantized)))
    else:
        _print(made, quantized)


def _as_dict(made: tuple[Conversion, ...], quantized: Quantized | None) -> dict[str, Any]:
    conversions = [{**asdict(conversion), "output": str(conversion.output)} for conversion in made]
    if quantized is None:
        return conversions[0]
    described = {key: value for key, value in asdict(quantized).items() if key != "conversions"}
    if len(conversions) == 1:
        return {**conversions[0], "quantization": described}
    return {"conversions": conversions, "quantization": described}


def _print(made: tuple[Conversion, ...], quantized: Quantized | None) -> None:
    from rich.filesize import decimal

    for note in dict.fromkeys(note for conversion in made for note in conversion.notes):
        click.echo(f"note: {note}", err=True)
    if quantized and (found := quantized.calibration):
        click.echo(
            f"calibrated on {found.texts} texts, {found.tokens:,} tokens (sha256 {found.texts_sha256[:12]}…)",
            err=True,
        )
    for conversion in made:
        kind = f", {quantized.algorithm} by {quantized.origin}" if quantized else ""
        click.echo(
            f"{conversion.output}: {conversion.architecture}, {conversion.dtype}{kind}, {conversion.tensors} "
            f"tensors, {decimal(conversion.size_bytes)}, tp {conversion.tp} x pp {conversion.pp}"
        )


Report = Callable[[int, int], None]


@contextmanager
def _progress(name: str, *, quiet: bool) -> Iterator[tuple[Report | None, Report | None]]:
    """Show layers calibrated, bytes read and the time left, on stderr where that is a terminal."""
    if quiet:
        yield None, None
        return
    from rich.filesize import decimal
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from trtspec.cli.parts.console import console

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[shown]}"),
        TimeRemainingColumn(),
    )
    screen = console(stderr=True)
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        layers = bar.add_task("calibration", total=None, visible=False, shown="")
        weights = bar.add_task(name, total=None, visible=False, shown="")

        def calibrated(done: int, total: int) -> None:
            bar.update(layers, completed=done, total=total, visible=True, shown=f"{done}/{total} layers")

        def written(done: int, total: int) -> None:
            shown = f"{decimal(done)}/{decimal(total)}"
            bar.update(weights, completed=done, total=total, visible=True, shown=shown)

        yield calibrated, written
