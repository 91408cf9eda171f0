"""Write a recipe: every key with its meaning, those that are left to their defaults commented out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import click

from trtspec.recipe.file import Recipe
from trtspec.recipe.known import KnownPair
from trtspec.recipe.schema import SECTIONS, parameters, summary


def recipe_of(pair: KnownPair) -> Recipe:
    """Return what the recipe of a known pair says."""
    build = {
        "target": pair.target.folder,
        "draft": pair.draft.folder,
        "output": f"work/{pair.name}",
        "runtime": "tensorrt",
        **pair.build,
    }
    return Recipe({"build": build, "repo": {"pair": build["output"], "output": f"work/{pair.name}-repo"}})


def render_known(pair: KnownPair) -> str:
    """Return the recipe of a known pair as TOML; nothing is downloaded."""
    header = [
        f"{pair.target.hub_id} with {pair.draft.hub_id} as its draft, planned for {pair.gpus}.",
        "",
        f"target: {pair.target.licence}",
        f"draft:  {pair.draft.licence}",
        "",
        *pair.notes,
        "",
        "Paths are relative to where the command runs. To fetch the checkpoints (--revision pins them):",
        *(f"  hf download {model.hub_id} --local-dir {model.folder}" for model in (pair.target, pair.draft)),
        f"Then: trtspec build --recipe {pair.name}.toml && trtspec repo --recipe {pair.name}.toml",
        "Not yet run on a GPU.",
    ]
    return render(recipe_of(pair), header, {"build": pair.why})


def render(recipe: Recipe, header: list[str], why: Mapping[str, Mapping[str, str]] | None = None) -> str:
    """Return a recipe as TOML, with a comment on every key.

    Args:
        header: lines that stand above it.
        why: more to say of single keys, by section.
    """
    lines = [f"# {line}".rstrip() for line in header]
    for section in SECTIONS:
        lines += ["", f"[{section}]"]
        reasons = (why or {}).get(section, {})
        for name, parameter in parameters(section).items():
            lines += _entry(name, parameter, recipe.section(section), reasons.get(name))
    return "\n".join(lines) + "\n"


def _entry(
    name: str, parameter: click.Parameter, values: Mapping[str, Any], why: str | None
) -> Iterator[str]:
    yield f"# {' '.join(filter(None, (summary(parameter), why)))}"
    if name in values:
        yield f"{name} = {_value(values[name])}"
    else:
        yield f"# {name} = {_default(parameter)}"


def _default(parameter: click.Parameter) -> str:
    """Return the default as TOML; … where there is none to show."""
    default = parameter.to_info_dict()["default"]
    return "…" if default is None or callable(default) else _value(default)


def _value(value: Any) -> str:
    # TOML writes strings, booleans, numbers and arrays as JSON does, but for this one character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
