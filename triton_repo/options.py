"""How a repository answers when a request does not say, and how its engines are started."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from trtspec.engines.memory.result import MemoryPlan
from trtspec.errors import RepositoryError
from trtspec.triton_repo.launch import LaunchOptions
from trtspec.triton_repo.speculation.draft_table import DraftTokens, longest

# Near the best on the demo pair, alone and with eight streams; a request may ask for another.
DEFAULT_DRAFT_TOKENS = 5

DefaultDraftTokens = DraftTokens | Literal["auto"]


@dataclass(frozen=True)
class RepositoryOptions:
    """What is asked of a repository."""

    # "auto": chosen for every round; a table: by the number of requests in flight. None:
    # DEFAULT_DRAFT_TOKENS, or what the pair was built for if that is less.
    num_draft_tokens: DefaultDraftTokens | None = None
    # Renders conversations; None: the template of the checkpoint, if it has one.
    chat_template: Path | None = None
    # NVIDIA's recipe puts the prompt in front of the answer; clients rarely want that. None: it is
    # left out, except where a repository of that recipe is taken over and says otherwise.
    exclude_input_in_output: bool | None = None
    # Requests the public model works on; one more is told that it is busy.
    max_inflight_requests: int = 64
    # An engine that sends nothing for so long counts as failed: the target ends the answer, the draft
    # is left out of it.
    target_timeout_s: float = 300.0
    draft_timeout_s: float = 30.0
    # The rest is for TensorRT-LLM's engines only.
    launch: LaunchOptions = field(default_factory=LaunchOptions)
    memory: MemoryPlan | None = None

    def check(self, max_draft_len: int, where: Path) -> None:
        """Raise RepositoryError for what engines that take so many drafted tokens cannot do."""
        asked = self.num_draft_tokens
        if asked is not None and asked != "auto" and not 0 <= longest(asked) <= max_draft_len:
            raise RepositoryError(f"num_draft_tokens is {asked}; {where} was built for 0 to {max_draft_len}")
        if self.max_inflight_requests < 1:
            raise RepositoryError(
                f"max_inflight_requests is {self.max_inflight_requests}, expected at least 1"
            )
        for name in ("target_timeout_s", "draft_timeout_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise RepositoryError(f"{name} is {getattr(self, name)}, expected seconds above 0")

    def draft_tokens(self, max_draft_len: int) -> DefaultDraftTokens:
        """Return the γ of a request that asks for none."""
        if self.num_draft_tokens is None:
            return min(DEFAULT_DRAFT_TOKENS, max_draft_len)
        return self.num_draft_tokens
