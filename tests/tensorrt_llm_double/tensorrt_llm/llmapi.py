"""The configuration classes of the LLM API, which keep what they are given."""

from __future__ import annotations

from typing import Any

from .llm_args import CLASSES

DRAFT_FIELDS = ("speculative_model", "speculative_model_dir")


class _Given:
    def __init__(self, **given: Any) -> None:
        self.given = given

    def tagged(self, version: str) -> dict[str, Any]:
        """Return it as the YAML file says it, by the tag that the release knows the class by."""
        (tag,) = (t for t in CLASSES[version] if f"{t.replace('_', '')}DecodingConfig" == type(self).__name__)
        return {**self.given, "decoding_type": tag}


class KvCacheConfig(_Given):
    pass


class DraftTargetDecodingConfig(_Given):
    pass


class EagleDecodingConfig(_Given):
    pass


class Eagle3DecodingConfig(_Given):
    pass


class MTPDecodingConfig(_Given):
    pass


class NGramDecodingConfig(_Given):
    pass


class PARDDecodingConfig(_Given):
    pass


class DFlashDecodingConfig(_Given):
    pass


class DSparkDecodingConfig(_Given):
    pass
