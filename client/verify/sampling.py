"""Sampled answers: do they have the target's distribution, and are they independent?

Seen from outside, through the server alone: many short continuations of a few prompts, each with a
seed of its own. What is tested, and which fault would show:

- the counts of tokens after each prefix against the reference's probabilities after temperature,
  top-k and top-p (G-test): a draft that is believed too often, a wrong residual, an ignored option;
- a token that top-k or top-p leaves out, drawn even once: a truncation that is not applied;
- where in its distribution each draw lies, from the likeliest token to the least, which is a uniform
  number whatever the distribution: on average, which shows what makes draws too safe or too wild; and
  against the draws before it in the answer and in the request before; how often a token comes again some
  positions later; how often a whole continuation comes again: randomness that is used twice.

The alarm rate is that of the whole set of tests for a server that is right (Holm).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from operator import add

import numpy as np
from numpy.typing import NDArray

from trtspec.client._client import Client
from trtspec.client._errors import RequestRefused
from trtspec.client._options import Options
from trtspec.client.verify.asking import Question, ask
from trtspec.client.verify.distribution import Probabilities, Warp
from trtspec.client.verify.findings import Finding
from trtspec.client.verify.reference import Reference
from trtspec.client.verify.statistics import (
    GTest,
    correlation_p_value,
    excess_p_value,
    g_test,
    holm_rejected,
    mean_p_value,
)
from trtspec.dtype_noise import Noise

PART = "sampling"
# Cold and cut to few tokens, hot and cut by mass, as it is and cut by both.
WARPS = (Warp(0.7, top_k=6), Warp(1.4, top_p=0.8), Warp(1.0, top_k=20, top_p=0.9))
# A prefix that so many continuations share is tested; fewer would hardly add.
LEAST_DRAWS = 20
UNSEEDED_DRAWS = 24
UNSEEDED_TOKENS = 12


@dataclass(frozen=True)
class SamplingPlan:
    """How much is drawn, and how sure an alarm has to be."""

    draws: int = 200
    tokens: int = 5
    num_draft_tokens: int = 4
    # The probability that a server that is right fails.
    alarm_rate: float = 0.001
    seed: int = 0
    concurrency: int = 8
    warps: Sequence[Warp] = WARPS


@dataclass(frozen=True)
class _Draws:
    """Continuations of one prompt, in the order they were asked for."""

    prompt_ids: tuple[int, ...]
    warp: Warp
    answers: tuple[tuple[int, ...], ...]


def judge_sampling(
    client: Client, reference: Reference, noise: Noise, prompts: Sequence[Sequence[int]], plan: SamplingPlan
) -> list[Finding]:
    """Return a finding for each test.

    Raises:
        CallFailed: when an answer did not come.
    """
    rng = np.random.default_rng(plan.seed)
    hypotheses: list[_Hypothesis] = []
    certain: list[Finding] = []
    for mode, more in (("", Options()), ("use_draft_logits, ", Options(use_draft_logits=True))):
        try:
            draws = [
                _draw(client, ids, plan.warps[n % len(plan.warps)], plan, rng, more)
                for n, ids in enumerate(prompts)
            ]
        except RequestRefused as error:
            if not mode:
                raise
            certain.append(Finding(PART, "use_draft_logits", "skipped", f"the server refuses it: {error}"))
            continue
        certain += _lengths(mode, draws, plan.tokens)
        trees = [_Tree(reference, noise, one) for one in draws]
        certain += _impossible(mode, draws, trees)
        hypotheses += _distributions(mode, draws, trees)
        hypotheses += _independence(mode, draws, trees, rng)
    unseeded = _draw_unseeded(client, prompts[0], plan)
    tree = _Tree(reference, noise, unseeded)
    hypotheses.append(_repeats("requests without a seed", [unseeded], [tree]))
    return [*certain, *_judged(hypotheses, plan)]


@dataclass(frozen=True)
class _Hypothesis:
    name: str
    p_value: float
    detail: str = ""
    g: GTest | None = None


class _Tree:
    """The exact distribution after each prefix of some continuations."""

    def __init__(self, reference: Reference, noise: Noise, draws: _Draws) -> None:
        self.p_V: dict[tuple[int, ...], Probabilities] = {}
        self.allowed_V: dict[tuple[int, ...], NDArray[np.bool_]] = {}
        self.kl: dict[tuple[int, ...], float] = {}
        for answer in dict.fromkeys(answer[:-1] for answer in draws.answers):
            if all(answer[:n] in self.p_V for n in range(len(answer) + 1)):
                continue
            legal = [i for i in answer if 0 <= i < reference.vocab_size]
            for n, row_V in enumerate(reference.logits(draws.prompt_ids, legal)):
                p_V, allowed_V = draws.warp.probabilities(row_V, slack=noise.bound(row_V))
                self.p_V[answer[:n]] = p_V
                self.allowed_V[answer[:n]] = allowed_V
                self.kl[answer[:n]] = noise.kl(row_V / draws.warp.temperature)

    def chance(self, answer: tuple[int, ...]) -> float:
        """Return the probability of a continuation."""
        return float(np.prod([self.p_V[answer[:n]][token] for n, token in enumerate(answer)]))


def _draw(
    client: Client,
    prompt_ids: Sequence[int],
    warp: Warp,
    plan: SamplingPlan,
    rng: np.random.Generator,
    more: Options,
) -> _Draws:
    seeds = rng.integers(0, 2**63, plan.draws)
    asked = [_question(prompt_ids, warp, plan, plan.tokens, Options(seed=int(s), **more)) for s in seeds]
    answers = ask(client, asked, plan.concurrency)
    return _Draws(tuple(prompt_ids), warp, tuple(answer.token_ids for answer in answers))


def _draw_unseeded(client: Client, prompt_ids: Sequence[int], plan: SamplingPlan) -> _Draws:
    asked = _question(prompt_ids, Warp(), plan, UNSEEDED_TOKENS, Options())
    answers = ask(client, [asked] * UNSEEDED_DRAWS, plan.concurrency)
    return _Draws(tuple(prompt_ids), Warp(), tuple(answer.token_ids for answer in answers))


def _question(
    prompt_ids: Sequence[int], warp: Warp, plan: SamplingPlan, tokens: int, more: Options
) -> Question:
    # Without an end token every continuation has the same length.
    options = Options(
        max_tokens=tokens, num_draft_tokens=plan.num_draft_tokens, end_id=-1, temperature=warp.temperature
    )
    if warp.top_k:
        options["top_k"] = warp.top_k
    if warp.top_p < 1:
        options["top_p"] = warp.top_p
    return Question(list(prompt_ids), Options(**options, **more))


def _lengths(mode: str, draws: Sequence[_Draws], tokens: int) -> Iterator[Finding]:
    wrong = sum(len(answer) != tokens for one in draws for answer in one.answers)
    if wrong:
        yield Finding(
            PART, f"{mode}length", "defect", f"{wrong} answers have not the {tokens} tokens asked for"
        )


def _impossible(mode: str, draws: Sequence[_Draws], trees: Sequence[_Tree]) -> Iterator[Finding]:
    found = 0
    for one, tree in zip(draws, trees, strict=True):
        for answer in one.answers:
            found += sum(
                not (0 <= token < len(tree.p_V[answer[:n]]) and tree.allowed_V[answer[:n]][token])
                for n, token in enumerate(answer)
            )
    drawn = sum(len(answer) for one in draws for answer in one.answers)
    detail = f"{found} of {drawn} drawn tokens are outside of top-k or top-p"
    yield Finding(PART, f"{mode}truncation", "defect" if found else "ok", detail, {"tokens": found})


def _distributions(mode: str, draws: Sequence[_Draws], trees: Sequence[_Tree]) -> Iterator[_Hypothesis]:
    tests = []
    for number, (one, tree) in enumerate(zip(draws, trees, strict=True), 1):
        test = reduce(add, _g_tests(one, tree), GTest())
        tests.append(test)
        yield _g_hypothesis(f"{mode}distribution, prompt {number} ({_describe(one.warp)})", test)
    yield _g_hypothesis(f"{mode}distribution, all prompts", reduce(add, tests, GTest()))


def _g_tests(draws: _Draws, tree: _Tree) -> Iterator[GTest]:
    after: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    for answer in draws.answers:
        for n, token in enumerate(answer):
            after[answer[:n]][token] += 1
    for prefix, counts in after.items():
        p_V = tree.p_V[prefix]
        observed_V = np.array([counts.get(token, 0) for token in range(len(p_V))], np.float64)
        if observed_V.sum() >= LEAST_DRAWS:
            yield g_test(observed_V, p_V, tree.kl[prefix])


def _g_hypothesis(name: str, test: GTest) -> _Hypothesis:
    detail = f"G {test.statistic:.1f}, {test.degrees} degrees of freedom, {test.draws} draws"
    return _Hypothesis(name, test.p_value, detail, test)


def _independence(
    mode: str, draws: Sequence[_Draws], trees: Sequence[_Tree], rng: np.random.Generator
) -> Iterator[_Hypothesis]:
    by_rank = [_places(one, tree, rng, ranked=True) for one, tree in zip(draws, trees, strict=True)]
    by_id = [_places(one, tree, rng, ranked=False) for one, tree in zip(draws, trees, strict=True)]
    for number, rows in enumerate(by_rank, 1):
        places = [place for row in rows for place in row]
        detail = f"{len(places)} draws; {float(np.mean(places)):.3f} of the way down on average, 0.5 expected"
        yield _Hypothesis(f"{mode}likely and unlikely tokens, prompt {number}", mean_p_value(places), detail)
    longest = max(len(answer) for one in draws for answer in one.answers)
    for lag in range(1, longest):
        for order, placed in (("rank", by_rank), ("id", by_id)):
            pairs = [(row[n], row[n + lag]) for rows in placed for row in rows for n in range(len(row) - lag)]
            yield _correlation(f"{mode}positions {lag} apart, by {order}", pairs)
        yield _comes_again(mode, lag, draws, trees)
    pairs = [
        pair
        for rows in by_rank
        for earlier, later in pairwise(rows)
        for pair in zip(earlier, later, strict=False)
    ]
    yield _correlation(f"{mode}one request and the next", pairs)
    yield _repeats(f"{mode}whole continuations", draws, trees)


def _places(draws: _Draws, tree: _Tree, rng: np.random.Generator, *, ranked: bool) -> list[list[float]]:
    """Return where each draw lies in its distribution: uniform in [0, 1), and independent, if it is right."""
    rows = []
    for answer in draws.answers:
        row = []
        for n, token in enumerate(answer):
            p_V = tree.p_V[answer[:n]]
            known = 0 <= token < len(p_V)
            p = float(p_V[token]) if known else 0.0
            below = p_V > p if ranked else np.arange(len(p_V)) < token
            row.append(float(p_V[below].sum()) + p * float(rng.random()))
        rows.append(row)
    return rows


def _correlation(name: str, pairs: Sequence[tuple[float, float]]) -> _Hypothesis:
    p_value = correlation_p_value([a for a, _ in pairs], [b for _, b in pairs])
    return _Hypothesis(name, p_value, f"correlation over {len(pairs)} pairs")


def _comes_again(mode: str, lag: int, draws: Sequence[_Draws], trees: Sequence[_Tree]) -> _Hypothesis:
    chances, hits = [], 0
    for one, tree in zip(draws, trees, strict=True):
        for answer in one.answers:
            for n in range(lag, len(answer)):
                chances.append(float(tree.p_V[answer[:n]][answer[n - lag]]))
                hits += answer[n] == answer[n - lag]
    name = f"{mode}the same token {lag} positions later"
    return _Hypothesis(name, excess_p_value(hits, chances), f"{hits} times, {sum(chances):.1f} expected")


def _repeats(name: str, draws: Sequence[_Draws], trees: Sequence[_Tree]) -> _Hypothesis:
    """How often a continuation comes that came before, given the chances of those that did."""
    chances, hits = [], 0
    for one, tree in zip(draws, trees, strict=True):
        seen: set[tuple[int, ...]] = set()
        chance_of_seen = 0.0
        for answer in one.answers:
            chances.append(min(1.0, chance_of_seen))
            if answer in seen:
                hits += 1
            else:
                seen.add(answer)
                chance_of_seen += tree.chance(answer)
    detail = f"{hits} repeated, {sum(chances):.1f} expected"
    return _Hypothesis(name, excess_p_value(hits, chances), detail)


def _judged(hypotheses: Sequence[_Hypothesis], plan: SamplingPlan) -> Iterator[Finding]:
    rejected = holm_rejected((h.p_value for h in hypotheses), plan.alarm_rate)
    level = plan.alarm_rate / len(hypotheses)
    for hypothesis, wrong in zip(hypotheses, rejected, strict=True):
        numbers = {"p_value": hypothesis.p_value}
        detail = f"p = {hypothesis.p_value:.2g}; {hypothesis.detail}"
        if hypothesis.g:
            numbers["detectable_tv"] = hypothesis.g.detectable(level)
            detail += f"; finds a total variation of {numbers['detectable_tv']:.3f} with a power of 0.9"
        yield Finding(PART, hypothesis.name, "defect" if wrong else "ok", detail, numbers)


def _describe(warp: Warp) -> str:
    return f"temperature {warp.temperature:g}, top-k {warp.top_k}, top-p {warp.top_p:g}"
