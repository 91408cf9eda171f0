"""A benchmark's result: everything that was measured, and what it comes to.

Times are in seconds, those of a trial since its segment began. A segment is one arm under one load
for one pass over the prompts; a block holds a segment of every arm, in a random order, so that what
drifts hits all arms alike.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal

from trtspec.client._errors import InvalidArgument
from trtspec.client._results import ServerTimes, Speculation

TokensFrom = Literal["ids", "usage", "tokenizer"]


class _Strict:
    """Its fields' docstrings are the schema's descriptions; unknown keys are refused."""

    __pydantic_config__: ClassVar[Any] = {
        "extra": "forbid",
        "use_attribute_docstrings": True,
        "allow_inf_nan": False,
    }


@dataclass(frozen=True)
class Arm(_Strict):
    """One of the things that are compared: a server, asked with one draft length."""

    name: str
    server: str
    """Name of the target that is asked."""
    num_draft_tokens: int | None
    """γ; -1 where the server adapts it, null where it is asked for none."""


@dataclass(frozen=True)
class Load(_Strict):
    """How requests come: so many at a time, or so many a second whatever the server does."""

    name: str
    kind: Literal["closed", "open"]
    concurrency: int | None = None
    """Requests under way at any time; of a closed loop."""
    rate_per_s: float | None = None
    """Requests a second on average, at the times of a Poisson process; of an open loop."""

    @classmethod
    def closed(cls, concurrency: int) -> Load:
        return cls(f"{concurrency} at a time", "closed", concurrency=concurrency)

    @classmethod
    def open(cls, rate_per_s: float) -> Load:
        return cls(f"{rate_per_s:g}/s", "open", rate_per_s=rate_per_s)


@dataclass(frozen=True)
class Bound(_Strict):
    """What an answer must keep to count as good; null where it does not matter."""

    ttft_s: float | None = None
    itl_s: float | None = None
    """Amortised over the tokens after the first chunk."""
    e2e_s: float | None = None


@dataclass(frozen=True)
class PromptSet(_Strict):
    """What was asked."""

    name: str
    count: int
    sha256: str
    """Of the prompts as JSON, one a line."""
    random_tokens: bool = False
    """Made of random token ids: good for load, and without meaning for acceptance."""


@dataclass(frozen=True)
class Settings(_Strict):
    """How it was measured."""

    max_tokens: int
    blocks: int
    warm_up: int
    """Blocks that came first and are not counted."""
    seed: int
    bound: Bound = field(default_factory=Bound)
    confidence: float = 0.95
    """Rate at which an interval holds the truth."""


@dataclass(frozen=True)
class Arrival(_Strict):
    """A response that brought something."""

    at_s: float
    tokens: int | None
    """null where the server does not say."""


@dataclass(frozen=True)
class Trial(_Strict):
    """One request."""

    arm: str
    load: str
    block: int
    prompt: int
    """Number in the prompt set, from 0."""
    due_s: float
    """When it should have been sent; waiting times count from here."""
    sent_s: float
    ended_s: float
    arrivals: tuple[Arrival, ...] = ()
    tokens: int = 0
    tokens_from: TokensFrom = "ids"
    """What they were counted by."""
    prompt_tokens: int | None = None
    finish_reason: str | None = None
    server: ServerTimes | None = None
    speculation: Speculation | None = None
    answer: str = ""
    """The first 16 hexadecimal digits of the SHA-256 of its text."""
    error: str = ""
    """Why there was no whole answer; such a trial counts in no time and no rate."""

    @property
    def ok(self) -> bool:
        return not self.error

    @property
    def e2e_s(self) -> float:
        """From when it was due to the end of the answer."""
        return self.ended_s - self.due_s

    @property
    def ttft_s(self) -> float | None:
        """From when it was due to the first response that brought something."""
        return self.arrivals[0].at_s - self.due_s if self.arrivals else None

    @property
    def chunk_gaps_s(self) -> tuple[float, ...]:
        """Between one response and the next: inter-token latency as it is seen, several tokens at once."""
        return tuple(after.at_s - before.at_s for before, after in pairwise(self.arrivals))

    @property
    def itl_s(self) -> float | None:
        """Inter-token latency, amortised: time after the first response / tokens after it.

        Where the server does not say how many the first brought, one; but None where that was all.
        """
        if not self.arrivals:
            return None
        first, last = self.arrivals[0], self.arrivals[-1]
        if first is last and first.tokens is None:
            return None
        tokens = self.tokens - (1 if first.tokens is None else first.tokens)
        return (last.at_s - first.at_s) / tokens if tokens > 0 else None

    @property
    def tokens_per_response(self) -> float | None:
        return self.tokens / len(self.arrivals) if self.arrivals else None

    @property
    def tokens_per_s(self) -> float | None:
        return self.tokens / self.e2e_s if self.e2e_s > 0 else None


@dataclass(frozen=True)
class Segment(_Strict):
    """One arm under one load for one pass over the prompts; in the order they ran."""

    arm: str
    load: str
    block: int
    wall_s: float
    """From its beginning to the end of its last answer."""


@dataclass(frozen=True)
class Estimate(_Strict):
    """A value, and the interval that holds the truth at the rate of the settings."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Distribution(_Strict):
    """Percentiles over the requests of all blocks."""

    p50: Estimate
    p90: Estimate
    p95: Estimate
    p99: Estimate


