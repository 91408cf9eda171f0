"""Rules about ranks, GPUs and what starts the server."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trtspec.triton_repo.layout import Layout, Leaf
from trtspec.triton_repo.lint.finding import Complaint

ORCHESTRATOR = re.compile(r"\bTRTLLM_ORCHESTRATOR=[\"']?1|--multi-model\b")
NO_SPAWN = re.compile(r"\bTRTLLM_ORCHESTRATOR_SPAWN_PROCESSES=[\"']?0|--disable-spawn-processes\b")
STARTS_SERVER = re.compile(r"\btritonserver[\"']?\s+[\"']?(--|\$@)|launch_triton_server\.py")
PROCESSES = re.compile(r"(?:^|\s)-(?:n|np)[ =](\d+)|--world_size[ =](\d+)")
# The orchestrator itself.
FIRST_RANK = "0"


def line_of_code(text: str, pattern: re.Pattern[str]) -> int | None:
    """Return the first line that a pattern matches, comments left out and continued lines joined."""
    joined = _code(text).replace("\\\n", " \f")
    match = pattern.search(joined)
    return None if match is None else len(re.findall(r"[\n\f]", joined[: match.start()])) + 1


def gpus(layout: Layout) -> Iterator[Complaint]:
    yield from _counted(layout, "gpu_device_ids", "GPUs")


def participants(layout: Layout) -> Iterator[Complaint]:
    yield from _counted(layout, "participant_ids", "MPI ranks")


def partial(layout: Layout) -> Iterator[Complaint]:
    without = [leaf for leaf in layout.leaves if not leaf.ranks_in("participant_ids")]
    if 0 < len(without) < len(layout.leaves):
        message = "has no participant_ids, the other engine's model has"
        yield _at(without[0], "participant_ids", message, "set both, or neither")


def overlap(layout: Layout) -> Iterator[Complaint]:
    taken = {FIRST_RANK: "the orchestrator"}
    for leaf in layout.leaves:
        for rank in [rank for group in leaf.ranks_in("participant_ids") for rank in group]:
            if rank in taken:
                message = f"participant_ids has rank {rank}, which is {taken[rank]}'s"
                yield _at(leaf, "participant_ids", message, "give each rank to one model, from 1 on")
            taken[rank] = leaf.name


def fast_logits(layout: Layout) -> Iterator[Complaint]:
    key = "speculative_decoding_fast_logits"
    on = [leaf for leaf in layout.leaves if leaf.switch(key)]
    if on and len(on) < len(layout.leaves):
        yield _at(on[0], key, f"{key} is on here and off in the other engine's model", "set it in both")
    for leaf in on:
        if not leaf.ranks_in("participant_ids"):
            message = f"{key} needs processes that are not spawned, and so participant_ids"
            yield _at(leaf, key, message, "set participant_ids, or turn it off")


def orchestrator(layout: Layout) -> Iterator[Complaint]:
    ranks = [leaf.engine.ranks for leaf in layout.leaves if leaf.engine]
    several = max(ranks, default=1) > 1 or any(leaf.ranks_in("participant_ids") for leaf in layout.leaves)
    for file, text in layout.launch_files.items():
        line = line_of_code(text, STARTS_SERVER)
        if several and layout.pair and line and not ORCHESTRATOR.search(text):
            yield Complaint(
                file,
                "starts two engines of several ranks in leader mode, which takes one model",
                "set TRTLLM_ORCHESTRATOR=1 (launch_triton_server.py --multi-model)",
                line,
            )


def spawning(layout: Layout) -> Iterator[Complaint]:
    without = [leaf.name for leaf in layout.leaves if not leaf.ranks_in("participant_ids")]
    for file, text in layout.launch_files.items():
        line = line_of_code(text, NO_SPAWN)
        if line and without:
            yield Complaint(
                file,
                f"spawns no processes, but {' and '.join(without)} has no participant_ids",
                "set participant_ids, or let the orchestrator spawn",
                line,
            )


def world_size(layout: Layout) -> Iterator[Complaint]:
    ranks = {rank for leaf in layout.leaves for group in leaf.ranks_in("participant_ids") for rank in group}
    for file, text in layout.launch_files.items():
        started = sum(int(a or b) for a, b in PROCESSES.findall(_code(text)))
        if ranks and layout.pair and NO_SPAWN.search(text) and started and started != 1 + len(ranks):
            yield Complaint(
                file,
                f"starts {started} processes; {len(ranks)} ranks and the orchestrator are {1 + len(ranks)}",
                "start one process a rank, and one more",
                line_of_code(text, PROCESSES),
            )


def _counted(layout: Layout, key: str, what: str) -> Iterator[Complaint]:
    for leaf in layout.leaves:
        for group in leaf.ranks_in(key):
            if leaf.engine and leaf.is_cpp and len(group) != leaf.engine.ranks:
                message = f"{key} gives {len(group)} {what}, the engine has {leaf.engine.ranks} ranks"
                yield _at(leaf, key, message, "give one for each rank")


def _at(leaf: Leaf, key: str, message: str, repair: str) -> Complaint:
    return Complaint(leaf.file.path, message, repair, leaf.line_of_parameter(key))


def _code(text: str) -> str:
    """Return a script without its comments."""
    return re.sub(r"(?m)(^|[ \t])#.*$", "", text)
