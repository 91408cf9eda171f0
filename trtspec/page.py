"""Pages that need nothing but themselves, from the templates that lie beside their code."""

from __future__ import annotations

from importlib.resources import files

from trtspec.errors import OutputError


def render(package: str, template: str, **values: object) -> str:
    """Return the page of a package's template; a value that it names and is not given is an error.

    Raises:
        OutputError: when jinja2 is not installed.
    """
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError:
        raise OutputError(
            f"{template}: a page needs jinja2, which is not installed; run: pip install 'trtspec[bench]'"
        ) from None
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string((files(package) / template).read_text("utf-8")).render(values)
