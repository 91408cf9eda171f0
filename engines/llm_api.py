"""How each TensorRT-LLM spells speculative decoding in the arguments of its LLM API.

Read from `tensorrt_llm/llmapi/llm_args.py` of several commits and from the pages
`llm-api/reference/*DecodingConfig.html` and `features/speculative-decoding.html` of the releases.
A wrong spelling is a validation error when the server starts, and is only seen on a GPU host; so a version
that nobody has looked at is refused here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from trtspec.errors import EngineError

# The file of a pair that holds them.
ARGUMENTS = "llm_args.yaml"

Speculation = Literal["draft-target", "eagle3", "mtp", "ngram", "pard", "dflash", "dspark"]

_VERSION = re.compile(r"(N)\.(N)\.(N)(?:rc(N))?(?:\.postN)?".replace("N", "(?:0|[1-9][0-9]*)"))
_FINAL = 10**6  # a final release comes after its candidates


@dataclass(frozen=True)
class Mode:
    """A way to draft, as one dialect knows it."""

    decoding_type: str  # the tag in YAML
    since: str  # the first version that is known to have it


@dataclass(frozen=True)
class Dialect:
    """The spelling that a row of versions has in common."""

    first: str
    last: str
    # The releases whose candidates or final are among them; a number between that nobody released is none.
    releases: tuple[str, ...]
    modes: Mapping[Speculation, Mode]
    # The field with the draft's folder or name on the hub.
    draft_field: str
    # The field with the number of modules of multi-token prediction, which are as many draft tokens.
    mtp_field: str
    # Draft and target are one engine: it is greedy unless the configuration allows more, and penalties are
    # off unless it turns them on. Else the draft runs beside it, and sampling is that of any request.
    one_engine: bool
    # Fields of the configuration that came later than the dialect, by the first version known to have them.
    later_fields: Mapping[str, str] = field(default_factory=dict)

    def __contains__(self, version: str) -> bool:
        is_released = ".".join(map(str, _order(version)[:3])) in self.releases
        return is_released and _order(self.first) <= _order(version) <= _order(self.last)


# Oldest first. The older has no tag `Eagle3`: there `Eagle` is EAGLE-3.
DIALECTS = (
    Dialect(
        first="1.2.0rc2",
        last="1.2.1",
        releases=("1.2.0", "1.2.1"),
        modes={
            "draft-target": Mode("DraftTarget", "1.2.0rc2"),
            "eagle3": Mode("Eagle", "1.2.0rc2"),
            "mtp": Mode("MTP", "1.2.0rc2"),
            "ngram": Mode("NGram", "1.2.0rc2"),
        },
        draft_field="speculative_model_dir",
        mtp_field="num_nextn_predict_layers",
        one_engine=False,
    ),
    Dialect(
        first="1.3.0rc17",
        last="1.4.0rc4",
        releases=("1.3.0", "1.4.0"),
        modes={
            "draft-target": Mode("Draft_Target", "1.3.0rc17"),
            "eagle3": Mode("Eagle3", "1.3.0rc17"),
            "mtp": Mode("MTP", "1.3.0rc17"),
            "ngram": Mode("NGram", "1.3.0rc17"),
            "pard": Mode("PARD", "1.3.0rc17"),
            "dflash": Mode("DFlash", "1.3.0rc27"),
            "dspark": Mode("DSpark", "1.3.0rc27"),
        },
        draft_field="speculative_model",
        mtp_field="max_draft_len",
        one_engine=True,
        later_fields={"use_rejection_sampling": "1.3.0rc27", "enable_penalty": "1.3.0rc27"},
    ),
)
NEWEST = DIALECTS[-1].last


def dialect_of(version: str) -> Dialect:
    """Return how a TensorRT-LLM spells its arguments; EngineError where that is not known."""
    if _VERSION.fullmatch(version) is None:
        raise EngineError(f"TensorRT-LLM {version!r}: expected a version such as 1.2.1 or {NEWEST}")
    found = next((dialect for dialect in DIALECTS if version in dialect), None)
    if found is None:
        raise EngineError(f"TensorRT-LLM {version}: {_why_unknown(version)}")
    return found


def mode_of(speculation: Speculation, version: str) -> Mode:
    """Return how a version spells a way to draft; EngineError where it has none, with the first that does."""
    mode = dialect_of(version).modes.get(speculation)
    if mode is not None and _order(mode.since) <= _order(version):
        return mode
    since = [row.modes[speculation].since for row in DIALECTS if speculation in row.modes]
    raise EngineError(
        f"TensorRT-LLM {version}: not known to have {speculation}; it is there from {since[0]} on"
    )


def field_since(name: str, version: str) -> str | None:
    """Return the version from which a field is there, where that is later than `version`; else None."""
    since = dialect_of(version).later_fields.get(name)
    return since if since is not None and _order(since) > _order(version) else None


def _why_unknown(version: str) -> str:
    if _order(version) > _order(NEWEST):
        return (
            f"newer than {NEWEST}, the newest that is known here; look into its "
            "tensorrt_llm/llmapi/llm_args.py for the decoding_type of DraftTargetDecodingConfig and the "
            f"field with the draft's path, and build for {NEWEST} where they are "
            f"{DIALECTS[-1].modes['draft-target'].decoding_type} and {DIALECTS[-1].draft_field}"
        )
    known = ", ".join(f"{dialect.first} to {dialect.last}" for dialect in DIALECTS)
    if _order(version) < _order(DIALECTS[0].first):
        return f"too old for the LLM API as it is spelt here; known are {known}"
    if any(_order(dialect.first) <= _order(version) <= _order(dialect.last) for dialect in DIALECTS):
        return f"no release that is known here; known are {known}"
    return (
        "what has been published about it contradicts itself (decoding_type DraftTarget or Draft_Target); "
        f"known are {known}"
    )


def _order(version: str) -> tuple[int, ...]:
    """Return a key that sorts versions; a post-release is its release."""
    found = _VERSION.fullmatch(version)
    assert found is not None, version
    major, minor, patch, candidate = found.groups()
    return int(major), int(minor), int(patch), int(candidate or _FINAL)
