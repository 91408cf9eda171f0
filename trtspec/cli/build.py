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
from trtspec.build.runtimes.pytorch.options import PytorchOptions
from trtspec.build.runtimes.tensorrt.options import Compile, TensorrtOptions
from trtspec.choices import ENGINE_DTYPES, RUNTIMES
from trtspec.cli.cache import cache_option
from trtspec.cli.parts.build_tables import print_preview, print_quality
from trtspec.cli.parts.fields import Number, changed, flags_of, take
from trtspec.cli.parts.report import reporting
from trtspec.recipe.option import recipe_option, yields

if TYPE_CHECKING:
    from trtspec.build.options import BuildOptions
    from trtspec.engines.pair import EnginePair


@click.command()
@click.argument("target", type=click.Path(path_type=Path))
@click.argument("draft", type=click.Path(path_type=Path), required=False)
@click.option(
    "--output", type=click.Path(path_type=Path), required=True, help="Folder to make; must not exist."
)
@click.option(
    "--runtime",
    type=click.Choice(RUNTIMES),
    default="cpu",
    show_default=True,
    help="Where the engines run; tensorrt: compiled for a GPU by trtllm-build of TensorRT-LLM 1.2.1; "
    "pytorch: checkpoints for the LLM API of TensorRT-LLM 1.2 and newer.",
)
@click.option(
    "--dtype",
    type=click.Choice(ENGINE_DTYPES),
    help="What the engines compute in.  [default: float32 on cpu, which equals Hugging Face token for "
    "token; the checkpoint's own for the others]",
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
@click.option("--max-kl", type=Number(min=0), help="Fail where FP8 moves a model farther, in nats a token.")
@click.option(
    "--device", type=click.Choice(DEVICES), default="cpu", show_default=True, help="Where to calibrate."
)
@click.option(
    "--gpu",
    help="The GPU the engines are made for, such as H100 or 80GB: refuse what does not fit it, and write the "
    "memory plan down for `repo`.  [default: this machine's, if it has one]",
)
@click.option("--container", is_flag=True, help="Run trtllm-build in a container, with docker or podman.")
@click.option("--image", help="The container's image.  [default: the newest with TensorRT-LLM 1.2.1]")
@click.option(
    "--script",
    type=click.Path(path_type=Path),
    help="Convert only, and write a script that compiles the engines on a GPU host.",
)
@click.option("--dry-run", is_flag=True, help="Print the plan and the exact commands; write nothing.")
@flags_of(TensorrtOptions)
@flags_of(PytorchOptions)
@click.option(
    "--fingerprint/--no-fingerprint",
    default=True,
    show_default=True,
    help="Run the engines on a few prompts and record what they say (cpu runtime).",
)
@cache_option
@click.option("--no-cache", is_flag=True, help="Keep nothing: no second build finds it, none can go on.")
@recipe_option("build")
@click.option("--json", "as_json", is_flag=True, help="Print the manifest as JSON.")
def command(
    target: Path,
    draft: Path | None,
    output: Path,
    quantization: Quantization | None,
    target_quantization: Quantization | None,
    draft_quantization: Quantization | None,
    calibrate: Path | Literal["none"] | None,
    evaluate: Path | None,
    max_kl: float | None,
    device: Device,
    container: bool,
    image: str | None,
    script: Path | None,
    dry_run: bool,
    cache: Path | None,
    no_cache: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Build an engine pair from two Hugging Face checkpoints, TARGET and DRAFT.

    The checkpoints are checked against each other first; nothing is written when they do not fit.
    A checkpoint that is FP8 already keeps its codes and scales. What is made is kept in a store: a second
    build of the same does nothing or takes it from there, and one that was killed goes on (`trtspec cache`).

    For --runtime tensorrt both are converted, compiled with trtllm-build, and the engines looked at: each
    must be the one that was asked for. Without a GPU here, --script leaves that to another machine, and
    `trtspec adopt` finishes the pair. --container to --workers are for this runtime.

    For --runtime pytorch the pair holds both checkpoints and llm_args.yaml, spelt for the version that
    --tensorrt-llm names. DRAFT may then be an EAGLE-3, PARD, DFlash or DSpark drafter, and is left out for
    --speculation mtp or ngram. --tensorrt-llm to --free-gpu-memory are for this runtime.

    \b
    Example:
      trtspec build models/target models/draft --output work/pair
      trtspec build models/target models/draft --output work/pair-fp8 --quantization fp8 --max-kl 0.05
      trtspec build models/target models/draft --output work/trt --runtime tensorrt --tp 2 --dry-run
      trtspec build models/target models/draft --output work/trt --runtime tensorrt --container
      trtspec build models/target models/draft --output work/torch --runtime pytorch --tensorrt-llm 1.2.1
      trtspec build --recipe recipe.toml --tp 2
    """
    if yields("container", "script"):
        container = False
    if yields("image", "script"):
        image = None
    if yields("script", "container", "image"):
        script = None
    quantizations = _quantizations(quantization, target_quantization, draft_quantization)
    store = _store(cache, no_cache)
    tensorrt, pytorch = take(TensorrtOptions, options), take(PytorchOptions, options)
    if options["runtime"] != "pytorch" and (given := changed(PytorchOptions, pytorch)):
        raise click.UsageError(f"for --runtime pytorch only: {', '.join(given)}")
    if options["runtime"] != "pytorch" and draft is None:
        raise click.UsageError(f"--runtime {options['runtime']} wants a DRAFT")
    compile = _compile(
        options["runtime"], container, image, script, dry_run, changed(TensorrtOptions, tensorrt)
    )
    from trtspec.build.options import BuildOptions
    from trtspec.build.quantize.pair_quantizer import PairQuantization

    wanted = BuildOptions(
        **options,
        quantization=PairQuantization(
            *quantizations, calibrate=calibrate, evaluate=evaluate, max_kl=max_kl, device=device
        ),
        tensorrt=TensorrtOptions(**tensorrt, compile=compile, image=image),
        pytorch=PytorchOptions(**pytorch),
    )
    if dry_run:
        _preview(target, draft, output, wanted, as_json=as_json)
    else:
        _build(target, draft, output, wanted, store=store, script=script, as_json=as_json)


def _preview(target: Path, draft: Path | None, output: Path, wanted: BuildOptions, *, as_json: bool) -> None:
    from trtspec.build.preview import preview

    with reporting(quiet=as_json) as report:
        found = preview(target, draft, output, wanted, report=report)
    print_preview(found, as_json=as_json)


def _build(
    target: Path,
    draft: Path | None,
    output: Path,
    wanted: BuildOptions,
    *,
    store: Path | Literal["none"] | None,
    script: Path | None,
    as_json: bool,
) -> None:
    from trtspec.build.pair import build

    with reporting(quiet=as_json) as report:
        pair = build(target, draft, output, wanted, cache=store, report=report)
    if script:
        _write_script(pair, script)
    if as_json:
        click.echo(pair.manifest.model_dump_json())
        return
    print_quality(pair.manifest)
    done = "built" if pair.manifest.compiled else f"converted, to be compiled with {script},"
    click.echo(f"{pair.path}: {done} for --runtime {pair.manifest.runtime}")


def _quantizations(
    both: Quantization | None, target: Quantization | None, draft: Quantization | None
) -> tuple[Quantization, Quantization]:
    """Return the target's and the draft's.

    One for both on the command line goes before a recipe's for each; one for each before its one for both.
    """
    if yields("target_quantization", "quantization"):
        target = None
    if yields("draft_quantization", "quantization"):
        draft = None
    is_default = yields("quantization", "target_quantization", "draft_quantization")
    if both and (target or draft) and not is_default:
        raise click.UsageError("--quantization is for both models; give it, or one for each")
    return target or both or "none", draft or both or "none"


def _store(cache: Path | None, no_cache: bool) -> Path | Literal["none"] | None:
    """Return the store to use; None is the usual one."""
    if yields("cache", "no_cache"):
        cache = None
    if yields("no_cache", "cache"):
        no_cache = False
    if cache and no_cache:
        raise click.UsageError("--cache names a store, --no-cache wants none; give one of them")
    return "none" if no_cache else cache


def _compile(
    runtime: str,
    container: bool,
    image: str | None,
    script: Path | None,
    dry_run: bool,
    changed: list[str],
) -> Compile:
    """Return where engines are compiled; click.UsageError where the flags contradict each other."""
    given = [
        name
        for name, value in (
            ("--container", container),
            ("--image", image),
            ("--script", script),
            ("--dry-run", dry_run),
        )
        if value
    ]
    if runtime != "tensorrt" and (given or changed):
        raise click.UsageError(f"for --runtime tensorrt only: {', '.join(given + changed)}")
    if script and (container or image):
        raise click.UsageError("--script leaves compiling to another machine, --container does it here")
    if script and script.exists():
        raise click.UsageError(f"{script}: exists already; name another file for --script")
    if script:
        return "later"
    return "container" if container or image else "here"


def _write_script(pair: EnginePair, script: Path) -> None:
    from trtspec.build.runtimes.tensorrt.script import compile_script

    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(compile_script(pair, script.name), "utf-8")
    script.chmod(0o755)
    click.echo(f"{script}: compiles it on a GPU host; then `trtspec adopt`", err=True)
