"""Settings of rotary embedding that transformers, and so every runtime that loads with it, stops at.

Read as transformers reads them: of `rope_scaling` (before version 5) and `rope_parameters` the former counts
where both say something, and `rope_theta` beside them stands in for one that is not inside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trtspec.build.check.findings import Finding

# What each type needs beside rope_theta (transformers 5.24, modeling_rope_utils.py; 4.57 fails without, too).
NEEDED: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
    "longrope": ("short_factor", "long_factor"),
    "proportional": (),
}
# Phi-3's older names of longrope, which its configuration alone translates.
PHI3_LONGROPE = ("su", "yarn")
KINDS_OF_LAYERS = ("full_attention", "sliding_attention")  # Gemma-3 has a set of settings for each


def rope_findings(role: str, config: Mapping[str, Any], head_dim: int | None) -> Iterator[Finding]:
    """Yield an error for a type that does not exist, and for settings that a type needs and has not."""
    wrong = []
    key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    settings = config.get(key)
    if settings is not None and not isinstance(settings, dict):
        wrong.append(f"{key} is {settings!r:.40}, expected an object")
    else:
        for where, found in _sets(key, settings or {}):
            wrong += _faults(where, found, config, head_dim)
    if wrong:
        yield Finding(
            "rope.settings",
            "error",
            f"the {role}'s config.json: {'; '.join(wrong)}; transformers cannot load it",
            "take config.json as its makers published it",
        )


def _sets(key: str, settings: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each set of settings, with its place in config.json."""
    nested = {kind: settings[kind] for kind in KINDS_OF_LAYERS if isinstance(settings.get(kind), dict)}
    if not nested:
        yield key, settings
    for kind, found in nested.items():
        yield f"{key}.{kind}", found


def _faults(
    where: str, settings: Mapping[str, Any], config: Mapping[str, Any], head_dim: int | None
) -> Iterator[str]:
    spelt = "rope_type" if "rope_type" in settings else "type"
    kind = settings.get(spelt, "default")
    if config.get("model_type") == "phi3" and kind in PHI3_LONGROPE:
        kind = "longrope"
    if not isinstance(kind, str) or kind not in NEEDED:
        yield f"{where}.{spelt} is {kind!r:.40}, expected one of {', '.join(NEEDED)}"
        return
    missing = [name for name in NEEDED[kind] if settings.get(name) is None]
    if missing:
        yield f"{where} of type {kind} is without {', '.join(missing)}, expected numbers"
    part = settings.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    if kind == "longrope" and head_dim and type(part) in (int, float):
        pairs = int(head_dim * part) // 2
        for name in NEEDED[kind]:
            factors = settings.get(name)
            if factors is not None and not (isinstance(factors, list) and len(factors) == pairs):
                yield f"{where}.{name} is {factors!r:.40}, expected {pairs} numbers, one for each pair"
    place, given = (where, settings) if "rope_theta" in settings else ("", config)
    if given.get("rope_theta", 1) is None:
        yield f"{f'{place}.' if place else ''}rope_theta is null, expected a number above 0"
