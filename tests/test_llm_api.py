"""Which spelling each TensorRT-LLM gets, and that what nobody has looked at is refused."""

from __future__ import annotations

import pytest

from trtspec.engines.llm_api import DIALECTS, NEWEST, dialect_of, field_since, mode_of
from trtspec.errors import EngineError


@pytest.mark.parametrize(
    ("version", "tag", "field"),
    [
        ("1.2.0rc6", "DraftTarget", "speculative_model_dir"),
        ("1.2.0", "DraftTarget", "speculative_model_dir"),
        ("1.2.1", "DraftTarget", "speculative_model_dir"),
        ("1.2.1.post1", "DraftTarget", "speculative_model_dir"),
        ("1.3.0rc17", "Draft_Target", "speculative_model"),
        ("1.3.0rc29", "Draft_Target", "speculative_model"),
        ("1.3.0", "Draft_Target", "speculative_model"),
        ("1.4.0rc4", "Draft_Target", "speculative_model"),
    ],
)
def test_a_version_is_spelt_as_its_sources_spell_it(version: str, tag: str, field: str) -> None:
    assert mode_of("draft-target", version).decoding_type == tag
    assert dialect_of(version).draft_field == field


@pytest.mark.parametrize("version", ["1.4.0rc5", "1.4.0", "2.0.0"])
def test_a_newer_version_is_refused_with_what_to_look_at(version: str) -> None:
    with pytest.raises(
        EngineError, match=rf"newer than {NEWEST}.*llm_args\.py.*Draft_Target and speculative_m"
    ):
        dialect_of(version)


@pytest.mark.parametrize("version", ["1.3.0rc0", "1.3.0rc12", "1.2.2"])
def test_a_version_whose_sources_disagree_is_refused(version: str) -> None:
    with pytest.raises(EngineError, match=r"contradicts itself.*1.2.0rc2 to 1.2.1, 1.3.0rc17 to 1.4.0rc4"):
        dialect_of(version)


@pytest.mark.parametrize("version", ["1.3.1", "1.3.99", "1.3.1rc3"])
def test_a_number_between_that_was_never_released_is_refused(version: str) -> None:
    with pytest.raises(EngineError, match="no release that is known here"):
        dialect_of(version)


@pytest.mark.parametrize("version", ["0.21.0", "1.0.0", "1.1.0", "1.2.0rc1"])
def test_a_version_from_before_the_spelling_is_refused(version: str) -> None:
    with pytest.raises(EngineError, match="too old"):
        dialect_of(version)


@pytest.mark.parametrize("version", ["", "1.2", "latest", "1.2;", "v1.2.1", "1.2.1\n", "01.2.1", "1.٢.1"])
def test_what_is_no_version_is_refused(version: str) -> None:
    with pytest.raises(EngineError, match="expected a version"):
        dialect_of(version)


def test_a_mode_that_came_later_is_refused_with_the_version_that_has_it() -> None:
    for version in ("1.2.1", "1.3.0rc26"):
        with pytest.raises(EngineError, match=rf"{version}: not known to have dspark.*from 1\.3\.0rc27 on"):
            mode_of("dspark", version)
    assert mode_of("dspark", "1.3.0rc27").decoding_type == "DSpark"


def test_a_field_that_came_later_is_known_by_its_version() -> None:
    assert field_since("enable_penalty", "1.3.0rc17") == "1.3.0rc27"
    assert field_since("enable_penalty", "1.4.0rc1") is None
    assert field_since("max_draft_len", "1.3.0rc17") is None


def test_dialects_do_not_overlap_and_every_mode_is_inside_its_own() -> None:
    for dialect in DIALECTS:
        assert dialect_of(dialect.first) is dialect is dialect_of(dialect.last)
        assert all(mode.since in dialect for mode in dialect.modes.values())
