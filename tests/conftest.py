"""What all tests share: the demo pair, built and served once; one torch thread; no network."""

from __future__ import annotations

import os

# Before torch is imported anywhere: on few shared cores two OpenMP threads spin against each other.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("KMP_BLOCKTIME", "0")
os.environ["HF_HUB_OFFLINE"] = "1"

import signal
from collections.abc import Callable, Iterator
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from trtspec.build.pair import build
from trtspec.cli import main
from trtspec.engines.pair import EnginePair
from trtspec.triton_repo.repository import write_repository
from trtspec.triton_repo.server import FREE_PORTS, Server, serve

# Whoever starts the tests in the background of a shell has SIGINT ignored, with nohup SIGHUP, and programs
# that tests start and signal would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# How long an example takes depends on what else the machine does; no test is about that. In CI examples are
# the same each time: what a new one finds is found elsewhere, and ends no run that changed nothing.
settings.register_profile(
    "untimed",
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("untimed")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the comparison with ModelOpt where that is not installed, and Chromium unless asked for."""
    unwanted = {"oracle"} if find_spec("modelopt") is None else set()
    unwanted |= {"browser"} - {config.option.markexpr}
    left_out = [item for item in items if unwanted & {mark.name for mark in item.iter_markers()}]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def demo_pair() -> Path:
    """The folder of the shipped pair: target/ and draft/."""
    return Path(str(files("trtspec") / "demo_pair"))


@pytest.fixture(scope="session", autouse=True)
def _one_torch_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _no_store_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Whoever builds outside a test keeps nothing in the home folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRTSPEC_CACHE", str(tmp_path_factory.mktemp("store")))
        yield


@pytest.fixture(autouse=True)
def _own_store(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test a store of its own, so that what it builds is built."""
    monkeypatch.setenv("TRTSPEC_CACHE", str(tmp_path_factory.mktemp("store")))


@pytest.fixture(scope="session")
def built_pair(demo_pair: Path, tmp_path_factory: pytest.TempPathFactory) -> EnginePair:
    """The demo pair as engines for the cpu runtime."""
    output = tmp_path_factory.mktemp("built") / "pair"
    return build(demo_pair / "target", demo_pair / "draft", output, report=lambda line: None)


@pytest.fixture(scope="session")
def live_server(built_pair: EnginePair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A running server of the demo pair, from a repository that was moved after it was written."""
    folder = tmp_path_factory.mktemp("served")
    write_repository(built_pair, folder / "written")
    repository = (folder / "written").rename(folder / "moved")
    with serve(repository, FREE_PORTS) as server:
        yield server
    # No request that a test left is in flight: Triton would have waited for it until it was killed.
    assert server.stopped_cleanly


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run `trtspec` with these words in this process; exit code, stdout, stderr."""

    def typed(*words: object) -> tuple[int, str, str]:
        try:
            main([str(word) for word in words])
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        return (code, *capsys.readouterr())

    return typed
