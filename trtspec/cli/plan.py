"""`trtspec plan`: whether two models fit their GPUs, and what to set for each."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
from click.core import ParameterSource

from trtspec.build.quantize.choices import QUANTIZATIONS
from trtspec.choices import ENGINE_DTYPES, PLACEMENTS, PLANNED_RUNTIMES, PlannedRuntime
from trtspec.cli import EXIT_MISMATCH
from trtspec.errors import PlanError

if TYPE_CHECKING:
    from rich.table import Table

    from trtspec.engines.memory.ranks import Engine, Limits
    from trtspec.engines.memory.result import MemoryPlan, ModelPlan

POSITIVE = click.IntRange(min=1)
FP8 = click.Choice(QUANTIZATIONS)
# What the engines of a pair were converted for, and nobody can change afterwards.
COMPILED = (
    *("tp", "pp", "draft_tp", "dtype", "target_quantization", "draft_quantization", "kv_cache"),
    *("max_seq_len", "max_batch_size", "max_draft_len", "max_num_tokens"),
)


@click.command("plan")
@click.argument("target")
@click.argument("draft", required=False)
@click.option(
    "--gpu", "gpu_name", help="Its name, such as H100, or the size of its memory.  [default: this machine's]"
)
@click.option(
    "--runtime",
    type=click.Choice(PLANNED_RUNTIMES),
    help="tensorrt: a process for each model; pytorch: one for both.  [default: the pair's, else tensorrt]",
)
@click.option("--tp", type=POSITIVE, help="Tensor-parallel ranks of each model.  [default: 1]")
@click.option("--pp", type=POSITIVE, help="Pipeline stages of each model.  [default: 1]")
@click.option("--draft-tp", type=POSITIVE, help="Ranks of the draft alone.  [default: --tp]")
@click.option(
    "--placement",
    type=click.Choice(PLACEMENTS),
    default="together",
    show_default=True,
    help="Both models from GPU 0 on, or the draft on GPUs of its own.",
)
@click.option("--target-quantization", type=FP8, help="Of the target.  [default: what it is]")
@click.option("--draft-quantization", type=FP8, help="Of the draft.  [default: what it is]")
@click.option("--kv-cache", type=FP8, help="Quantisation of both caches.  [default: what it is]")
@click.option("--dtype", type=click.Choice(ENGINE_DTYPES), help="[default: bfloat16]")
@click.option(
    "--max-seq-len",
    type=click.IntRange(min=2),
    help="Prompt and answer.  [default: the context, at most 4096]",
)
@click.option("--max-batch-size", type=POSITIVE, help="Sequences in flight.  [default: 16]")
@click.option("--max-draft-len", type=POSITIVE, help="Draft tokens in a round.  [default: 8]")
@click.option("--max-num-tokens", type=POSITIVE, help="Tokens in a forward pass.  [default: 8192]")
@click.option("--use-draft-logits", is_flag=True, help="Plan for acceptance by probabilities.")
@click.option(
    "--length",
    "lengths",
    type=POSITIVE,
    multiple=True,
    default=(1024, 4096, 16384),
    show_default=True,
    help="Prompt and answer of the sequences to count; repeat it.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the plan as one JSON object, for `trtspec repo --memory-plan`.",
)
def command(
    target: str,
    draft: str | None,
    gpu_name: str | None,
    runtime: PlannedRuntime | None,
    placement: Literal["together", "apart"],
    lengths: tuple[int, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Say whether TARGET and DRAFT fit their GPUs, what to set for each, and how many sequences they serve.

    TARGET and DRAFT are checkpoint folders, a config.json, or models on the hub at a pinned revision; only
    headers are read. Or TARGET alone is an engine pair. Sizes of weights and KV cache are exact, what else
    a model takes is an upper estimate. Not yet run on a GPU.

    \b
    Example:
      trtspec plan models/Llama-3.3-70B models/Llama-3.2-1B --gpu H100 --tp 4 --draft-tp 1
      trtspec plan work/pair --gpu L40S --json

    Exit codes: 0 they fit, 3 they do not.
    """
    from trtspec.engines.host import read_host_facts
    from trtspec.engines.memory.gpus import find_gpu, gpu_of
    from trtspec.engines.memory.plan import DoesNotFitError, plan_memory
    from trtspec.engines.memory.pools import Deployment

    its_target, its_draft, its_limits, its_runtime = _planned(target, draft, options)
    target_engine, draft_engine, limits = _apply(its_target, its_draft, its_limits, options)
    source = click.get_current_context().get_parameter_source("lengths")
    if source is not ParameterSource.DEFAULT and max(lengths) > limits.max_seq_len:
        raise PlanError(
            f"--length {max(lengths)}: a sequence has {limits.max_seq_len} tokens at most; "
            "give shorter ones, or a longer --max-seq-len"
        )
    deployment = Deployment(
        target=target_engine,
        draft=draft_engine,
        gpu=find_gpu(gpu_name) if gpu_name else gpu_of(read_host_facts()),
        limits=limits,
        placement=placement,
        runtime=runtime or its_runtime,
    )
    try:
        plan = plan_memory(deployment, lengths)
    except DoesNotFitError as error:
        if as_json:
            click.echo(json.dumps({"reason": str(error), "would_fit": error.would_fit}))
        else:
            click.echo(f"does not fit: {error}")
        raise click.exceptions.Exit(EXIT_MISMATCH) from None
    if as_json:
        click.echo(plan.model_dump_json())
    else:
        _show(plan)


