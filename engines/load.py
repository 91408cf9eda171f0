"""The cpu engine in this process, with the errors of trtspec.

The engine itself knows nothing of them: its folder is copied into repositories without the rest.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trtspec.errors import EngineError

if TYPE_CHECKING:
    from trtspec.engines.cpu.engine import Engine

__all__ = ["load_engine"]


def load_engine(folder: Path) -> Engine:
    """Return an engine of the cpu runtime; EngineError where it cannot be run as it is."""
    from trtspec.engines.cpu.engine import Engine
    from trtspec.engines.cpu.errors import EngineLoadError

    try:
        return Engine(folder)
    except EngineLoadError as error:
        raise EngineError(str(error)) from error
