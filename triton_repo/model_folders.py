"""Model folders on disk: a configuration, the code that runs it, and files it loads."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from tritonclient.grpc.model_config_pb2 import ModelConfig

from trtspec.engines.publish import link_or_copy
from trtspec.errors import RepositoryError
from trtspec.triton_repo import speculation
from trtspec.triton_repo.model_config import EngineFacts, loop_config, render
from trtspec.triton_repo.options import RepositoryOptions
from trtspec.triton_repo.repository_files import CONFIGURATION
from trtspec.triton_repo.speculation.chat import ChatTemplate

CHAT_TEMPLATE = "chat_template.jinja"
# What `make_readable` leaves files at, so that a second name for one does not change it.
FILE_MODES = (0o644, 0o444)


@dataclass(frozen=True)
class ModelFolder:
    """One model of a repository."""

    config: ModelConfig
    # A package of ours with a `serving.TritonPythonModel`, and the name it has there; None: no Python.
    code: tuple[ModuleType, str] | None = None
    # Packages that it imports, by their names there.
    imports: Mapping[str, ModuleType] = field(default_factory=dict)
    # Folders of the version folder, by name: the files in them are links where possible.
    folders: Mapping[str, Sequence[Path]] = field(default_factory=dict)
    # Further files of the version folder, by path.
    texts: Mapping[str, str] = field(default_factory=dict)


def loop_folder(engines: EngineFacts, options: RepositoryOptions, tokenizer: Sequence[Path]) -> ModelFolder:
    """Return the public model: our loop, with the files of a tokenizer."""
    files, texts = tokenizer_files(tokenizer, options)
    return ModelFolder(
        loop_config(engines, options),
        (speculation, "speculation"),
        folders={"tokenizer": files},
        texts=texts,
    )


def tokenizer_files(
    tokenizer: Sequence[Path], options: RepositoryOptions
) -> tuple[Sequence[Path], dict[str, str]]:
    """Return the files of a tokenizer to take, and those that stand in for some, by path."""
    if options.chat_template is None:
        return tokenizer, {}
    files = [file for file in tokenizer if file.name != CHAT_TEMPLATE]
    return files, {f"tokenizer/{CHAT_TEMPLATE}": _chat_template(options.chat_template)}


def write_model_folder(model: ModelFolder, repository: Path) -> None:
    """Write a model into a repository."""
    folder = repository / model.config.name
    version = folder / "1"
    version.mkdir(parents=True)
    (folder / CONFIGURATION).write_text(render(model.config), "utf-8")
    if model.code:
        package, name = model.code
        for path, copied in {**model.imports, name: package}.items():
            (source,) = copied.__path__
            shutil.copytree(
                source, version.joinpath(*path.split(".")), ignore=shutil.ignore_patterns("__pycache__")
            )
        entry_point = f"from {name}.serving import TritonPythonModel as TritonPythonModel\n"
        (version / "model.py").write_text(entry_point, "utf-8")
    for name, files in model.folders.items():
        (version / name).mkdir(parents=True)
        for file in files:
            _take(file, version / name / file.name)
    for path, text in model.texts.items():
        (version / path).write_text(text, "utf-8")


def files_in(folder: Path) -> list[Path]:
    """Return the files of a folder, sorted."""
    return sorted(path for path in folder.iterdir() if path.is_file())


def _chat_template(file: Path) -> str:
    try:
        text = file.read_text("utf-8")
        ChatTemplate(text, {})
    except (OSError, ValueError) as error:
        raise RepositoryError(f"{file}: {error}; expected a Jinja template of messages") from error
    return text


def _take(source: Path, destination: Path) -> None:
    """Give a file a second name; copy it where that would change its mode."""
    source = source.resolve()
    if stat.S_IMODE(source.stat().st_mode) in FILE_MODES:
        link_or_copy(source, destination)
    else:
        shutil.copyfile(source, destination)
