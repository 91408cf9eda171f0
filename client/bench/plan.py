"""What a run measures."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from trtspec.choices import AUTO
from trtspec.client._errors import InvalidArgument
from trtspec.client._options import Prompt
from trtspec.client.bench.load import check_load
from trtspec.client.bench.result import Arm, Load, PromptSet, Settings
from trtspec.client.bench.targets import Target


@dataclass(frozen=True)
class Prompts:
    """What is asked, with its name."""

    about: PromptSet
    items: tuple[Prompt, ...]

    @classmethod
    def of(cls, name: str, items: Sequence[Prompt], *, random_tokens: bool = False) -> Prompts:
        if not items:
            raise InvalidArgument(f"{name}: found no prompts, expected some")
        lines = "".join(json.dumps(item, ensure_ascii=False, sort_keys=True) + "\n" for item in items)
        sha256 = hashlib.sha256(lines.encode(errors="surrogatepass")).hexdigest()
        return cls(PromptSet(name, len(items), sha256, random_tokens), tuple(items))


@dataclass(frozen=True)
class Plan:
    """What is measured; the first arm is what the others are compared with.

    Args:
        requests: of a segment; more than there are prompts ask them again. None: every prompt once, and
            at least twice as many requests as are under way.
    """

    arms: tuple[Arm, ...]
    loads: tuple[Load, ...]
    prompts: Prompts
    settings: Settings
    requests: int | None = None

    def __post_init__(self) -> None:
        for kind, found in (("arms", self.arms), ("loads", self.loads)):
            all_names = [one.name for one in found]
            if not all_names or len(set(all_names)) < len(all_names):
                raise InvalidArgument(
                    f"{kind}: found {', '.join(all_names) or 'none'}, expected some, each once"
                )
        for load in self.loads:
            check_load(load)
        settings = self.settings
        counts = {"max_tokens": settings.max_tokens, "blocks": settings.blocks, "requests": self.requests}
        for name, count in counts.items():
            if count is not None and count < 1:
                raise InvalidArgument(f"{name}: found {count}, expected at least 1")
        if not 0 < settings.confidence < 1:
            raise InvalidArgument(f"confidence: found {settings.confidence}, expected a rate between 0 and 1")

    def requests_of(self, load: Load) -> int:
        """Return how many requests a segment under this load has."""
        return self.requests or max(len(self.prompts.items), 2 * (load.concurrency or 0))


def arms_of(targets: Sequence[Target], lengths: Sequence[int | None]) -> tuple[Arm, ...]:
    """Return an arm for each target and draft length, and one for a target that takes none.

    Where a length is None, the target is asked for none and takes what it has been set.
    The target is in an arm's name where there are several.
    """
    found = []
    for target in targets:
        for length in lengths if target.takes_draft_tokens else (None,):
            words = [target.name] if len(targets) > 1 or not target.takes_draft_tokens else []
            if length is not None:
                words.append("auto" if length == AUTO else f"γ={length}")
            elif target.takes_draft_tokens:
                words.append("default")
            found.append(Arm(" ".join(words), target.name, length))
    return tuple(found)
