"""Where a source that a user names is looked for; the hub is a double or refuses."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import errors

from trtspec.build.check.pair_report import check
from trtspec.build.checkpoint import open_checkpoint
from trtspec.build.hub import HuggingFaceHub, open_source
from trtspec.build.tensor_file import TensorInfo
from trtspec.errors import CheckpointError


class HubDouble:
    """Serves one local checkpoint as if it were remote: JSON files copied, headers without files."""

    def __init__(self, checkpoint: Path, cache: Path) -> None:
        self.checkpoint, self.cache = checkpoint, cache
        self.asked: list[tuple[str, str]] = []

    def fetch_json(self, repo: str, revision: str) -> Path:
        self.asked.append((repo, revision))
        shutil.copytree(self.checkpoint, self.cache, ignore=shutil.ignore_patterns("*.safetensors"))
        return self.cache

    def fetch_headers(self, repo: str, revision: str) -> Mapping[str, TensorInfo]:
        self.asked.append((repo, revision))
        return open_checkpoint(self.checkpoint).tensors


class HubThatIsNotAsked:
    def fetch_json(self, repo: str, revision: str) -> Path:
        raise AssertionError(f"asked for {repo}")

    def fetch_headers(self, repo: str, revision: str) -> Mapping[str, TensorInfo]:
        raise AssertionError(f"asked for {repo}")


def test_a_folder_is_opened_without_the_hub_even_where_its_name_looks_like_an_id(demo_pair, monkeypatch):
    monkeypatch.chdir(demo_pair.parent)
    assert open_source("demo_pair/target", HubThatIsNotAsked()) == open_checkpoint(Path("demo_pair/target"))


def test_a_pinned_id_is_fetched_by_its_json_and_headers_alone(demo_pair, tmp_path):
    hub = HubDouble(demo_pair / "target", tmp_path / "snapshot")
    remote = open_source("acme/big-1.5B@1234abcd", hub)
    local = open_checkpoint(demo_pair / "target")
    assert hub.asked == [("acme/big-1.5B", "1234abcd")] * 2
    assert (remote.config, remote.generation_config) == (local.config, local.generation_config)
    assert remote.tensors == local.tensors
    assert not list((tmp_path / "snapshot").glob("*.safetensors"))


def test_a_remote_pair_gets_the_same_report_as_the_local_one(demo_pair, tmp_path):
    sides = ("target", "draft")
    remote = [open_source(f"acme/{s}@v1", HubDouble(demo_pair / s, tmp_path / s)) for s in sides]
    local = [open_checkpoint(demo_pair / side) for side in sides]
    assert check(*remote).findings == check(*local).findings
    assert check(*remote).ratios == check(*local).ratios


def test_a_snapshot_that_is_cached_with_its_weights_needs_no_headers(demo_pair):
    class CachedHub(HubThatIsNotAsked):
        def fetch_json(self, repo: str, revision: str) -> Path:
            return demo_pair / "draft"

    assert open_source("acme/small@v1", CachedHub()) == open_checkpoint(demo_pair / "draft")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("acme/big", r"^acme/big: no such folder, .* write acme/big@<commit or tag>$"),
        ("acme/big@main", r"^acme/big@main: main is a branch and moves, .* write acme/big@<commit or tag>"),
        ("/nowhere/at/all", r"^/nowhere/at/all: not a folder"),
        ("./acme/big", r"^acme/big: not a folder"),
        ("acme", r"^acme: not a folder"),
    ],
)
def test_a_source_that_is_neither_a_folder_nor_pinned_is_refused_with_what_to_write(source, message):
    with pytest.raises(CheckpointError, match=message):
        open_source(source, HubThatIsNotAsked())


def test_offline_is_one_clear_line():
    with pytest.raises(
        CheckpointError, match=r"^acme/big@1234abcd: not in the local cache and the"
    ) as caught:
        open_source("acme/big@1234abcd", HuggingFaceHub())
    assert "\n" not in str(caught.value)


def test_headers_that_cannot_be_fetched_offline_are_one_clear_line():
    with pytest.raises(CheckpointError, match=r"^acme/big@1: the Hugging Face hub did not answer") as caught:
        HuggingFaceHub().fetch_headers("acme/big", "1")
    assert "\n" not in str(caught.value)


def failing_with(kind: type[Exception]) -> Callable[..., None]:
    """huggingface_hub's errors take a response; only their type matters here."""

    def fail(*args: object, **kwargs: object) -> None:
        raise kind.__new__(kind)

    return fail


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (errors.GatedRepoError, "gated; accept its terms"),
        (errors.RevisionNotFoundError, "no such revision"),
        (errors.RepositoryNotFoundError, "no such model on the hub"),
        (errors.NotASafetensorsRepoError, "no readable safetensors weights"),
        (errors.HfHubHTTPError, "did not answer"),
        (ConnectionResetError, "did not answer"),
    ],
)
def test_each_refusal_of_the_hub_says_what_to_do(monkeypatch, kind, message):
    monkeypatch.setattr(huggingface_hub, "get_safetensors_metadata", failing_with(kind))
    with pytest.raises(CheckpointError, match=rf"^acme/big@1: .*{message}"):
        HuggingFaceHub().fetch_headers("acme/big", "1")


def test_headers_of_the_hub_become_tensors(monkeypatch):
    from huggingface_hub.utils import SafetensorsFileMetadata, SafetensorsRepoMetadata
    from huggingface_hub.utils import TensorInfo as HubTensor

    tensor = HubTensor(dtype="BF16", shape=[4, 3], data_offsets=(8, 32))
    file = SafetensorsFileMetadata(metadata={}, tensors={"lm_head.weight": tensor})
    found = SafetensorsRepoMetadata(None, False, {}, {"model.safetensors": file})
    monkeypatch.setattr(huggingface_hub, "get_safetensors_metadata", lambda repo, revision: found)
    assert HuggingFaceHub().fetch_headers("acme/big", "1") == {
        "lm_head.weight": TensorInfo("lm_head.weight", "BF16", (4, 3), Path("model.safetensors"), 8, 24)
    }