def _planned(
    target: str, draft: str | None, options: dict[str, Any]
) -> tuple[Engine, Engine, Limits, PlannedRuntime]:
    """Return what is planned for, before the options are looked at."""
    from trtspec.engines.manifest import MANIFEST
    from trtspec.engines.memory.built import built_engines
    from trtspec.engines.memory.ranks import Engine, Limits
    from trtspec.engines.pair import open_pair

    if (Path(target) / MANIFEST).is_file():
        if draft is not None:
            raise click.UsageError(f"{target} is an engine pair; leave DRAFT out")
        pair = open_pair(Path(target))
        fixed = [f"--{name.replace('_', '-')}" for name in COMPILED if options[name] is not None]
        if pair.manifest.runtime == "tensorrt" and fixed:
            raise click.UsageError(
                f"{target} has its own {', '.join(fixed)}; leave it out, or plan with both checkpoints"
            )
        return *built_engines(pair), "pytorch" if pair.manifest.runtime == "pytorch" else "tensorrt"
    if draft is None:
        raise click.UsageError("Missing argument 'DRAFT'; only an engine pair stands alone")
    from trtspec.build.decoder import read_decoder

    engines = Engine(decoder=read_decoder(target)), Engine(decoder=read_decoder(draft))
    limits = Limits()
    context = engines[0].decoder.context or limits.max_seq_len
    return *engines, replace(limits, max_seq_len=min(limits.max_seq_len, context)), "tensorrt"


def _apply(
    target: Engine, draft: Engine, limits: Limits, options: dict[str, Any]
) -> tuple[Engine, Engine, Limits]:
    """Return engines and limits with the options that were given."""
    given = {name: value for name, value in options.items() if value is not None}
    quantizations = given.pop("target_quantization", None), given.pop("draft_quantization", None)
    draft_tp = {"tp": given.pop("draft_tp")} if "draft_tp" in given else {}
    both: dict[str, Any] = {name: given.pop(name) for name in ("dtype", "tp", "pp") if name in given}
    if "kv_cache" in given:
        both["fp8_kv_cache"] = given.pop("kv_cache") == "fp8"
    pair = replace(target, **both), replace(draft, **{**both, **draft_tp})
    engines = [
        engine if wanted is None else replace(engine, fp8=wanted == "fp8")
        for engine, wanted in zip(pair, quantizations, strict=True)
    ]
    return engines[0], engines[1], replace(limits, **given)


def _show(plan: MemoryPlan) -> None:
    from trtspec.cli.parts.console import console

    screen = console()
    for table in (_models(plan), _gpus(plan), _sequences(plan)):
        screen.print(table)
    for note in plan.notes:
        screen.print(f"note: {note}")
    if plan.shared_fraction is not None:
        screen.print(f"kv_cache_config.free_gpu_memory_fraction: {plan.shared_fraction}, for both together")
        return
    screen.print(
        "A fraction is of the memory that is free once its own model is loaded. With "
        "max_tokens_in_paged_kv_cache set too, the one for the model that loads second is right in any order."
    )


def _models(plan: MemoryPlan) -> Table:
    from rich.table import Table

    table = Table("", "target", "draft", title=f"{plan.runtime} on {plan.gpu}")
    plans = (plan.target, plan.draft)

    def row(name: str, *cells: str) -> None:
        table.add_row(name, *cells)

    row("GPUs", *(", ".join(map(str, model.gpus)) for model in plans))
    for part in ("weights", "activations", "logits", "runtime"):
        row(part, *(_gib(max(getattr(rank, part) for rank in model.ranks)) for model in plans))
    row("KV cache", *(_gib(max(map(model.kv_bytes, range(len(model.ranks))))) for model in plans))
    row("KV cache per token", *(_kib(model) for model in plans))
    row("max_tokens_in_paged_kv_cache", *(f"{model.max_tokens}" for model in plans))
    if plan.shared_fraction is None:
        name = "kv_cache_free_gpu_mem_fraction"
        row(f"{name}, loaded first", *(f"{model.fraction_loaded_first:.4f}" for model in plans))
        row(f"{name}, loaded second", *(f"{model.fraction_loaded_second:.4f}" for model in plans))
    return table


def _gpus(plan: MemoryPlan) -> Table:
    from rich.table import Table

    table = Table("GPU", "models", "KV caches", "left")
    for gpu in plan.gpus:
        table.add_row(str(gpu.gpu), _gib(gpu.fixed), _gib(gpu.kv_cache), _gib(gpu.left))
    return table


def _sequences(plan: MemoryPlan) -> Table:
    from rich.table import Table

    table = Table("tokens of a sequence", "fit the caches", f"at once (of {plan.max_batch_size})")
    for entry in plan.concurrency:
        table.add_row(f"{entry.length:,}", f"{entry.by_memory:,}", f"{entry.served:,}")
    return table


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.2f} GiB"


def _kib(model: ModelPlan) -> str:
    return f"{max(rank.kv_per_token for rank in model.ranks) / 2**10:g} KiB"
