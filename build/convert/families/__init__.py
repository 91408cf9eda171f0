"""One module per model family: its tensor names and its exceptions. Adding a family is adding a file."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from trtspec.build.convert.tables import Family
from trtspec.errors import CheckpointError


@cache
def families() -> dict[str, Family]:
    """Return the family of every supported architecture, by its Hugging Face class name."""
    found: dict[str, Family] = {}
    for module in sorted(iter_modules(__path__), key=lambda module: module.name):
        family: Family = import_module(f"{__name__}.{module.name}").FAMILY
        found.update(dict.fromkeys(family.architectures, family))
    return dict(sorted(found.items()))


def family_of(architecture: str) -> Family:
    """Return the family of an architecture.

    Raises:
        CheckpointError: no module here names it.
    """
    try:
        return families()[architecture]
    except KeyError:
        raise CheckpointError(
            f"architecture {architecture!r} has no table; supported are {', '.join(families())}"
        ) from None
