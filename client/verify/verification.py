"""All parts of a verification, in order, and what they have found so far."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from numbers import Integral

from trtspec.choices import AUTO, DTYPES, PARTS, Dtype, Part
from trtspec.client._client import Client
from trtspec.client._errors import InvalidArgument, RequestRefused
from trtspec.client.verify.findings import Finding
from trtspec.client.verify.fingerprint import Fingerprint, compare_fingerprint
from trtspec.client.verify.greedy import Case, Judge, compare_greedy
from trtspec.client.verify.log_probs import compare_log_probs
from trtspec.client.verify.logits import compare_logits
from trtspec.client.verify.options import check_options
from trtspec.client.verify.prompts import DEFAULT_PROMPTS
from trtspec.client.verify.reference import Reference
from trtspec.client.verify.report import VerifyReport
from trtspec.client.verify.sampling import SamplingPlan, judge_sampling
from trtspec.client.verify.self_test import self_test
from trtspec.client.verify.tokens import compare_tokens
from trtspec.dtype_noise import Noise

# What a server is asked up to that does not say what its engines were built for.
LONGEST_UNKNOWN = 8
# Fewer sampled answers a prompt show hardly anything.
LEAST_ANSWERS = 40


def _is_number(value: object, *, at_least: int) -> bool:
    return isinstance(value, Integral) and int(value) >= at_least


@dataclass(frozen=True)
class Settings:
    """What is asked, and how it is judged."""

    prompts: Sequence[str] = DEFAULT_PROMPTS
    # AUTO is left out where the server does not know it.
    num_draft_tokens: Sequence[int] = (0,)
    # Whether a length that the server refuses is passed over, and said so; else it is an error.
    skip_refused_lengths: bool = False
    max_tokens: int = 64
    concurrency: int = 4
    # So many of the prompts are asked once more, each alone.
    alone: int = 8
    # What the engine computes in; decides what is a tie.
    dtype: Dtype = "float32"
    parts: Sequence[Part] = PARTS
    # Draws for each prompt and way of accepting, and the prompts they are drawn for.
    draws: int = 200
    sampling_prompts: int = 6
    option_prompts: int = 3
    # Prompts whose logits are fetched: they are large.
    logit_prompts: int = 3
    alarm_rate: float = 0.001
    seed: int = 0
    # What the engines said where they were built, as the manifest of their pair has it.
    fingerprint: Fingerprint | None = None

    def __post_init__(self) -> None:
        if faults := [*self._nothing_to_compare(), *self._wrong_choices(), *self._wrong_numbers()]:
            raise InvalidArgument("; ".join(faults))

    def _nothing_to_compare(self) -> Iterator[str]:
        for name in ("parts", "prompts", "num_draft_tokens"):
            given = getattr(self, name)
            if isinstance(given, str):
                yield f"{name}: found {given!r:.60}, expected a list; write [{given!r:.60}]"
            elif not len(given):
                yield f"{name}: found none, expected at least one"

    def _wrong_choices(self) -> Iterator[str]:
        if not isinstance(self.parts, str) and (unknown := {*self.parts} - {*PARTS}):
            yield f"parts: found {', '.join(sorted(unknown))}, expected some of {', '.join(PARTS)}"
        if self.dtype not in DTYPES:
            yield f"dtype: found {self.dtype!r}, expected one of {', '.join(DTYPES)}"

    def _wrong_numbers(self) -> Iterator[str]:
        lengths = list(self.num_draft_tokens)
        if wrong := [n for n in lengths if n != AUTO and not _is_number(n, at_least=0)]:
            yield f"num_draft_tokens: found {wrong[0]!r}, expected numbers from 0 on, and {AUTO} for auto"
        elif lengths and {*lengths} == {AUTO}:
            yield f"num_draft_tokens: found {AUTO} alone, which says of no length that it is right; add 0"
        least = {
            **dict.fromkeys(("max_tokens", "concurrency", "sampling_prompts", "option_prompts"), 1),
            **dict.fromkeys(("alone", "logit_prompts", "seed"), 0),
            "draws": LEAST_ANSWERS,
        }
        for name, at_least in least.items():
            if not _is_number(found := getattr(self, name), at_least=at_least):
                yield f"{name}: found {found!r}, expected a whole number, at least {at_least}"
        if not 0.0 < self.alarm_rate < 1.0:
            yield f"alarm_rate: found {self.alarm_rate!r}, expected a probability between 0 and 1"


class Verification:
    """One verification; `report` is what it has found, also while it runs and after it was stopped."""

    def __init__(
        self,
        client: Client,
        reference: Reference,
        settings: Settings,
        *,
        on_finding: Callable[[Finding | Case], None] = lambda found: None,
        on_part: Callable[[Part], None] = lambda part: None,
    ) -> None:
        self._client = client
        self._reference = reference
        self._settings = settings
        self._on_finding = on_finding
        self._on_part = on_part
        self._judge = Judge(reference, Noise(settings.dtype, reference.layers, reference.width))
        self._cases: list[Case] = []
        self._others: list[Finding] = []
        self._complete = False

    @property
    def report(self) -> VerifyReport:
        return VerifyReport(
            reference=self._reference.name,
            about=self._reference.about,
            judged_as=self._settings.dtype,
            alarm_rate=self._settings.alarm_rate,
            cases=tuple(self._cases),
            others=tuple(self._others),
            complete=self._complete,
        )

    def run(self) -> VerifyReport:
        """Look at everything and return the report.

        Raises:
            CallFailed: when an answer did not come; what is under way is cancelled.
        """
        parts: dict[Part, Callable[[], Generator[Finding | Case, None, None]]] = {
            "reference": lambda: self_test(self._reference),
            "fingerprint": self._fingerprint,
            "tokens": self._tokens,
            "greedy": self._greedy,
            "log-probs": self._log_probs,
            "options": self._options,
            "sampling": self._sampling,
        }
        self._lengths = self._known_lengths()
        for part in PARTS:
            if part in self._settings.parts:
                self._on_part(part)
                # Closed on every way out, so that no answer stays under way.
                with closing(parts[part]()) as found:
                    for one in found:
                        self._add(one)
        self._complete = True
        return self.report

    def _known_lengths(self) -> list[int]:
        """Return the lengths to ask with; the longest is tried before anything is compared."""
        lengths = list(self._settings.num_draft_tokens)
        if AUTO in lengths and self._refusal(AUTO):
            lengths.remove(AUTO)
        while (longest := max(lengths)) > 0 and (refusal := self._refusal(longest)):
            # One has to be left, and more than "the server chooses".
            if not self._settings.skip_refused_lengths or longest == min(n for n in lengths if n != AUTO):
                raise refusal
            lengths.remove(longest)
            why = f"the server refuses it: {refusal}"
            self._add(Finding("greedy", f"{longest} draft tokens", "skipped", why))
        return lengths

    def _refusal(self, num_draft_tokens: int) -> RequestRefused | None:
        prompt = self._settings.prompts[0]
        try:
            self._client.generate(prompt, max_tokens=1, num_draft_tokens=num_draft_tokens)
        except RequestRefused as refusal:
            return refusal
        return None

    def _fingerprint(self) -> Generator[Finding, None, None]:
        if self._settings.fingerprint is None:
            yield Finding("fingerprint", "all", "skipped", "no manifest is known that has a fingerprint")
        else:
            yield from compare_fingerprint(self._client, self._settings.fingerprint)

    def _tokens(self) -> Generator[Finding, None, None]:
        prompts = spread(self._settings.prompts, self._settings.alone or 1)
        yield from compare_tokens(self._client, self._reference, prompts)

    def _greedy(self) -> Generator[Case, None, None]:
        settings = self._settings
        runs = [(settings.prompts, settings.concurrency)]
        if settings.alone and settings.concurrency > 1:
            runs.append((spread(settings.prompts, settings.alone), 1))
        for prompts, concurrency in runs:
            yield from compare_greedy(
                self._client,
                self._judge,
                prompts,
                self._lengths,
                max_tokens=settings.max_tokens,
                concurrency=concurrency,
            )

    def _log_probs(self) -> Generator[Finding, None, None]:
        yield from compare_log_probs(
            self._client,
            self._judge,
            spread(self._settings.prompts, self._settings.alone or 1),
            self._extremes,
            max_tokens=self._settings.max_tokens,
            concurrency=self._settings.concurrency,
        )
        yield from compare_logits(
            self._client,
            self._judge,
            spread(self._settings.prompts, self._settings.logit_prompts),
            self._extremes,
            max_tokens=self._settings.max_tokens,
            concurrency=self._settings.concurrency,
        )

    def _options(self) -> Generator[Finding, None, None]:
        prompts = spread(self._settings.prompts, self._settings.option_prompts)
        yield from check_options(self._client, self._judge, prompts, self._extremes)

    def _sampling(self) -> Generator[Finding, None, None]:
        settings = self._settings
        if any(case.from_text for case in self._cases):
            why = "the server sends no token ids (output_ids), and a distribution is one over tokens"
            yield Finding("sampling", "all", "skipped", why)
            return
        plan = SamplingPlan(
            draws=settings.draws,
            num_draft_tokens=max(self._lengths),
            alarm_rate=settings.alarm_rate,
            seed=settings.seed,
            concurrency=settings.concurrency,
        )
        prompts = [self._judge.prompt_ids(p) for p in spread(settings.prompts, settings.sampling_prompts)]
        yield from judge_sampling(self._client, self._reference, self._judge.noise, prompts, plan)

    @property
    def _extremes(self) -> list[int]:
        """The shortest and the longest draft: what lies between is compared by greedy answers."""
        return sorted({min(n for n in self._lengths if n != AUTO), max(self._lengths)})

    def _add(self, found: Finding | Case) -> None:
        if isinstance(found, Case):
            self._cases.append(found)
        else:
            self._others.append(found)
        self._on_finding(found)


def verify(
    client: Client,
    reference: Reference,
    settings: Settings = Settings(),
    *,
    on_finding: Callable[[Finding | Case], None] = lambda found: None,
) -> VerifyReport:
    """Return whether what is served is the reference, with everything that was looked at.

    Args:
        on_finding: called with each finding and greedy case when it is there.

    Raises:
        CallFailed: when an answer did not come; what is under way is cancelled.
    """
    return Verification(client, reference, settings, on_finding=on_finding).run()


def spread(prompts: Sequence[str], count: int) -> list[str]:
    """Return so many of the prompts, evenly spread over the list."""
    count = min(count, len(prompts))
    return [prompts[n * len(prompts) // count] for n in range(count)]


def all_lengths(longest: int | None) -> tuple[int, ...]:
    """Return the draft lengths of engines, and AUTO.

    Args:
        longest: what they were built for; None where that is not known.
    """
    return (*range((LONGEST_UNKNOWN if longest is None else longest) + 1), AUTO)
