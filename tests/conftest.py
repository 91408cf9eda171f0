"""What all tests share: the demo pair, one torch thread, no network."""

from __future__ import annotations

import os

# Before torch is imported anywhere: on few shared cores two OpenMP threads spin against each other.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("KMP_BLOCKTIME", "0")
os.environ["HF_HUB_OFFLINE"] = "1"

from importlib.resources import files
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def demo_pair() -> Path:
    """The folder of the shipped pair: target/ and draft/."""
    return Path(str(files("trtspec") / "demo_pair"))


@pytest.fixture(scope="session", autouse=True)
def _one_torch_thread() -> None:
    import torch

    torch.set_num_threads(1)
