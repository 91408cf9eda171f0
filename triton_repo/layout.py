"""A model repository as the rules see it: which model plays which part."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from tritonclient.grpc.model_config_pb2 import ModelConfig

from trtspec.engines.llm_api import ARGUMENTS
from trtspec.errors import EngineError
from trtspec.triton_repo.config_file import ConfigFile
from trtspec.triton_repo.contract import DRAFT_MODEL, PUBLIC_MODEL, TARGET_MODEL
from trtspec.triton_repo.engine_config import EngineConfig, read_engine_config
from trtspec.triton_repo.leaf_parameters import LEAF_PARAMETERS, TRUE_TEXTS
from trtspec.triton_repo.repository_files import configurations
from trtspec.triton_repo.tensorrt_leaf import BACKEND

# Where `trtspec repo` puts an engine, from its model's folder on.
ENGINE_FOLDER = "1/engine"
PARAMETERS = {parameter.name: parameter for parameter in LEAF_PARAMETERS}
LAUNCH_SUFFIXES = {".sh", ".yaml", ".yml", ".json"}
LAUNCH_NAMES = {"Dockerfile", "Makefile"}

# Who drafts and verifies: our loop, NVIDIA's, or TensorRT-LLM itself behind its LLM API.
Owner = Literal["trtspec", "nvidia", "engine"]
# Where a model over the LLM API keeps its arguments: NVIDIA's name and ours.
LLM_API_FILES = ("model.yaml", ARGUMENTS, "llm_args.json")


@dataclass(frozen=True)
class Leaf:
    """A model with an engine behind it."""

    file: ConfigFile
    config: ModelConfig
    # Where the engine should lie; None where nothing says so.
    engine_folder: Path | None

    @property
    def name(self) -> str:
        return self.file.model

    @property
    def is_cpp(self) -> bool:
        return bool(self.config.backend == BACKEND)

    def parameter(self, name: str) -> str:
        """Return what the backend reads: a value that it understands, else its default, "" for none."""
        known = PARAMETERS[name]
        written = self.file.parameters.get(name)
        return written if written is not None and not known.fault(written) else known.default or ""

    def switch(self, name: str) -> bool:
        """Return what a flag says, or its default."""
        return self.parameter(name) in TRUE_TEXTS

    def ranks_in(self, name: str) -> list[list[str]]:
        """Return the numbers that a parameter like gpu_device_ids gives each instance."""
        value = self.parameter(name)
        return [group.split(",") for group in value.split(";") if group]

    def line_of_parameter(self, name: str) -> int | None:
        return self.file.line_of("key", name)

    @cached_property
    def engine(self) -> EngineConfig | None:
        """What is known of the engine; None when it is not on this machine or cannot be read."""
        if self.engine_folder is None or not self.engine_folder.is_dir():
            return None
        try:
            return read_engine_config(self.engine_folder)
        except EngineError:
            return None


@dataclass(frozen=True)
class Layout:
    """A repository's folder and its models."""

    folder: Path
    models: dict[str, ConfigFile]

    @cached_property
    def loop(self) -> ConfigFile | None:
        """The model that runs the speculation loop: the public one, or whichever names the engines."""
        if PUBLIC_MODEL in self.models:
            return self.models[PUBLIC_MODEL]
        named = [
            m for m in self.models.values() if m.config and "tensorrt_llm_model_name" in m.config.parameters
        ]
        return named[0] if named else None

    @cached_property
    def loop_owner(self) -> Owner | None:
        """Whose loop it is."""
        folders = [file.path.parent / "1" for file in self.models.values()]
        if any((folder / name).is_file() for folder in folders for name in LLM_API_FILES):
            return "engine"
        if self.loop is None:
            return None
        return "trtspec" if (self.loop.path.parent / "1" / "speculation").is_dir() else "nvidia"

    @property
    def target_name(self) -> str:
        parameters = self.loop.parameters if self.loop else {}
        return parameters.get("tensorrt_llm_model_name", TARGET_MODEL)

    @property
    def draft_name(self) -> str | None:
        """The draft model that the loop names."""
        return self.loop.parameters.get("tensorrt_llm_draft_model_name") if self.loop else None

    @cached_property
    def target(self) -> Leaf | None:
        return self.leaf(self.target_name)

    @cached_property
    def draft(self) -> Leaf | None:
        """The draft engine's model: the one the loop names, else the one of the usual name."""
        return self.leaf(self.draft_name or DRAFT_MODEL)

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """The engines' models, the target first; those whose configuration can be read."""
        if self.loop_owner == "engine":
            return ()
        leaves = [leaf for leaf in (self.target, self.draft) if leaf is not None]
        return tuple({leaf.name: leaf for leaf in leaves}.values())

    @property
    def pair(self) -> tuple[Leaf, Leaf] | None:
        """Target and draft, when both are there and two."""
        return (self.leaves[0], self.leaves[1]) if len(self.leaves) == 2 else None

    @property
    def engine_pair(self) -> tuple[EngineConfig, EngineConfig] | None:
        """What is known of both engines, when both are on this machine."""
        engines = [leaf.engine for leaf in self.leaves if leaf.engine]
        return (engines[0], engines[1]) if len(engines) == 2 else None

    @cached_property
    def launch_files(self) -> dict[Path, str]:
        """What starts the server, as far as it lies in the repository: scripts and settings."""
        files = (file for pattern in ("*", "*/1/*") for file in sorted(self.folder.glob(pattern)))
        return {
            file: file.read_text("utf-8", "replace")
            for file in files
            if file.is_file() and (file.suffix in LAUNCH_SUFFIXES or file.name in LAUNCH_NAMES)
        }

    def leaf(self, name: str) -> Leaf | None:
        """Return the model of a name as one with an engine; None when it cannot be read."""
        file = self.models.get(name)
        if file is None or file.config is None:
            return None
        own = file.path.parent / ENGINE_FOLDER
        written = file.parameters.get("gpt_model_path")
        # A relative path starts at the repository's folder: there our launch script goes first.
        folder = self.folder / written if written else own if own.is_dir() else None
        return Leaf(file, file.config, folder)


def open_layout(folder: Path) -> Layout:
    """Return the models of a repository.

    Raises:
        RepositoryError: it is none.
    """
    files = configurations(folder)
    models = {file.parent.name: ConfigFile(file, file.read_text("utf-8", "replace")) for file in files}
    return Layout(folder, models)
