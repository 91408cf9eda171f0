"""Checkpoints in, engine pair out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtspec.lazy import lazily

if TYPE_CHECKING:
    from trtspec.build.checkpoint import open_checkpoint as open_checkpoint
    from trtspec.build.options import BuildOptions as BuildOptions
    from trtspec.build.pair import build as build
    from trtspec.build.quantize.pair_quantizer import PairQuantization as PairQuantization
    from trtspec.build.store.store import default_cache as default_cache

__getattr__ = lazily(
    __name__,
    {
        "BuildOptions": "trtspec.build.options",
        "PairQuantization": "trtspec.build.quantize.pair_quantizer",
        "build": "trtspec.build.pair",
        "default_cache": "trtspec.build.store.store",
        "open_checkpoint": "trtspec.build.checkpoint",
    },
)
