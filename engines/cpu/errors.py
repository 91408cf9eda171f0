"""What the engine refuses. Both are ValueErrors: this folder is copied without the rest of trtspec.

Where the rest is, `trtspec.engines.load` turns the first into an EngineError.
"""

from __future__ import annotations


class EngineLoadError(ValueError):
    """An engine folder that is missing something, or asks for what this engine does not compute."""


class RequestError(ValueError):
    """A request that cannot be answered as it was asked."""
