"""`trtspec build`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from trtspec.build.quantize.choices import (
    CALIBRATE_HELP,
    DEVICES,
    QUANTIZATIONS,
    Device,
    Quantization,
    read_calibrate,
)
from trtspec.recipe.option import recipe_option

if TYPE_CHECKING:
    from trtspec.engines.manifest import Manifest


@click.command()
@click.argument("target", type=click.Path(path_type=Path))
@click.argument("draft", type=click.Path(path_type=Path))
@click.option(
    "--output", type=click.Path(path_type=Path), required=True, help="Folder to make; must not exist."
)
@click.option(
    "--runtime",
    type=click.Choice(["cpu", "tensorrt"]),
    default="cpu",
    show_default=True,
    help="Where the engines run; tensorrt: TensorRT-LLM 1.2.1 checkpoints, for trtllm-build to compile.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="What the engines compute in.  [default: float32 on cpu, which equals Hugging Face token for "
    "token; the checkpoint's own for tensorrt]",
)
@click.option("--tp", type=click.IntRange(min=1), default=1, show_default=True, help="Tensor-parallel ranks.")
@click.option("--pp", type=click.IntRange(min=1), default=1, show_default=True, help="Pipeline stages.")
@click.option(
    "--max-seq-len",
    type=click.IntRange(min=2),
    help="Tokens of prompt and answer.  [default: the context, at most 4096]",
)
@click.option(
    "--max-batch-size", type=click.IntRange(min=1), default=16, show_default=True, help="Sequences in flight."
)
@click.option(
    "--max-draft-len",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    help="Largest γ a request may ask for.",
)
@click.option("--quantization", type=click.Choice(QUANTIZATIONS), help="Of both models.")
@click.option(
    "--target-quantization", type=click.Choice(QUANTIZATIONS), help="Of the target.  [default: none]"
)
@click.option("--draft-quantization", type=click.Choice(QUANTIZATIONS), help="Of the draft.  [default: none]")
@click.option(
    "--calibrate",
    metavar="PROMPTS|none",
    callback=lambda ctx, param, value: read_calibrate(value),
    help=CALIBRATE_HELP,
)
@click.option(
    "--evaluate",
    type=click.Path(path_type=Path),
    help="Texts to measure quality on, which calibration does not see.  [default: 16 texts that ship]",
)
@click.option(
    "--max-kl", type=click.FloatRange(min=0), help="Fail where FP8 moves a model farther, in nats a token."
)
@click.option(
    "--device", type=click.Choice(DEVICES), default="cpu", show_default=True, help="Where to calibrate."
)
@recipe_option("build")
@click.option("--json", "as_json", is_flag=True, help="Print the manifest as JSON.")
def command(
    target: Path,
    draft: Path,
    output: Path,
    quantization: Quantization | None,
    target_quantization: Quantization | None,
    draft_quantization: Quantization | None,
    calibrate: Path | Literal["none"] | None,
    evaluate: Path | None,
    max_kl: float | None,
    device: Device,
    as_json: bool,
    **options: Any,
) -> None:
    """Build an engine pair from two Hugging Face checkpoints, TARGET and DRAFT.

    The checkpoints are checked against each other first; nothing is written when they do not fit.
    A checkpoint that is FP8 already keeps its codes and scales.

    \b
    Example:
      trtspec build models/target models/draft --output work/pair
      trtspec build models/target models/draft --output work/pair-fp8 --quantization fp8 --max-kl 0.05
      trtspec build models/target models/draft --output work/trt --runtime tensorrt --tp 2
      trtspec build --recipe recipe.toml --tp 2
    """
    if quantization and (target_quantization or draft_quantization):
        raise click.UsageError("--quantization is for both models; give it, or one for each")
    from trtspec.build.options import BuildOptions
    from trtspec.build.pair import build
    from trtspec.build.quantize.pair_quantizer import PairQuantization

    report = (lambda line: None) if as_json else (lambda line: click.echo(line, err=True))
    wanted = PairQuantization(
        target=target_quantization or quantization or "none",
        draft=draft_quantization or quantization or "none",
        calibrate=calibrate,
        evaluate=evaluate,
        max_kl=max_kl,
        device=device,
    )
    pair = build(target, draft, output, BuildOptions(**options, quantization=wanted), report=report)
    if as_json:
        click.echo(pair.manifest.model_dump_json())
        return
    print_quality(pair.manifest)
    done = "built" if pair.manifest.compiled else "converted, to be compiled with trtllm-build,"
    click.echo(f"{pair.path}: {done} for --runtime {pair.manifest.runtime}")


def print_quality(manifest: Manifest) -> None:
    """Print what quantisation cost, where it was measured."""
    from rich.console import Console
    from rich.table import Table

    table = Table("", "top-1 equal", "KL, nats", "perplexity", "weights, relative error")
    for name, engine in (("target", manifest.target), ("draft", manifest.draft)):
        if engine is None or engine.quantization is None or (quality := engine.quantization.quality) is None:
            continue
        errors = quality.weight_errors.values()
        table.add_row(
            name,
            f"{quality.top1_agreement:.1%}",
            f"{quality.kl_divergence:.4f}",
            f"{quality.perplexity_before:.4g} → {quality.perplexity_after:.4g}",
            f"{sum(errors) / len(errors):.2%}, at most {max(errors):.2%}",
        )
    console = Console(soft_wrap=True, highlight=False, markup=False)
    if table.row_count:
        console.print(table)
    if found := manifest.acceptance:
        console.print(
            f"acceptance of draft tokens: {found.sampled_before:.3f} → {found.sampled_after:.3f} at "
            f"temperature 1, {found.greedy_before:.3f} → {found.greedy_after:.3f} greedy"
        )
