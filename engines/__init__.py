"""An engine pair as a value, and the cpu engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtspec.lazy import lazily

if TYPE_CHECKING:
    from trtspec.engines.host import HostFacts as HostFacts
    from trtspec.engines.host import read_host_facts as read_host_facts
    from trtspec.engines.host_check import check_host as check_host
    from trtspec.engines.manifest import Manifest as Manifest
    from trtspec.engines.pair import EnginePair as EnginePair
    from trtspec.engines.pair import check_contents as check_contents
    from trtspec.engines.pair import open_pair as open_pair

__getattr__ = lazily(
    __name__,
    {
        "EnginePair": "trtspec.engines.pair",
        "HostFacts": "trtspec.engines.host",
        "Manifest": "trtspec.engines.manifest",
        "check_contents": "trtspec.engines.pair",
        "check_host": "trtspec.engines.host_check",
        "open_pair": "trtspec.engines.pair",
        "read_host_facts": "trtspec.engines.host",
    },
)
