"""The version matrix: which container holds which TensorRT-LLM and TensorRT."""

from __future__ import annotations

from trtspec.engines.versions import (
    CONTAINERS,
    ENGINE_RELEASE,
    container_of,
    containers_with,
    image_with,
    is_engine_release,
    newest_container,
)


def test_compiled_engines_are_built_in_the_newest_container_that_can() -> None:
    assert ENGINE_RELEASE == "1.2.1"
    assert newest_container().image == "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"


def test_one_release_comes_in_several_containers() -> None:
    tags = [container.tag for container in containers_with(tensorrt_llm="1.2.1")]
    assert tags == ["26.04", "26.05", "26.06", "26.07"]


def test_a_tensorrt_version_may_be_cut_at_a_dot_and_only_there() -> None:
    assert {found.tensorrt_llm for found in containers_with(tensorrt="10.14")} == {"1.2.0rc8", "1.2.1"}
    assert containers_with(tensorrt="10.1") == ()
    assert containers_with(tensorrt_llm="1.1.0", tensorrt="10.14") == ()


def test_a_release_without_a_container_is_said_to_have_none() -> None:
    assert containers_with(tensorrt_llm="1.3.0") == ()
    assert image_with(tensorrt_llm="1.3.0") is None


def test_the_newest_image_that_holds_the_versions_is_named() -> None:
    assert image_with(tensorrt_llm="1.1.0") == "nvcr.io/nvidia/tritonserver:26.02-trtllm-python-py3"
    assert image_with(tensorrt="10.11") == "nvcr.io/nvidia/tritonserver:25.10-trtllm-python-py3"


def test_an_image_is_known_by_its_name() -> None:
    assert all(container_of(container.image) is container for container in CONTAINERS)
    assert container_of("example/triton:26.07") is None


def test_the_table_is_in_order_of_release() -> None:
    tags = [container.tag for container in CONTAINERS]
    assert tags == sorted(set(tags))


def test_engines_come_from_final_releases_of_one_line() -> None:
    known = ("1.2.0", "1.2.1", "1.2.1.post1")
    unknown = ("1.2.0rc8", "1.1.0", "1.3.0", "1.2", "1.2.1 ", "11.2.1", "1.2.1.dev0")
    assert all(map(is_engine_release, known))
    assert not any(map(is_engine_release, unknown))
