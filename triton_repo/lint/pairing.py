"""Rules about how the loop and the two engines' models fit each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from trtspec.triton_repo.config_file import ConfigFile, tensors
from trtspec.triton_repo.layout import Layout
from trtspec.triton_repo.lint.finding import Complaint
from trtspec.triton_repo.speculation.draft_table import DraftTable, longest, read_draft_tokens
from trtspec.triton_repo.tensorrt_leaf import LOGITS, LOGITS_DTYPES


def loop_decoupled(layout: Layout) -> Iterator[Complaint]:
    loop = layout.loop
    if loop and loop.config and layout.loop_owner == "trtspec" and not _decoupled(loop):
        yield _not_decoupled(loop, "the loop answers in several responses, so it must be decoupled")


def leaves_decoupled(layout: Layout) -> Iterator[Complaint]:
    if layout.loop_owner != "trtspec":
        return
    for leaf in layout.leaves:
        if not _decoupled(leaf.file):
            yield _not_decoupled(
                leaf.file, "the loop calls its engines decoupled, which Triton refuses otherwise"
            )


def nvidia_decoupled(layout: Layout) -> Iterator[Complaint]:
    if layout.loop_owner != "nvidia" or not layout.draft_name:
        return
    for leaf in layout.leaves:
        if _decoupled(leaf.file):
            yield Complaint(
                leaf.file.path,
                "is decoupled, but NVIDIA's loop waits for one response a call when it speculates",
                "set decoupled: false on both engines' models, or use the loop of trtspec "
                "(`trtspec repo --from-nvidia`), which streams",
                leaf.file.line_of_field("decoupled"),
            )


def batch_dimension(layout: Layout) -> Iterator[Complaint]:
    for leaf in layout.leaves:
        if leaf.config.max_batch_size < 1:
            yield Complaint(
                leaf.file.path,
                f"max_batch_size is {leaf.config.max_batch_size}: tensors have no batch dimension then",
                "set what the engine was built for",
                leaf.file.line_of_field("max_batch_size"),
            )


def batch_size(layout: Layout) -> Iterator[Complaint]:
    for leaf in layout.leaves:
        if leaf.engine and leaf.config.max_batch_size > leaf.engine.max_batch_size:
            yield Complaint(
                leaf.file.path,
                f"max_batch_size is {leaf.config.max_batch_size}, the engine was built for "
                f"{leaf.engine.max_batch_size}",
                f"set it to {leaf.engine.max_batch_size}, or build the engine again",
                leaf.file.line_of_field("max_batch_size"),
            )


def draft_length(layout: Layout) -> Iterator[Complaint]:
    loop = layout.loop
    if loop is None or layout.loop_owner != "trtspec":
        return
    default, allowed = loop.parameters.get("num_draft_tokens", "auto"), _number(loop, "max_draft_len")
    try:
        asked = 0 if default == "auto" else longest(read_draft_tokens(default))
    except ValueError as error:
        message = f"num_draft_tokens: {error}; the model does not load"
        yield Complaint(loop.path, message, "correct it", loop.line_of("key", "num_draft_tokens"))
    else:
        if allowed is not None and asked > allowed:
            complaint = _beyond(loop, "num_draft_tokens", default, allowed)
            in_rows = f"set no row beyond {allowed}"
            yield replace(complaint, repair=in_rows) if ":" in default else complaint
    engine = layout.target.engine if layout.target else None
    if engine and allowed is not None and allowed > engine.max_draft_len:
        yield _beyond(loop, "max_draft_len", allowed, engine.max_draft_len)


def draft_rows(layout: Layout) -> Iterator[Complaint]:
    loop = layout.loop
    if loop is None or layout.loop_owner != "trtspec":
        return
    try:
        table = read_draft_tokens(loop.parameters.get("num_draft_tokens", ""))
    except ValueError:
        return
    most = _number(loop, "max_inflight_requests")
    if isinstance(table, DraftTable) and most is not None and table.rows[-1][0] > most:
        yield Complaint(
            loop.path,
            f"num_draft_tokens has a row from {table.rows[-1][0]} requests in flight on, which is never "
            f"reached: max_inflight_requests is {most}",
            "raise that, or leave the row out",
            loop.line_of("key", "num_draft_tokens"),
        )


def limits(layout: Layout) -> Iterator[Complaint]:
    loop = layout.loop
    if loop is None or layout.loop_owner != "trtspec":
        return
    for name, leaf in (("max_seq_len", layout.target), ("draft_max_seq_len", layout.draft)):
        found = _number(loop, name)
        if leaf and leaf.engine and found is not None and found > leaf.engine.max_seq_len:
            yield _beyond(loop, name, found, leaf.engine.max_seq_len)
    width = _number(loop, "vocab_size")
    engine = layout.target.engine if layout.target else None
    if engine and width is not None and width != engine.vocab_size:
        yield _beyond(loop, "vocab_size", width, engine.vocab_size)


def logits_dtype(layout: Layout) -> Iterator[Complaint]:
    for leaf in layout.leaves:
        wanted = LOGITS_DTYPES.get(leaf.engine.logits_dtype) if leaf.engine and leaf.is_cpp else None
        for name, found in _logits(leaf.file):
            if wanted and found != wanted:
                yield Complaint(
                    leaf.file.path,
                    f"{name} is TYPE_{found}, the engine gives TYPE_{wanted}: what comes out is not logits",
                    f"set TYPE_{wanted}",
                    leaf.file.line_of("name", name),
                )


def logits_agree(layout: Layout) -> Iterator[Complaint]:
    models = [leaf.file for leaf in layout.leaves]
    if layout.loop and layout.loop_owner == "nvidia":
        models.append(layout.loop)
    found = {(dtype, file.model): None for file in models for _, dtype in _logits(file)}
    if len({dtype for dtype, _ in found}) > 1:
        listed = ", ".join(f"TYPE_{dtype} in {model}" for dtype, model in found)
        file = models[-1]
        yield Complaint(
            file.path,
            f"logits are {listed}",
            "use one dtype in all of them",
            file.line_of("name", "generation_logits"),
        )


def cache_reuse(layout: Layout) -> Iterator[Complaint]:
    for leaf in layout.leaves:
        if leaf.is_cpp and not leaf.switch("enable_kv_cache_reuse"):
            yield Complaint(
                leaf.file.path,
                "enable_kv_cache_reuse is off: each round computes the whole sequence again",
                "set it to true",
                leaf.line_of_parameter("enable_kv_cache_reuse"),
            )


def cache_share(layout: Layout) -> Iterator[Complaint]:
    if not layout.pair or not all(leaf.is_cpp for leaf in layout.pair):
        return
    gpus = [{gpu for group in leaf.ranks_in("gpu_device_ids") for gpu in group} for leaf in layout.pair]
    if all(gpus) and gpus[0].isdisjoint(gpus[1]):
        return
    # A limit in tokens keeps each cache to its size, whichever loads first.
    if all(_number(leaf.file, "max_tokens_in_paged_kv_cache") is not None for leaf in layout.pair):
        return
    shares = [_fraction(leaf.parameter("kv_cache_free_gpu_mem_fraction")) for leaf in layout.pair]
    if sum(shares) > 1:
        draft = layout.pair[1]
        yield Complaint(
            draft.file.path,
            f"target and draft share a GPU and take {shares[0]:g} and {shares[1]:g} of its free memory; "
            "whichever loads last may find too little",
            "set kv_cache_free_gpu_mem_fraction of both so that they add up to less than 1, or write the "
            "repository with --memory-plan",
            draft.line_of_parameter("kv_cache_free_gpu_mem_fraction"),
        )


def cache_size(layout: Layout) -> Iterator[Complaint]:
    for leaf in layout.leaves:
        share = leaf.parameter("kv_cache_free_gpu_mem_fraction")
        if leaf.is_cpp and _fraction(share) == 0:
            yield Complaint(
                leaf.file.path,
                f"kv_cache_free_gpu_mem_fraction is {share}, which leaves nothing to the cache",
                "raise it",
                leaf.line_of_parameter("kv_cache_free_gpu_mem_fraction"),
            )
        tokens = _number(leaf.file, "max_tokens_in_paged_kv_cache")
        if leaf.engine and tokens is not None and tokens < leaf.engine.max_seq_len:
            yield Complaint(
                leaf.file.path,
                f"max_tokens_in_paged_kv_cache is {tokens}, one sequence can have {leaf.engine.max_seq_len}",
                "raise it, or remove it and set kv_cache_free_gpu_mem_fraction",
                leaf.line_of_parameter("max_tokens_in_paged_kv_cache"),
            )


def attention_window(layout: Layout) -> Iterator[Complaint]:
    for leaf in layout.leaves:
        written = leaf.parameter("max_attention_window_size").split(",")
        windows = [int(window) for window in written if window.isdecimal()]
        if leaf.engine and windows and max(windows) < leaf.engine.max_seq_len:
            yield Complaint(
                leaf.file.path,
                f"max_attention_window_size is {max(windows)}, shorter than the engine's "
                f"{leaf.engine.max_seq_len}: longer sequences lose their beginning",
                "remove it unless the model has such a window",
                leaf.line_of_parameter("max_attention_window_size"),
            )


def _decoupled(file: ConfigFile) -> bool:
    return bool(file.config and file.config.model_transaction_policy.decoupled)


def _not_decoupled(file: ConfigFile, why: str) -> Complaint:
    repair = "set model_transaction_policy { decoupled: true }"
    return Complaint(file.path, f"is not decoupled; {why}", repair, file.line_of_field("decoupled"))


def _beyond(loop: ConfigFile, name: str, found: int | str, built: int) -> Complaint:
    message = f"{name} is {found}, the engine was built for {built}"
    return Complaint(loop.path, message, f"set it to {built}", loop.line_of("key", name))


def _logits(file: ConfigFile) -> Iterator[tuple[str, str]]:
    """Yield (name, dtype) of each tensor that carries logits."""
    if file.config:
        inputs, outputs = tensors(file.config)
        for name in LOGITS:
            if name in inputs or name in outputs:
                yield name, (inputs | outputs)[name].dtype


def _number(file: ConfigFile, name: str) -> int | None:
    found = file.parameters.get(name, "")
    return int(found) if found.isdecimal() else None


def _fraction(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
