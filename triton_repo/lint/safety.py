"""Rules about settings that open more than serving needs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trtspec.triton_repo.layout import Layout
from trtspec.triton_repo.lint.finding import Complaint
from trtspec.triton_repo.lint.launch import STARTS_SERVER, line_of_code

REMOTE_CODE = re.compile(r"trust[_-]remote[_-]code\b(?![\"']?\s*[=:]\s*[\"']?(?:false|False|0)\b)")
DOCKER = re.compile(r"\b(docker|podman)\s+run\b")
ADDRESS = re.compile(r"--(http|grpc|metrics)-address")
EVERY_ADDRESS = re.compile(r"--(?:http|grpc|metrics)-address[ =][\"']?(?:\$\{\w+:?[-=])?(?:0\.0\.0\.0|::)")
SHARED_MEMORY = re.compile(r"--shm-size|--ipc[ =]")
PATH_PARAMETERS = ("gpt_model_path", "tokenizer_dir", "executor_worker_path", "lora_prefetch_dir")


def remote_code(layout: Layout) -> Iterator[Complaint]:
    for file, text in layout.launch_files.items():
        if line := line_of_code(text, REMOTE_CODE):
            yield Complaint(
                file,
                "turns trust_remote_code on: a checkpoint's own Python would run in the server",
                "remove it",
                line,
            )


def remote_code_in_models(layout: Layout) -> Iterator[Complaint]:
    for file in layout.models.values():
        for source in sorted(file.path.parent.glob("1/*.py")):
            if line := line_of_code(source.read_text("utf-8", "replace"), REMOTE_CODE):
                yield Complaint(
                    source,
                    "loads the tokenizer with trust_remote_code on: Python beside it would run in the server",
                    "see that tokenizer_dir holds no .py file",
                    line,
                )


def address(layout: Layout) -> Iterator[Complaint]:
    for file, text in layout.launch_files.items():
        line = line_of_code(text, EVERY_ADDRESS)
        if line is None and not ADDRESS.search(text):
            line = line_of_code(text, STARTS_SERVER)
        if line:
            yield Complaint(
                file,
                "listens on every address, and Triton asks nobody who they are",
                "give --http-address, --grpc-address and --metrics-address 127.0.0.1, and a proxy before it",
                line,
            )


def shared_memory(layout: Layout) -> Iterator[Complaint]:
    for file, text in layout.launch_files.items():
        line = line_of_code(text, DOCKER)
        if line and not SHARED_MEMORY.search(text):
            yield Complaint(
                file,
                "starts a container with Docker's 64 MiB of shared memory, which Python models die of",
                "add --shm-size=1g",
                line,
            )


def outside(layout: Layout) -> Iterator[Complaint]:
    inside = layout.folder.resolve()
    for path in sorted(layout.folder.rglob("*")):
        if path.is_symlink() and not path.resolve().is_relative_to(inside):
            yield Complaint(
                path, f"points out of the repository, to {path.resolve()}", "copy it into the repository"
            )
    for file in layout.models.values():
        for name in PATH_PARAMETERS:
            if ".." in file.parameters.get(name, "").split("/"):
                yield Complaint(
                    file.path,
                    f"{name} is {file.parameters[name]}, which leads out of the repository",
                    "give the path without ..",
                    file.line_of("key", name),
                )
