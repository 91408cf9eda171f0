"""What all tests share: the demo pair, one torch thread, no network."""

from __future__ import annotations

import os

# Before torch is imported anywhere: on few shared cores two OpenMP threads spin against each other.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("KMP_BLOCKTIME", "0")
os.environ["HF_HUB_OFFLINE"] = "1"

from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the comparison with ModelOpt out where that package is not installed."""
    if find_spec("modelopt") is None:
        left_out = [item for item in items if item.get_closest_marker("oracle")]
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
