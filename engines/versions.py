"""Which TensorRT-LLM, TensorRT and CUDA each Triton container holds.

Read from `Dockerfile.triton.trt_llm_backend` and the TensorRT-LLM commit that each `r<yy.mm>` branch of
triton-inference-server/tensorrtllm_backend names. A compiled engine loads only where its TensorRT is the
one it was built with, so it is built in the container that serves it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

TRITON_IMAGE = "nvcr.io/nvidia/tritonserver:{tag}-trtllm-python-py3"

# The last release line with `trtllm-build` and the C++ backend for compiled engines.
ENGINE_RELEASE = "1.2.1"
# 1.2.1, 1.2.1.post1; not 1.2.0rc8.
_ENGINE_RELEASES = re.compile(r"1\.2\.\d+(\.post\d+)?")


@dataclass(frozen=True)
class Container:
    """A Triton container with TensorRT-LLM, and what is in it."""

    tag: str  # year.month
    tensorrt_llm: str
    tensorrt: str
    cuda: str

    @property
    def image(self) -> str:
        """The name to pull and run it by."""
        return TRITON_IMAGE.format(tag=self.tag)


# Oldest first.
CONTAINERS = (
    Container("25.08", "0.21.0", "10.11.0.33", "12.9"),
    Container("25.09", "1.0.0", "10.11.0.33", "12.9"),
    Container("25.10", "1.0.0", "10.11.0.33", "12.9"),
    Container("25.11", "1.2.0rc2", "10.13.3.9", "13.0"),
    Container("25.12", "1.1.0", "10.13.3.9", "13.0"),
    Container("26.01", "1.1.0", "10.13.3.9", "13.0"),
    Container("26.02", "1.1.0", "10.13.3.9", "13.0"),
    Container("26.03", "1.2.0rc8", "10.14.1.48", "13.0"),
    Container("26.04", "1.2.1", "10.14.1.48", "13.0"),
    Container("26.05", "1.2.1", "10.14.1.48", "13.0"),
    Container("26.06", "1.2.1", "10.14.1.48", "13.0"),
    Container("26.07", "1.2.1", "10.14.1.48", "13.0"),
)


def containers_with(*, tensorrt_llm: str | None = None, tensorrt: str | None = None) -> tuple[Container, ...]:
    """Return the containers that hold the versions given, oldest first.

    A TensorRT version may be cut short: 10.14 stands for 10.14.1.48.
    """
    return tuple(
        container
        for container in CONTAINERS
        if tensorrt_llm in (None, container.tensorrt_llm)
        and (tensorrt is None or f"{container.tensorrt}.".startswith(f"{tensorrt}."))
    )


def newest_container() -> Container:
    """Return the newest container that compiles engines."""
    return containers_with(tensorrt_llm=ENGINE_RELEASE)[-1]


def image_with(*, tensorrt_llm: str | None = None, tensorrt: str | None = None) -> str | None:
    """Return the newest image that holds the versions given; None where none is known."""
    found = containers_with(tensorrt_llm=tensorrt_llm, tensorrt=tensorrt)
    return found[-1].image if found else None


def container_of(image: str) -> Container | None:
    """Return what is known of an image by its name; None for one that is not in the table."""
    return next((container for container in CONTAINERS if container.image == image), None)


def is_engine_release(tensorrt_llm: str) -> bool:
    """Return whether a TensorRT-LLM is of the line whose `trtllm-build` and engines are known here."""
    return _ENGINE_RELEASES.fullmatch(tensorrt_llm) is not None