@dataclass(frozen=True)
class Acceptance(_Strict):
    """What the draft was good for; trtspec.theory has the definitions."""

    rate: Estimate
    """r: accepted / proposed draft tokens."""
    alpha: Estimate | None
    """α: chance that a draft token is accepted, given that those before it were, were it everywhere equal.

    null where the server does not count by position.
    """
    tokens_per_target_call: Estimate | None
    """E: 1 + accepted / rounds; null where the server does not count rounds, as NVIDIA's do not."""
    mean_draft_tokens: float | None
    """Proposed / rounds: γ, or less near limits and where γ adapts; null as E."""
    by_position: tuple[float, ...]
    """Accepted / proposed at each position; not conditioned on the positions before."""
    share_of_tokens: float | None = None
    """Tokens that rounds brought / all tokens; r, α and E do not speak of the others, which came without
    a draft. null as E."""


@dataclass(frozen=True)
class Summary(_Strict):
    """One arm under one load."""

    arm: str
    load: str
    requests: int
    failed: int
    tokens: int
    tokens_per_s: Estimate | None
    """In total: all tokens of a segment / its wall time; the median over blocks."""
    tokens_per_s_per_request: Distribution | None
    ttft_s: Distribution | None
    itl_chunk_s: Distribution | None
    """Gaps between responses, several tokens at once."""
    itl_s: Distribution | None
    """Amortised over tokens."""
    e2e_s: Distribution | None
    goodput_per_s: Estimate | None
    """Requests a second that kept the bound; null without one."""
    server_s: Distribution | None
    """From arrival to last token, by the server's clock."""
    outside_share: Estimate | None
    """Share of the end-to-end time outside the server: network, frontends, waiting to be sent."""
    orchestration_share: Estimate | None
    """Share of the server's time in which no call of an engine was under way: the loop, and queueing."""
    acceptance: Acceptance | None
    tokens_per_response: Estimate | None = None
    """Tokens / responses that brought something: what lies behind the gaps between responses."""
    ratios: dict[str, Estimate] = field(default_factory=dict)
    """By metric: this arm / the first one under the same load, paired by block or by prompt."""


@dataclass(frozen=True)
class BenchResult(_Strict):
    """What `trtspec bench --json` writes."""

    about: dict[str, str]
    """Command, versions, hardware, what the servers say of themselves."""
    settings: Settings
    prompts: PromptSet
    arms: tuple[Arm, ...]
    """The first is what the others are compared with."""
    loads: tuple[Load, ...]
    segments: tuple[Segment, ...]
    trials: tuple[Trial, ...]
    summaries: tuple[Summary, ...]
    notes: tuple[str, ...] = ()
    """What a reader must know: figures that are refused, and why."""
    format: Literal[1] = 1

    def trials_of(self, arm: str, load: str) -> tuple[Trial, ...]:
        return tuple(trial for trial in self.trials if (trial.arm, trial.load) == (arm, load))

    def summary_of(self, arm: str, load: str) -> Summary:
        return next(one for one in self.summaries if (one.arm, one.load) == (arm, load))

    def as_dict(self) -> dict[str, Any]:
        """Return it as what JSON can hold."""
        return asdict(self)


def read_result(path: Path) -> BenchResult:
    """Return what `trtspec bench --json` has written.

    Raises:
        InvalidArgument: naming what is no such file, or contradicts itself.
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        result: BenchResult = TypeAdapter(BenchResult).validate_json(path.read_bytes())
    except OSError as error:
        raise InvalidArgument(f"{path}: cannot be read: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "its text"
        raise InvalidArgument(
            f"{path}: no result of `trtspec bench --json`: {where}: {first['msg']}; "
            f"{error.error_count()} faults in all"
        ) from None
    for fault in _contradictions(result):
        raise InvalidArgument(f"{path}: contradicts itself: {fault}; was it edited?")
    return result


def _contradictions(result: BenchResult) -> Iterator[str]:
    """Yield what no run can have measured."""
    ran = {(arm.name, load.name) for arm in result.arms for load in result.loads}
    for kind, found in (("segments", result.segments), ("trials", result.trials)):
        if others := {(one.arm, one.load) for one in found} - ran:
            arm, load = min(others)
            yield f"{kind} of {arm!r}, {load!r}, which are not among its arms and loads"
    places = [(one.arm, one.load, one.block) for one in result.segments]
    if len(set(places)) < len(places):
        yield f"{len(places) - len(set(places))} segments more than once"
    if {(one.arm, one.load, one.block) for one in result.trials} - set(places):
        yield "trials of a segment that is not there"
    for number, trial in enumerate(result.trials):
        times = [trial.due_s, *(one.at_s for one in trial.arrivals), trial.ended_s]
        if times != sorted(times):
            yield f"trial {number}: what came later has the smaller time"
        if trial.tokens < 0 or not 0 <= trial.prompt < result.prompts.count:
            yield f"trial {number}: {trial.tokens} tokens for prompt {trial.prompt} of {result.prompts.count}"
    if any(segment.wall_s < 0 for segment in result.segments):
        yield "a segment that took less than no time"


def schema() -> str:
    """Return the JSON Schema of a result, as `client/bench/result.schema.json` holds it."""
    from pydantic import TypeAdapter

    document = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    document |= TypeAdapter(BenchResult).json_schema(mode="serialization")
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
