"""The cpu engine in this process, with the errors of trtspec.

The engine itself knows nothing of them: its folder is copied into repositories without the rest.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trtspec.errors import EngineError

if TYPE_CHECKING:
    from trtspec.engines.cpu.engine import Engine


def load_engine(folder: Path) -> Engine:
    """Return an engine of the cpu runtime; EngineError, which names the folder, where it cannot be run."""
    from trtspec.engines.cpu.engine import Engine
    from trtspec.engines.cpu.errors import EngineLoadError

    try:
        return Engine(folder)
    except EngineLoadError as error:
        said = str(error)
        raise EngineError(said if str(folder) in said else f"{folder}: {said}") from error
