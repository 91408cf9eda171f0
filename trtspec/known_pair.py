"""What the manifest of a served pair tells whoever verifies the answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trtspec.dtype_noise import Dtype
    from trtspec.engines.manifest import Manifest


def manifest_at(path: Path) -> Manifest:
    """Read `trtspec.json`, or that of the folder of a pair or a repository. Raises EngineError."""
    from trtspec.engines.manifest import MANIFEST
    from trtspec.engines.pair import read_manifest

    return read_manifest(path / MANIFEST if path.is_dir() else path)


def dtype_of(manifest: Manifest) -> Dtype:
    """Return what the target computes in."""
    from trtspec.dtype_noise import served_dtype

    target = manifest.target
    return served_dtype(target.settings.dtype, quantized=target.quantization is not None)


def sources_of(manifest: Manifest | None) -> dict[str, str]:
    """Return the SHA-256 of each file that the target was built from, by its name."""
    return manifest.target.source.files if manifest and manifest.target.source else {}
