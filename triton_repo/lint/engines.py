"""Rules about the engines themselves, where they lie on this machine."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.errors import EngineError
from trtspec.triton_repo.engine_config import EngineConfig, read_engine_config
from trtspec.triton_repo.layout import ENGINE_FOLDER, Layout, Leaf
from trtspec.triton_repo.lint.finding import Complaint


def reachable(layout: Layout) -> Iterator[Complaint]:
    for leaf in layout.leaves:
        if leaf.engine_folder and not leaf.engine_folder.is_dir() and not _is_ours(layout, leaf):
            yield _about(
                leaf,
                f"the engine {leaf.engine_folder} is not on this machine, so nothing about it was checked",
                "run the lint where it is",
            )


def whole(layout: Layout) -> Iterator[Complaint]:
    for leaf in layout.leaves:
        if _is_ours(layout, leaf) and not (leaf.engine_folder and leaf.engine_folder.is_dir()):
            folder = leaf.engine_folder or leaf.file.path.parent / ENGINE_FOLDER
            yield _about(leaf, f"found no {folder}, where the engine has to be", "write the repository again")
        if leaf.engine_folder is None or not leaf.engine_folder.is_dir():
            continue
        try:
            missing = read_engine_config(leaf.engine_folder).missing_ranks()
        except EngineError as error:
            yield _about(leaf, str(error).split(";")[0], "point to an engine of trtllm-build")
            continue
        if missing:
            yield _about(
                leaf,
                f"{leaf.engine_folder} lacks {len(missing)} files or has them empty, first {missing[0]}",
                "build the engine again",
            )


def takes_drafts(layout: Layout) -> Iterator[Complaint]:
    target = layout.target
    if target is None or target.engine is None or layout.draft is None:
        return
    if target.engine.max_draft_len < 1 or target.engine.takes_drafts is False:
        yield _about(
            target,
            f"the target engine takes {target.engine.max_draft_len} drafted tokens"
            + (" and was not built for external ones" if target.engine.takes_drafts is False else ""),
            "build it with --speculative_decoding_mode draft_tokens_external --max_draft_len K",
        )


def vocabulary(layout: Layout) -> Iterator[Complaint]:
    for draft, engines in _pairs(layout):
        if engines[0].vocab_size != engines[1].vocab_size:
            yield _about(
                draft,
                f"the draft's vocabulary is {engines[1].vocab_size}, the target's {engines[0].vocab_size}",
                "build both with one width: drafts by logits cannot be compared otherwise",
            )


def version(layout: Layout) -> Iterator[Complaint]:
    for draft, engines in _pairs(layout):
        if engines[0].version != engines[1].version:
            yield _about(
                draft,
                f"the draft is of TensorRT-LLM {engines[1].version}, the target of {engines[0].version}; "
                "an engine loads in the release it was built with only",
                "build both with the release that serves",
            )


def context(layout: Layout) -> Iterator[Complaint]:
    for draft, (target_engine, draft_engine) in _pairs(layout):
        # trtllm-build adds the drafted tokens to what a target was asked to hold.
        wanted = target_engine.max_seq_len - (target_engine.max_draft_len if target_engine.version else 0)
        if draft_engine.max_seq_len < wanted:
            yield _about(
                draft,
                f"the draft holds {draft_engine.max_seq_len} tokens, the target {wanted}: longer sequences "
                "are not drafted, and NVIDIA's loop fails on them",
                f"build the draft with --max_seq_len {wanted}",
            )


def reuse(layout: Layout) -> Iterator[Complaint]:
    for leaf in layout.leaves:
        engine = leaf.engine
        if engine is None:
            continue
        if engine.paged_context_fmha is False:
            found = "use_paged_context_fmha is off"
        elif engine.kv_cache_type not in (None, "paged"):
            found = f"its cache is {engine.kv_cache_type}, not paged"
        else:
            continue
        yield _about(
            leaf,
            f"the engine cannot reuse its cache: {found}",
            "build it with --kv_cache_type paged --use_paged_context_fmha enable",
        )


def cache_quantization(layout: Layout) -> Iterator[Complaint]:
    for leaf in layout.leaves:
        if leaf.engine and leaf.engine.kv_cache_quantization:
            yield _about(
                leaf,
                f"the cache is {leaf.engine.kv_cache_quantization}; reused, as every round does, it has "
                "reports of wrong output (TensorRT-LLM issue 2699)",
                "compare answers before you rely on it, or build without",
            )


def _is_ours(layout: Layout, leaf: Leaf) -> bool:
    """Whether the engine belongs into the repository, as in those that `trtspec repo` writes."""
    folder, repository = leaf.engine_folder, layout.folder.resolve()
    inside = folder is None or folder.resolve().is_relative_to(repository)
    return layout.loop_owner == "trtspec" and inside


def _pairs(layout: Layout) -> Iterator[tuple[Leaf, tuple[EngineConfig, EngineConfig]]]:
    """Yield the draft's model and both engines, when all are there."""
    if layout.draft and layout.engine_pair:
        yield layout.draft, layout.engine_pair


def _about(leaf: Leaf, message: str, repair: str) -> Complaint:
    return Complaint(leaf.file.path, message, repair, leaf.line_of_parameter("gpt_model_path"))
