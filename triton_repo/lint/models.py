"""Rules about models: their names, files and what they refer to."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.triton_repo.config_file import ConfigFile, tensors
from trtspec.triton_repo.contract import PUBLIC_MODEL
from trtspec.triton_repo.layout import Layout
from trtspec.triton_repo.lint.finding import Complaint
from trtspec.triton_repo.nvidia_models import POSTPROCESSING, PREPROCESSING

TOKENIZER = "tokenizer/tokenizer.json"


def name(layout: Layout) -> Iterator[Complaint]:
    for file in layout.models.values():
        if file.config and file.config.name not in ("", file.model):
            yield Complaint(
                file.path,
                f"the model is called {file.config.name}, its folder {file.model}",
                "make them equal",
                file.line_of("name", file.config.name),
            )


def version_folder(layout: Layout) -> Iterator[Complaint]:
    for file in layout.models.values():
        folder = file.path.parent
        versions = [v for v in folder.iterdir() if v.is_dir() and v.name.isdecimal() and v.name != "0"]
        if not versions:
            yield Complaint(folder, "found no version folder", "make the folder 1")
        elif file.config and file.config.backend == "python":
            for version in versions:
                entry = file.config.default_model_filename or "model.py"
                if not (version / entry).is_file():
                    yield Complaint(version, f"found no {entry}, which the Python backend starts", "add it")
                of_loop = file is layout.loop and layout.loop_owner == "trtspec"
                if of_loop and not (version / TOKENIZER).is_file():
                    yield Complaint(version, f"found no {TOKENIZER}, which the loop loads", "add it")


def speculates(layout: Layout) -> Iterator[Complaint]:
    if layout.loop is None and layout.loop_owner is None:
        yield Complaint(
            layout.folder,
            f"found no {PUBLIC_MODEL}, the model that drafts and verifies",
            "write the repository with `trtspec repo`",
        )
    elif layout.loop and layout.loop.config and layout.loop_owner == "nvidia" and layout.draft_name is None:
        yield Complaint(
            layout.loop.path,
            "names no draft model, so nothing is drafted",
            "set tensorrt_llm_draft_model_name",
            layout.loop.line_of("key", "tensorrt_llm_draft_model_name"),
        )


def reference(layout: Layout) -> Iterator[Complaint]:
    for file, key, wanted in _references(layout):
        if wanted not in layout.models:
            yield Complaint(
                file.path,
                f"refers to the model {wanted}, which is not in the repository",
                f"name one of {', '.join(sorted(layout.models))}",
                file.line_of(key, wanted),
            )


def two_engines(layout: Layout) -> Iterator[Complaint]:
    if layout.loop and layout.draft_name == layout.target_name:
        yield Complaint(
            layout.loop.path,
            f"target and draft are the same model, {layout.draft_name}",
            "name two models",
            layout.loop.line_of("string_value", layout.target_name, last=True),
        )
        return
    folders = [leaf.engine_folder.resolve() for leaf in layout.leaves if leaf.engine_folder]
    if layout.draft and len(folders) > len(set(folders)):
        yield Complaint(
            layout.draft.file.path,
            f"target and draft load the same engine, {folders[0]}",
            "give the draft its own",
            layout.draft.line_of_parameter("gpt_model_path"),
        )


def ensemble_tensor(layout: Layout) -> Iterator[Complaint]:
    for file in layout.models.values():
        for step in file.config.ensemble_scheduling.step if file.config else ():
            called = layout.models.get(step.model_name)
            if called is None or called.config is None:
                continue
            inputs, outputs = tensors(called.config)
            for mapped, known in ((step.input_map, inputs), (step.output_map, outputs)):
                for tensor in sorted(set(mapped) - set(known)):
                    yield Complaint(
                        file.path,
                        f"hands {tensor} to {step.model_name}, which has no tensor of that name",
                        "correct the name, or remove the entry",
                        file.line_of("key", tensor),
                    )


def instances(layout: Layout) -> Iterator[Complaint]:
    for leaf in layout.leaves:
        count = sum(group.count or 1 for group in leaf.config.instance_group)
        groups = max(1, len(leaf.ranks_in("gpu_device_ids")))
        if count > groups:
            yield Complaint(
                leaf.file.path,
                f"{count} instances load the engine {count} times on the same GPUs; one serves all requests",
                "set count: 1",
                leaf.file.line_of_field("instance_group"),
            )


def loop_instances(layout: Layout) -> Iterator[Complaint]:
    if layout.loop_owner != "nvidia" or not layout.loop or not layout.loop.config:
        return
    count = sum(group.count or 1 for group in layout.loop.config.instance_group)
    engine = layout.target.engine if layout.target else None
    if engine and count < engine.max_batch_size:
        yield Complaint(
            layout.loop.path,
            f"NVIDIA's loop serves one request an instance: {count} at once, the engine takes "
            f"{engine.max_batch_size}",
            "raise the count, or use the loop of trtspec (`trtspec repo --from-nvidia`), which needs one",
            layout.loop.line_of_field("instance_group"),
        )


def _references(layout: Layout) -> Iterator[tuple[ConfigFile, str, str]]:
    """Yield (file, field on whose line the name stands, model that has to exist)."""
    if layout.loop and layout.loop_owner in ("trtspec", "nvidia"):
        yield layout.loop, "string_value", layout.target_name
        if layout.draft_name:
            yield layout.loop, "string_value", layout.draft_name
    if layout.loop and layout.loop_owner == "nvidia":
        yield layout.loop, "name", PREPROCESSING
        yield layout.loop, "name", POSTPROCESSING
    for file in layout.models.values():
        for step in file.config.ensemble_scheduling.step if file.config else ():
            yield file, "model_name", step.model_name
