"""A source that a user names: a local folder, or a model on the Hugging Face hub at a pinned revision.

Of a model on the hub only the JSON files, the chat template and the weight headers are fetched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from trtspec.build.checkpoint import Checkpoint, open_checkpoint
from trtspec.build.json_file import read_object
from trtspec.build.tensor_file import TensorInfo
from trtspec.errors import CheckpointError

HUB_ID = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[\w./-]+))?")
MOVING = {"main", "master"}  # branches: what they hold tomorrow is unknown
FETCHED = ("*.json", "*.jinja")


class Hub(Protocol):
    """Where models are fetched from; tests put a local double here."""

    def fetch_json(self, repo: str, revision: str) -> Path:
        """Return a local folder with the JSON files and the chat template."""

    def fetch_headers(self, repo: str, revision: str) -> Mapping[str, TensorInfo]:
        """Return the tensors by their headers; their files need not exist here."""


def open_source(source: str, hub: Hub | None = None) -> Checkpoint:
    """Open a local folder, or `org/name@revision` on the hub.

    Raises:
        CheckpointError: neither; or the revision is missing or a branch; or the hub does not answer.
    """
    found = HUB_ID.fullmatch(source)
    if Path(source).exists() or not found:
        return open_checkpoint(Path(source))
    repo, revision = found["repo"], found["revision"]
    if revision is None:
        raise CheckpointError(
            f"{source}: no such folder, and a hub id needs a pinned revision; write {repo}@<commit or tag>"
        )
    if revision in MOVING:
        raise CheckpointError(
            f"{source}: {revision} is a branch and moves, expected a pinned revision; "
            f"write {repo}@<commit or tag>, the model's page lists its commits"
        )
    hub = hub or HuggingFaceHub()
    folder = hub.fetch_json(repo, revision)
    if any(folder.glob("*.safetensors")):  # a whole snapshot is cached
        return open_checkpoint(folder)
    tensors = hub.fetch_headers(repo, revision)
    return _from_headers(folder, tensors)


def _from_headers(folder: Path, tensors: Mapping[str, TensorInfo]) -> Checkpoint:
    return Checkpoint(
        path=folder,
        config=read_object(folder / "config.json"),
        generation_config=read_object(folder / "generation_config.json", required=False),
        tensors=dict(sorted(tensors.items())),
        files=tuple(sorted({tensor.file for tensor in tensors.values()})),
    )


class HuggingFaceHub:
    """The hub itself, through huggingface_hub: its cache, its token, its offline switch."""

    def fetch_json(self, repo: str, revision: str) -> Path:
        """See Hub.fetch_json."""
        from huggingface_hub import snapshot_download

        with _answers(repo, revision):
            return Path(snapshot_download(repo, revision=revision, allow_patterns=list(FETCHED)))

    def fetch_headers(self, repo: str, revision: str) -> Mapping[str, TensorInfo]:
        """See Hub.fetch_headers. Only byte ranges with the headers are read; offsets count from the data."""
        from huggingface_hub import get_safetensors_metadata

        with _answers(repo, revision):
            files = get_safetensors_metadata(repo, revision=revision).files_metadata
        return {
            name: TensorInfo(
                name=name,
                dtype=tensor.dtype,
                shape=tuple(tensor.shape),
                file=Path(file),
                offset=tensor.data_offsets[0],
                size_bytes=tensor.data_offsets[1] - tensor.data_offsets[0],
            )
            for file, metadata in files.items()
            for name, tensor in metadata.tensors.items()
        }


@contextmanager
def _answers(repo: str, revision: str) -> Iterator[None]:
    """Turn what huggingface_hub raises into one line."""
    from huggingface_hub import errors

    model = f"{repo}@{revision}"
    try:
        yield
    except errors.GatedRepoError:
        raise CheckpointError(
            f"{model}: gated; accept its terms on its page and log in with `hf auth login`"
        ) from None
    except errors.RevisionNotFoundError:
        raise CheckpointError(f"{model}: the model has no such revision; take one of its commits") from None
    except errors.RepositoryNotFoundError:
        raise CheckpointError(
            f"{model}: no such model on the hub, or a private one; check the name or log in with "
            "`hf auth login`"
        ) from None
    except (errors.NotASafetensorsRepoError, errors.SafetensorsParsingError):
        raise CheckpointError(
            f"{model}: no readable safetensors weights; take a safetensors revision"
        ) from None
    except errors.LocalEntryNotFoundError:
        raise CheckpointError(
            f"{model}: not in the local cache and the Hugging Face hub cannot be reached; fetch the model "
            "where there is a network and give its folder"
        ) from None
    # HTTPError is the base of what the HTTP library under huggingface_hub raises, whichever that is.
    except (errors.HTTPError, OSError) as error:  # type: ignore[attr-defined]  # not declared, always there
        first_line = str(error).strip().partition("\n")[0]
        raise CheckpointError(
            f"{model}: the Hugging Face hub did not answer ({type(error).__name__}: {first_line}); try "
            "again, or fetch the model elsewhere and give its folder"
        ) from error
